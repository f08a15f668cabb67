"""Weights with which rounding decides: what a hostile server would send."""

from __future__ import annotations

import numpy as np
import torch

from hdpfl_flower.engines.engines import Engine


def in_the_gap(features: np.ndarray, seed: int, scale: float = 1e6) -> np.ndarray:
    """Return (w, bias), shape ``(f + 1,)``: w·x + bias is 0 for every row but for its rounding."""
    rows = np.c_[features.reshape(len(features), -1).astype(np.float64), np.ones(len(features))]
    draw = np.random.default_rng(seed).normal(size=rows.shape[1]) * scale
    _, values, directions = np.linalg.svd(rows, full_matrices=True)
    free = directions[int((values > 1e-9 * values[0]).sum()) :]
    return free.T @ (free @ draw)


def set_gates(engine: Engine, features: torch.Tensor, seed: int) -> None:
    """Give an ``mlp:1`` a first layer whose gates rounding decides for the last of ``features``."""
    line = in_the_gap(features.numpy()[-4:], seed)
    engine.theta.zero_()
    engine.theta[: len(line)] = torch.from_numpy(line).float()
    engine.theta[len(line) :] = torch.tensor([1.0, 0.0])
