"""Batches with row-independent arithmetic, proven by trial on this machine.

The rounding of a row's outputs depends on the order of its additions. A kernel picks that order by
the number of rows, the row's place, its address and the number of threads: of 15 rows the last
three of a product with one column are added in another order, and rows of 13 floats begin at
addresses of several alignments. With hostile weights, rounding can decide a class or a gate, and
one record more changes the contributions of others.

Kernels never pick an order by the values. So an order that differs shows on random rows: a row is
computed at every place, among other rows and in batches of other sizes, and all its bits must be
the same each time. Only sizes that pass are used; where none does, rows are computed one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from hdpfl_flower.errors import is_ctrl_c
from hdpfl_flower.models.task import Task

LINE = 16
"""Floats in 64 bytes, the alignment of torch's allocations."""
BLOCKS = (64, 32, 16, 8, 4)
"""Block sizes tried for outputs; the first with proven row independence counts."""
LARGEST, POOL = 64, 128
"""Rows of the largest block tried, and of the trial pool."""
_FEWEST = 32
"""Minimum pool rows of a trial."""
_LEAST = 4
"""Fewest rows that are tried where more do not hold."""
TYPICAL, WILD = 0, 1
"""Trial parameters: near the initial ones, and of all magnitudes."""

Trial = Callable[[int, torch.Tensor], Sequence[torch.Tensor]]
"""Function of (TYPICAL or WILD, pool rows ``(b,)``) to outputs and other parts of rows.

Each part has one row for each row of the batch.
"""


