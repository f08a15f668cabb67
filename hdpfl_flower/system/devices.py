"""Devices that torch computes on, cores, and copies that do not wait for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hdpfl_flower.errors import ModelError

if TYPE_CHECKING:  # imported where a device is used: a second that many commands need not wait
    import torch


def pick_device(name: str) -> str:
    """Return ``name``, or for ``auto`` the GPU where there is one."""
    import torch

    # Of cuBLAS' kernels those that repeat their bits; read once, when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def present(device: str) -> str:
    """Return :func:`pick_device`'s device; raises ModelError if it is missing."""
    import torch

    chosen = pick_device(device)
    try:
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError):  # torch asserts that it was built for CUDA
        raise ModelError("'training.device' is not on this machine; set it to 'auto'") from None
    return chosen


def moved(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy on ``device`` that is queued, not waited for; on the CPU ``values``."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device or the machine had no memory left."""
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
