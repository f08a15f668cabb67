"""torch settings for the arithmetic behind the guarantees."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import torch


@contextlib.contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Switch off TF32, bfloat16, autocast and, where others exist, kernels that vary."""
    cudnn, mkldnn = torch.backends.cudnn, cast("Any", torch.backends.mkldnn)
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, mkldnn.conv.fp32_precision
    kernels = cudnn.deterministic, cudnn.benchmark
    # On the CPU all repeat their bits, and the setting would only cost time.
    on_gpu, filled = (
        cast("Any", torch.cuda).is_initialized(),
        cast("Any", torch.utils).deterministic,
    )
    repeating = torch.get_deterministic_debug_mode(), filled.fill_uninitialized_memory
    # TF32 keeps 10 bits of a number's fraction and bfloat16 7, in place of float32's 23.
    torch.set_float32_matmul_precision("highest")  # on the CPU too, where it may mean bfloat16
    cudnn.allow_tf32, mkldnn.conv.fp32_precision = False, "ieee"
    cudnn.deterministic, cudnn.benchmark = True, False
    if on_gpu:
        # "warn": an operation without one, as adaptive pooling's gradient, runs all the same.
        torch.set_deterministic_debug_mode("warn")
        filled.fill_uninitialized_memory = False
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, mkldnn.conv.fp32_precision = before[1:]
        cudnn.deterministic, cudnn.benchmark = kernels
        if on_gpu:
            torch.set_deterministic_debug_mode(repeating[0])
            filled.fill_uninitialized_memory = repeating[1]