class RowProof:
    """Batch sizes at which each row's bits are independent of others."""

    def __init__(self, trial: Trial) -> None:
        """Store the trial; no computation is run yet."""
        self._trial = trial
        self._expected: dict[tuple[int, int], list[torch.Tensor] | None] = {}
        self._held: dict[tuple[int, int, int], bool] = {}
        self._granules: dict[tuple[int, int, int], int] = {}
        self._passes = 1

    def granule(self, wanted: int, largest: int) -> int:
        """Return the row count that batches are multiples of; 1: single rows.

        Args:
            wanted: rows, tried first; then twice as many, … and half as many, ….
            largest: rows in memory at once; no block exceeds it, but for ``wanted`` itself.

        Guarantees:
            Depends on the arguments, the computation, the machine and the threads alone.
        """
        # The number of threads is part of the key: kernels pick their order by it.
        key = torch.get_num_threads(), wanted, largest
        if key not in self._granules:
            # Powers of two times `wanted`, the smallest valid one first.
            most = max(wanted, min(largest, LARGEST))
            sizes = [wanted * 2**i for i in range(7) if wanted * 2**i <= most]
            proven = (size for size in sizes if self._all_hold(size, max(largest, size)))
            fewer = [wanted // 2**i for i in range(1, 7) if wanted // 2**i >= _LEAST]
            self._granules[key] = next(proven, 0) or self.block([*sizes, *fewer])
        return self._granules[key]

    def block(self, sizes: Sequence[int]) -> int:
        """Return the first of ``sizes`` with independent rows, else 1."""
        return next((size for size in sizes if self.holds(size, size)), 1)

    def holds(self, granule: int, size: int) -> bool:
        """Return whether rows' bits agree between ``size`` and ``granule`` rows.

        For all other rows and all places of a row among them. Proven on the first call for
        the present number of threads.
        """
        key = torch.get_num_threads(), granule, size
        if key not in self._held:
            with exact_arithmetic(), torch.random.fork_rng():
                torch.manual_seed(0)
                self._held[key] = self._proven(granule, size)
        return self._held[key]

    def _all_hold(self, size: int, largest: int) -> bool:
        multiples = [k * size for k in (1, 2, 3, 4) if k * size <= largest]
        return all(self.holds(size, multiple) for multiple in multiples)

    def _proven(self, granule: int, size: int) -> bool:
        if granule == 1:
            return size == 1
        key = torch.get_num_threads(), granule
        if key not in self._expected:
            self._expected[key] = self._in_blocks(granule)
        # Digests of rows in blocks of `granule`, which other sizes must reproduce.
        expected = self._expected[key]
        if expected is None or size % granule:
            return False
        if size == granule:
            return True
        generator = torch.Generator().manual_seed(size)
        count = len(expected[TYPICAL])
        for _ in range(self._passes):
            orders = [torch.randperm(count, generator=generator) for _ in range(-(-size // count))]
            # Rows in random order, repeated where there are fewer than `size`: other neighbours and
            # places.
            rows = torch.cat(orders)[:size]
            if not torch.equal(self._digests(TYPICAL, rows), expected[TYPICAL][rows]):
                return False
        return True

    def _in_blocks(self, granule: int) -> list[torch.Tensor] | None:
        """Return pool row digests, or None if place or neighbours matter."""
        generator, digests = torch.Generator().manual_seed(granule), []
        count = max(2 * granule, _FEWEST)  # twice, so that a row meets others in every block
        for kind in (TYPICAL, WILD):
            blocks = torch.split(torch.arange(count), granule)
            expected = torch.cat([self._digests(kind, rows) for rows in blocks])
            # Each pass has known / granule rows at every place.
            passes = -(-self._passes * granule // count) if kind == TYPICAL else 1
            for _ in range(passes):
                for rows in torch.split(torch.randperm(count, generator=generator), granule):
                    if not torch.equal(self._digests(kind, rows), expected[rows]):
                        return None
            digests.append(expected)
        return digests

    def _digests(self, kind: int, rows: torch.Tensor) -> torch.Tensor:
        """Return a number per row that any changed bit would change."""
        outputs = [output.detach().flatten(1) for output in self._trial(kind, rows)]
        numbers = sum(output.shape[1] for output in outputs)
        # One sum of few terms has the same bits in another order in about a third of all draws.
        few = outputs[0].shape[1] < 4
        self._passes = (12 if few else 3) if numbers < 1000 else (3 if few else 1)
        digest = torch.zeros(len(rows), dtype=torch.int64)
        for output in outputs:
            # Modulo 2⁶⁴; the factor makes the order of the parts count.
            digest = digest * 0x9E3779B1 + _digest(output).cpu()
        return digest


def _digest(rows: torch.Tensor) -> torch.Tensor:
    """Return Σᵢ bitsᵢ·wᵢ per row, odd weights modulo 2³²; NaNs are equal."""
    digest = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    for columns in torch.split(rows.float(), 2**16, dim=1):
        if bool(columns.sum().isnan()):
            # NaNs of one row may differ in meaningless bits; one number replaces all.
            columns = torch.where(columns.isnan(), 1.5e-42, columns)  # noqa: PLW2901
        places = torch.arange(columns.shape[1], dtype=torch.int32, device=rows.device)
        # An odd weight is invertible modulo 2³², so that no change of a single number is lost.
        bits = columns.contiguous().view(torch.int32) * (places * -1640531535 | 1)
        digest = digest * 0x2545F491 + bits.sum(1)
    return digest


def align(model: nn.Module) -> nn.Module:
    """Align the input rows of all linear layers to 64 bytes.

    Returns ``model``, changed in place; its outputs stay the same up to rounding.
    """
    for module in model.modules():
        if type(module) is nn.Linear and module.in_features % LINE:
            module.forward = MethodType(_aligned_linear, module)  # type: ignore[method-assign]
    return model


def _aligned_linear(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(aligned(x), aligned(layer.weight), layer.bias)


def aligned(rows: torch.Tensor) -> torch.Tensor:
    """Return ``rows`` zero-padded to a multiple of 64 bytes per row.

    >>> aligned(torch.ones(2, 13)).shape
    torch.Size([2, 16])
    """
    missing = -rows.shape[-1] % LINE
    return functional.pad(rows, (0, missing)) if missing else rows


def in_blocks(
    run: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, block: int, lost: torch.Tensor
) -> torch.Tensor:
    """Return the outputs of rows in blocks of a constant size, filled up with zeros.

    Args:
        run: computation of ``block`` rows.
        rows: n of them, n ≥ 1.
        block: of :meth:`RowProof.block`, of the same computation.
        lost: output of a row on which ``run`` raises, shape ``(1, outputs)``; else one record would
            decide whether all of them can be read.

    Guarantees:
        Each row's output depends on that row alone.
    """

    def bounded(some: torch.Tensor) -> torch.Tensor:
        try:
            filled = some.new_zeros(block, *some.shape[1:])
            filled[: len(some)] = some
            return run(filled)[: len(some)]
        except BaseException as reason:
            if is_ctrl_c(reason):
                raise
            parts = torch.split(some, 1)
            return lost if len(parts) == 1 else torch.cat([bounded(row) for row in parts])

    with exact_arithmetic():
        return torch.cat([bounded(some) for some in torch.split(rows, block)])


def blank(task: Task, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``count`` records of zeros: features ``(count, *input_shape)`` and targets."""
    kind = torch.float32 if task.loss == "squared" else torch.int64
    x = torch.zeros((count, *task.input_shape), device=device)
    return x, torch.zeros(count, dtype=kind, device=device)


def pool(model: nn.Module, task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Return synthetic trial rows: features ``(POOL, *input_shape)`` and targets.

    Ordinary, of many magnitudes, denormal, zero, huge and not finite, side by side. A model that
    embeds gets zeros and ones.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (POOL, *task.input_shape)
    x = torch.randn(shape, generator=generator)
    if any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in model.modules()):
        x = (x > 0).float()
    else:
        scales = torch.randn(shape, generator=generator).mul_(3)
        x[3::8] *= 10.0 ** scales[3::8]
        x[4::32], x[12::32], x[20::32] = x[4::32] * 1e-40, 0.0, x[20::32] * 1e30
        x.flatten(1)[28, 0] = torch.nan
    if task.loss == "squared":
        return x, torch.randn(POOL, generator=generator)
    return x, torch.randint(0, task.target_values, (POOL,), generator=generator)


def draws(start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return TYPICAL and WILD trial parameters on ``start``'s device, shape (d,)."""
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(start.numel(), generator=generator) for _ in range(2))
    typical = start.detach().cpu() * (1 + first / 8) + second / 64
    wild = first * 10.0 ** (4 * second)
    return typical.to(start.device), wild.to(start.device)


def rows_on(values: torch.Tensor, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return some rows of ``values``, which is on the CPU; the copy is queued, not waited for."""
    if device.type == "cpu":
        return values.index_select(0, rows)
    # Locked memory, so that the copy runs beside the arithmetic; torch frees it when it is done.
    shape = (len(rows), *values.shape[1:])
    some = torch.empty(shape, dtype=values.dtype, pin_memory=True)
    torch.index_select(values, 0, rows, out=some)
    return some.to(device, non_blocking=True)


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
