"""Recorded updates of a local federation, with their true noise."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from server_app.in_process.in_process_run import run_in_process
from strategies import STRATEGIES
from strategies.core.base import State
from strategies.noise_aware.oracle import Oracle

_NAME = "record"


def record(config: dict[str, Any], num_sites: int) -> list[RoundUpdates]:
    """Return each round's updates, with ``noise-std`` disclosed.

    The model follows the oracle's weights, so that no estimator shapes its own test data.
    """
    with _recording() as rounds, tempfile.TemporaryDirectory() as folder:
        run_in_process(
            RunConfig.parse(
                {"evaluation": "none", **config, "strategy": _NAME, "runs-dir": folder}
            ),
            num_sites,
        )
    return rounds


@contextmanager
def _recording() -> Iterator[list[RoundUpdates]]:
    rounds: list[RoundUpdates] = []

    class Recorder(Oracle):
        name = _NAME

        def combine(
            self, state: State, updates: RoundUpdates, noise: RandomStream
        ) -> tuple[State, Outcome]:
            rounds.append(updates)
            return super().combine(state, updates, noise)

    STRATEGIES[_NAME] = Recorder
    try:
        yield rounds
    finally:
        del STRATEGIES[_NAME]


def excess(estimated: npt.NDArray[np.float64], true: npt.NDArray[np.float64]) -> float:
    """Return q = Σw²σ² · Σ1/σ² of w ∝ 1/``estimated``; the optimum is 1."""
    weights = estimated.min() / estimated
    weights /= weights.sum()
    return float((weights**2 * true).sum() * (1 / true).sum())
