"""Local DP-SGD: Poisson batches, flat clipping, constant divisor, noise.

Reference: Abadi et al., Deep Learning with Differential Privacy (CCS 2016), Algorithm 1, with
Poisson sampling as the accountant has it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hdpfl_flower.engines.engines import Engine
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.row_batches import exact_arithmetic, rows_on
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.noise import RandomStream, ReleaseStreams, add_noise
from hdpfl_flower.privacy.plan import RoundPlan

Mask = npt.NDArray[np.bool_]
"""Which coordinates are trained, shape ``(d,)``."""


@dataclass(frozen=True, repr=False)
class Phase:
    """Steps of a round that train the same coordinates.

    Attributes:
        steps: how many.
        place: the coordinates, a range of whole layers.
        mask: those among them that are trained; the others are 0 meanwhile. It must be public, or a
            function of noisy releases. None: all of them.
    """

    steps: int
    place: slice
    mask: Mask | None = None


Step = Callable[[torch.Tensor], None]
"""Step of an optimizer by a noisy mean gradient, shape ``(d,)``: post-processing."""

Pull = tuple[float, npt.NDArray[np.float32]]
"""(λ ≥ 0, θ*): each step also moves by −η·λ·(θ − θ*), to the anchor θ*, shape ``(d,)``."""


@dataclass(frozen=True)
class Course:
    """Steps of one round.

    Attributes:
        phases: coordinates of each step; empty: all of them.
        pull: λ and the model that each step is pulled to; None: no pull.
        offset: movement of the whole round, in equal parts after each step; None: none.
    """

    phases: tuple[Phase, ...] = ()
    pull: Pull | None = None
    offset: npt.NDArray[np.float32] | None = None


def train(  # noqa: PLR0913 - the last by name
    engine: Engine,
    start: npt.NDArray[np.float32],
    records: Records,
    plan: RoundPlan,
    learning_rate: float,
    streams: ReleaseStreams,
    physical_batch: int,
    *,
    pull: Pull | None = None,
    offset: npt.NDArray[np.float32] | None = None,
    phases: Sequence[Phase] = (),
    step: Step | None = None,
) -> npt.NDArray[np.float32]:
    """Return the noisy update of one round, local − global, shape ``(d,)``.

    Args:
        engine: the model.
        start: the global model as one vector, float32, shape ``(d,)``.
        records: the site's records.
        plan: the steps, q, C, the noise and the divisor b.
        learning_rate: η.
        streams: the release's randomness, used up.
        physical_batch: records in memory at once; a batch larger than that is summed in parts.
        pull: (λ, θ*), strength and target (MR-MTL, Ditto). θ* must be public or private already.
        offset: D, a further move of the model over the round, a k-th after each of the k
            steps (SCAFFOLD), shape ``(d,)``; public or private already. It goes without phases.
        phases: which coordinates each of the plan's steps trains, in this order; empty: all of them
            in every step. Their steps are the plan's in number.
        step: moves ``engine.theta`` by each noisy mean gradient, in place of −η times it.

    Guarantees:
        Each step is θ ← θ − (η/b)·(Σ clipped gradients + N(0, noise_std²)) − η·λ·(θ − θ*) + D/k,
        also where the Poisson batch is empty. Pull and offset are neither clipped nor noised: θ, θ*
        and D are known to whoever sees the noisy sums, so they are post-processing and cost
        nothing; batches and noise are the same with and without them. In a phase
        gradients are those of its coordinates, clipped to C and noised in every one of them that
        may change: a step of a phase is the same mechanism. The update is 0 where a mask is. Steps,
        divisor and shapes do not depend on the records. The result is the composition of
        ``plan.steps`` Gaussian mechanisms and post-processing.

    Raises:
        TermsError: as :func:`pull_share`; θ* or D is of another model; the phases are not the
            plan's; or there are phases and an offset.
    """
    drift = _drift(offset, start, phases, plan.steps.count)
    phases = phases or (Phase(plan.steps.count, slice(0, len(start))),)
    if sum(phase.steps for phase in phases) != plan.steps.count:
        raise TermsError("the phases of a round have other steps than its plan pays for")
    device, probability = engine.theta.device, plan.steps.sampling_prob
    # Not moved: a device need hold a batch alone, as the rehearsal has it.
    features, targets = torch.from_numpy(records.features), torch.from_numpy(records.targets)
    begin = torch.from_numpy(start.copy()).to(device)
    share = pull_share(pull, learning_rate)
    anchor = _anchor(pull, start)
    anchor = anchor.to(device) if share and anchor is not None else None
    drift = drift if drift is None else drift.to(device)
    # The engine is shared by the messages of a process: each round starts from its own model.
    engine.theta.copy_(begin)
    # Over physical batches in float64: rounded to float32, a sum of many records would move by more
    # than C with one of them.
    part = torch.empty_like(engine.theta)
    total = torch.empty_like(part, dtype=torch.float64)
    granule = settle(engine, plan.divisor, physical_batch)
    seed = int.from_bytes(streams.sampling.bytes(7), "big")
    with _exact_arithmetic(seed if engine.draws else None):
        for phase in phases:
            # The anchor, too: else the pull would move masked coordinates.
            place, keep = phase.place, _masked(phase, engine.theta, anchor)
            # Several steps' noise in one pass of its stream: the bits are those of step by step.
            streams.noise.draw_ahead(len(engine.theta[place]), phase.steps)
            with engine.only(place):
                for _ in range(phase.steps):
                    # A Poisson batch: each record by a coin of its own with probability q, as the
                    # accountant assumes.
                    rows = streams.sampling.bernoulli(len(records), probability)
                    total.zero_()
                    # An empty batch adds nothing here; its step still has the noise below.
                    for first in range(0, len(rows), physical_batch):
                        chunk = rows[first : first + physical_batch]
                        part.zero_()
                        _add_rows(engine, part, (features, targets), chunk, granule, plan.clip_norm)
                        total += part
                    # In every step, an empty batch's included: its absence would show an empty
                    # draw. On every coordinate that the step may move.
                    noisy = add_noise(total[place], plan.noise_std, streams.noise).float()
                    if keep is not None:
                        noisy.mul_(keep)
                    if anchor is not None:  # after the clipping, which would eat it
                        engine.theta[place].lerp_(anchor[place], share)
                    # The divisor is the expected batch b, a constant: the true batch size would
                    # depend on its members.
                    if step is not None:
                        step(noisy.div_(plan.divisor))
                    else:
                        engine.theta[place].sub_(noisy, alpha=learning_rate / plan.divisor)
                    if drift is not None:  # after clipping and noise, a k-th of it in each step
                        engine.theta.add_(drift)
            if keep is not None:
                begin[place].mul_(keep)
    update: npt.NDArray[np.float32] = (engine.theta - begin).cpu().numpy()
    return update


def clipped_sum(
    engine: Engine,
    start: npt.NDArray[np.float32],
    records: Records,
    plan: RoundPlan,
    sampling: RandomStream,
    physical_batch: int,
    place: slice,
) -> npt.NDArray[np.float64]:
    """Return the clipped sum of one Poisson batch, **without noise**, shape ``(d,)``.

    Arguments as in :func:`train`, of a plan of one step; it is 0 outside of ``place``, a range of
    whole parameters.

    Guarantees:
        One record more or less moves it by at most C·(1 + 10⁻⁵), and by the rounding of two sums in
        float64, together less than 2·(b_p + b/b_p)·2⁻⁵³·b·C for b records, b_p of them in a
        physical batch: for 256 in a batch 2·10⁻⁵·C up to 4·10⁶ records (Higham, Accuracy and
        Stability of Numerical Algorithms, 2002, eq. 4.4). The sum must not leave the site by
        itself.
    """
    features, targets = torch.from_numpy(records.features), torch.from_numpy(records.targets)
    engine.theta.copy_(torch.from_numpy(start.copy()))
    granule = settle(engine, plan.divisor, physical_batch)
    total = torch.zeros_like(engine.theta, dtype=torch.float64)
    seed = int.from_bytes(sampling.bytes(7), "big")
    with _exact_arithmetic(seed if engine.draws else None), engine.only(place):
        rows = sampling.bernoulli(len(records), plan.steps.sampling_prob)
        for first in range(0, len(rows), physical_batch):
            some = torch.zeros_like(total)
            chunk = rows[first : first + physical_batch]
            _add_rows(engine, some, (features, targets), chunk, granule, plan.clip_norm)
            total += some
    result: npt.NDArray[np.float64] = total.cpu().numpy()
    return result


def _add_rows(
    engine: Engine,
    total: torch.Tensor,
    tensors: tuple[torch.Tensor, torch.Tensor],
    rows: npt.NDArray[np.int64],
    granule: int,
    clip_norm: float,
) -> None:
    """Add the clipped sum of some rows, which fit into memory, to ``total``."""
    # Row numbers: only the records of this part are copied, shape (rows, *input_shape).
    indices = torch.from_numpy(filled_up(rows, granule))
    x, y = (rows_on(tensor, indices, total.device) for tensor in tensors)
    engine.add_clipped_sum(total, x, y, len(rows), clip_norm)


def _drift(
    offset: npt.NDArray[np.float32] | None,
    start: npt.NDArray[np.float32],
    phases: Sequence[Phase],
    steps: int,
) -> torch.Tensor | None:
    """Return the added offset of each step; raises as :func:`train`."""
    if offset is None:
        return None
    if phases or offset.shape != start.shape:
        raise TermsError("an offset is of the whole model, and a round with one has no phases")
    return torch.from_numpy(offset / np.float32(steps))


def _anchor(pull: Pull | None, start: npt.NDArray[np.float32]) -> torch.Tensor | None:
    """Return θ*, if any; raises as :func:`train`."""
    if pull is None:
        return None
    if pull[1].shape != start.shape:
        raise TermsError("a model is pulled to one of another size")
    return torch.from_numpy(pull[1].copy())


def _masked(phase: Phase, *vectors: torch.Tensor | None) -> torch.Tensor | None:
    """Zero the masked vectors; return the kept part."""
    if phase.mask is None:
        return None
    keep = torch.from_numpy(phase.mask[phase.place].copy())
    for vector in vectors:
        if vector is not None:
            keep = keep.to(vector.device)
            vector[phase.place].mul_(keep)
    return keep


def pull_share(pull: Pull | None, learning_rate: float) -> float:
    """Return η·λ, the share of a step's way to the anchor.

    From η·λ = 2 on the steps diverge. Above 1 they already end beyond the
    anchor, so 1 is the limit, as for :class:`hdpfl_flower.work.second.SecondModel`.

    Raises:
        TermsError: λ is negative or no number, or η·λ is above 1.

    >>> pull_share((0.5, np.zeros(3, np.float32)), 0.2)
    0.1
    """
    if pull is None:
        return 0.0
    if not (pull[0] >= 0 and pull[0] * learning_rate <= 1):
        raise TermsError(
            "a pull λ must be at least 0, and its product with 'learning-rate' at most 1: a step "
            "would go beyond the model that it is pulled to; lower one of them"
        )
    return pull[0] * learning_rate


def settle(engine: Engine, divisor: float, physical_batch: int) -> int:
    """Return the number of rows that ``engine`` takes batches in multiples of, from public numbers.

    Poisson batches have another size at every step. Sizes in memory have few, for each is proven to
    keep the rows apart (:mod:`hdpfl_flower.models.row_batches`), and convolutions are prepared anew
    for each.
    """
    if engine.theta.device.type == "cpu":
        wanted = granule_of(min(divisor, physical_batch))
    else:
        wanted = min(block_of(divisor), physical_batch)
    return engine.settle(wanted, physical_batch)


def block_of(divisor: float) -> int:
    """Return another device's first granule: b + 2√b rows, of nearly each Poisson batch.

    A GPU takes about as long for few rows as for many, so that one block is the fastest.

    >>> block_of(128), block_of(1)
    (152, 8)
    """
    return 8 * math.ceil((divisor + 2 * math.sqrt(divisor)) / 8)


def granule_of(divisor: float) -> int:
    """Return the engine's first granule: a power of two near b/8.

    With one or two rows products are added in another order; fewer than 4 where memory holds fewer.

    >>> granule_of(64), granule_of(5), granule_of(1)
    (8, 4, 1)
    """
    # Rounded down to a power of two.
    wanted: int = 2 ** math.floor(math.log2(max(divisor, 1)))
    return max(min(wanted, 4), wanted // 8)


def filled_up(rows: npt.NDArray[np.int64], granule: int) -> npt.NDArray[np.int64]:
    """Return ``rows`` with its first entry repeated, up to a multiple of ``granule``.

    >>> filled_up(np.array([7, 9, 11]), 2)
    array([ 7,  9, 11,  7])
    """
    missing = -len(rows) % granule
    return np.concatenate([rows, np.full(missing, rows[0])]) if missing else rows


def rehearsal_size(divisor: float, physical_batch: int) -> int:
    """Return a batch size that no Poisson batch in memory exceeds, but with probability 1e-14.

    Bernstein's inequality with variance ≤ b: t = L/3 + √(L²/9 + 2Lb), L = ln 1e14.
    """
    # L = ln 1e14 = 32.24: L/3 < 11, L²/9 < 116 and 2L < 65, each rounded up.
    largest = min(physical_batch, math.ceil(divisor + 11 + math.sqrt(116 + 65 * divisor)))
    return largest + -largest % granule_of(min(divisor, physical_batch))


@contextlib.contextmanager
def _exact_arithmetic(seed: int | None) -> Iterator[None]:
    """Multiply in full float32; seed torch's generator for dropout.

    Without a seed, for a model that draws nothing, the generator is left alone: to save and restore
    it costs as much as a step of a small model.
    """
    if seed is None:
        with exact_arithmetic():
            yield
        return
    with exact_arithmetic(), torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
