"""Privacy accounting: cost of noisy steps, noise for a budget.

Events (dp-accounting's ``DpEvent``) are mechanisms, apart from their cost. Costs come from
privacy-loss distributions (PLD) with pessimistic estimates; every number is rounded to the side
that protects: ε up, noise up. Relation: add/remove one record. Sampling: Poisson.

dp-accounting is imported inside the functions: a site that only re-sends or trains a round of a
frozen plan never pays for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from hdpfl_flower.config.profile import MIN_DELTA
from hdpfl_flower.errors import AccountingError

if TYPE_CHECKING:
    import dp_accounting

_TOLERANCE = 5e-4
"""Relative tolerance of the noise multiplier's search."""
_CONFIRMATIONS = 4
"""Fine costs at most, before the search brackets the answer instead."""
_DIGITS = 6
"""Significant digits of a noise multiplier; the last one is rounded up."""
_COARSE = 1e-3
"""Grid interval for finding the ε that sets the interval."""


@dataclass(frozen=True)
class Steps:
    """Equal DP-SGD steps: ``count`` Poisson batches of ``sampling_prob``.

    Their noise multiplier is ``noise_factor`` times the noise multiplier of the run.
    """

    sampling_prob: float
    count: int
    noise_factor: float = 1.0


@dataclass(frozen=True)
class Gaussians:
    """Releases with stated noise: ``count`` times N(0, z²), with a sensitivity of at most 1.

    Private selections can be stated in this form (``noisy_max.py``).
    """

    noise_multiplier: float
    count: int


@dataclass(frozen=True)
class PureSelections:
    """ε-DP releases with δ = 0 (``exponential_mechanism.py``): ``count`` times ``epsilon``.

    Charged as randomized response at ε, from which the release follows by post-processing (Kairouz,
    Oh and Viswanath, ICML 2015): its loss is ε or −ε, as that of geometric noise on one count.
    The grid rounds each loss up, by less than the interval: 20 of them by 0.2 % of a run's ε.
    """

    epsilon: float
    count: int


ExtraRelease = Gaussians | PureSelections
"""Mechanisms of a run besides its DP-SGD steps, with noise of their own."""
Schedule = Sequence[Steps]
_Cost = Callable[[float], float]


def _by_library(interval: float) -> Any:
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(value_discretization_interval=interval)


_accountant: Callable[[float], Any] = _by_library


def account_by(accountant: Callable[[float], Any]) -> None:
    """Let an accountant of equal results compute this process's costs; a deployed site never does.

    Args:
        accountant: grid interval → as dp-accounting's ``PLDAccountant``, and faster.
    """
    global _accountant  # noqa: PLW0603 - all plans of a simulation's process
    _accountant = accountant


def event_of(
    schedule: Schedule, noise_multiplier: float, beside: Sequence[ExtraRelease] = ()
) -> dp_accounting.DpEvent:
    """Return the event of ``schedule`` with noise N(0, (f·z·C)²).

    f is the ``noise_factor`` of the steps.

    One full-batch step (``sampling_prob`` 1) is a plain Gaussian mechanism under add/remove. The
    releases ``beside`` the training are part of the event and have their own noise.

    Raises:
        AccountingError: a probability is outside (0, 1], a count is negative, or a noise multiplier
            or an ε is not above 0.
    """
    import dp_accounting

    if not all(noise > 0 for noise in (noise_multiplier, *map(_noise_of, beside))):
        raise AccountingError(
            "noise multipliers, and the epsilon of pure releases, must be positive"
        )
    if any(release.count < 0 for release in beside):
        raise AccountingError("a count must be >= 0")
    events: list[dp_accounting.DpEvent] = []
    for steps in merge(schedule):
        noise = noise_multiplier * steps.noise_factor
        event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise)
        if steps.sampling_prob < 1:
            event = dp_accounting.PoissonSampledDpEvent(steps.sampling_prob, event)
        events.append(dp_accounting.SelfComposedDpEvent(event, steps.count))
    events += [
        dp_accounting.SelfComposedDpEvent(_once(release), release.count)
        for release in beside
        if release.count
    ]
    return dp_accounting.ComposedDpEvent(events) if events else dp_accounting.NoOpDpEvent()


def _once(release: ExtraRelease) -> dp_accounting.DpEvent:
    from dp_accounting.dp_event import DiscreteLaplaceDpEvent, GaussianDpEvent

    if isinstance(release, Gaussians):
        return GaussianDpEvent(release.noise_multiplier)
    # Noise on whole numbers, P(k) ∝ e^(−ε·|k|), moved by one record: the loss is ε for k ≤ 0 and −ε
    # above, as that of randomized response.
    return DiscreteLaplaceDpEvent(release.epsilon, sensitivity=1)


def _noise_of(release: ExtraRelease) -> float:
    """Return the Gaussian multiplier of equal loss variance; ≤ 0: none."""
    if isinstance(release, Gaussians):
        return release.noise_multiplier
    # The standard deviation of the loss: about ε for ±ε, and 1/z for a Gaussian.
    return 1 / release.epsilon if release.epsilon > 0 else math.nan


def epsilon_of(event: dp_accounting.DpEvent, delta: float, interval: float | None = None) -> float:
    """Return an upper bound on ε of ``event`` at ``delta``.

    Args:
        event: event of the mechanisms, see :func:`event_of`.
        delta: δ of the statement, at least 1e-10.
        interval: width of the PLD's grid of privacy losses. None means :func:`interval_for` of the
            ε that a coarse grid finds.

    Guarantees:
        The result is never below the true ε (pessimistic discretization), except by float64
        rounding. It is ``inf`` where no bound is found.

    Raises:
        AccountingError: δ is out of range, or the accountant returns no number.
    """
    _check_delta(delta)
    if interval is None:
        coarse = epsilon_of(event, delta, _COARSE)
        if not 0 < coarse < math.inf:
            return coarse
        interval = min(_COARSE, interval_for(coarse, _count_of(event)))
    try:
        epsilon = float(_accountant(interval).compose(event).get_epsilon(delta))
    except OverflowError:  # privacy losses beyond e^709: next to no noise
        return math.inf
    if math.isnan(epsilon):
        raise AccountingError("the accountant returns no epsilon for these steps")
    return epsilon


def _count_of(event: dp_accounting.DpEvent) -> int:
    """Return how many releases ``event`` composes."""
    if hasattr(event, "events"):
        return sum(map(_count_of, event.events))
    if hasattr(event, "count"):
        return int(event.count) * _count_of(event.event)
    return 1


def _check_delta(delta: float) -> None:
    if not MIN_DELTA <= delta < 1:
        raise AccountingError("delta must lie in [1e-10, 1): PLD under-reports below")


def interval_for(epsilon: float, steps: int) -> float:
    """Return the PLD interval for a target ε: 1e-4·ε·min(1, 200/√steps).

    It follows ε: at a fixed 1e-3 the bound is useless for small ε and many steps
    (docs/project/decisions.md), and a large ε costs gigabytes. Rounding to the grid adds
    interval²/6 to the variance of each step's loss: at 1e-4·ε, 200,000 steps at ε = 8
    would take 0.4 % too much noise.
    """
    return 1e-4 * epsilon / max(1.0, math.sqrt(steps) / 200)


def calibrate(
    schedule: Schedule, epsilon: float, delta: float, beside: Sequence[ExtraRelease] = ()
) -> float:
    """Return the noise multiplier z that makes ``schedule`` (ε, δ)-DP.

    Args:
        schedule: all steps of the run, full-batch and subsampled ones in any order.
        epsilon: target ε > 0; ``inf`` asks for no noise.
        delta: target δ.
        beside: releases of the run that are not steps; the same (ε, δ) pays for them.

    Returns:
        z ≥ 0, rounded up at the sixth significant digit. It is at most 0.3 % above the least z that
        suffices (for ε from .1 to 8, q from .001 to 1, and up to 200,000 steps).

    Guarantees:
        ``epsilon_of(event_of(schedule, z, beside), delta, interval_for(epsilon, steps)) <=
        epsilon``, where ``steps`` is the number of steps of the schedule. This process computes z:
        no file decides the noise of a site.

    Raises:
        AccountingError: ε or δ is out of range, no noise between 1e-3 and 1e6 fits, or the releases
            beside the training take all of ε.
    """
    if epsilon == math.inf:
        return 0.0
    if not epsilon > 0:
        raise AccountingError("epsilon must be positive")
    _check_delta(delta)
    merged, beside = tuple(merge(schedule)), tuple(release for release in beside if release.count)
    # Verified first: no noise of the steps could bring the cost of the rest below ε.
    if beside:
        alone = epsilon_of(event_of((), 1.0, beside), delta, interval_for(epsilon, 1))
        if not alone < epsilon:
            raise AccountingError(
                "what is released beside the training takes all of this epsilon; give those "
                "releases more noise, or ask for fewer of them"
            )
    return _calibrate(merged, epsilon, delta, beside) if merged else 0.0


@lru_cache(maxsize=16384)
def _calibrate(
    schedule: tuple[Steps, ...], epsilon: float, delta: float, beside: tuple[ExtraRelease, ...]
) -> float:
    return _search(schedule, epsilon, delta, beside)


def _search(
    schedule: tuple[Steps, ...], epsilon: float, delta: float, beside: tuple[ExtraRelease, ...] = ()
) -> float:
    """Find the least sufficient z, from coarse to right grid."""
    # Both grids are pessimistic. The coarse one is cheaper and takes most of the search.
    coarse = _cost_on(10, schedule, epsilon, delta, beside)
    fine = _cost_on(1, schedule, epsilon, delta, beside)
    low, high = _bracket(coarse, epsilon, start=_gaussian_guess(schedule, epsilon, delta, beside))
    low, high = _narrow(coarse, epsilon, low, high, 20 * _TOLERANCE)
    confirmed = _confirm(fine, epsilon, high, _slope(coarse, low, high))
    if confirmed:
        return confirmed
    low, high = _bracket(fine, epsilon, start=high, factor=1 + 4 * _TOLERANCE)
    return _narrow(fine, epsilon, low, high, _TOLERANCE)[1]


def _cost_on(
    coarseness: float,
    schedule: Schedule,
    epsilon: float,
    delta: float,
    beside: Sequence[ExtraRelease],
) -> _Cost:
    """Return z → ε, on the target's grid or a coarser one."""
    interval = coarseness * interval_for(epsilon, sum(steps.count for steps in schedule))
    return cache(lambda z: epsilon_of(event_of(schedule, z, beside), delta, interval))


def _slope(cost: _Cost, low: float, high: float) -> float:
    """Return the cost's slope −d log ε / d log z; NaN: unknown."""
    ends = cost(low), cost(high)
    if not all(0 < end < math.inf for end in ends):
        return math.nan
    return math.log(ends[0] / ends[1]) / math.log(high / low)


def _confirm(cost: _Cost, epsilon: float, z: float, slope: float) -> float:
    """Return a sufficient z by its slope; 0: none found.

    Each cost names the next candidate, for log ε is nearly linear in log z. The slope decides
    which z are tried, and never whether one suffices.
    """
    for _ in range(_CONFIRMATIONS if slope > 0 else 0):
        z = _round_up(z)
        value = cost(z)
        if not 0 < value < math.inf:
            return 0.0
        missing = math.log(value / epsilon) / slope
        if value <= epsilon and missing >= -_TOLERANCE:
            return z
        z *= math.exp(missing + _TOLERANCE / 3)
    return 0.0


def _gaussian_guess(
    schedule: Schedule, epsilon: float, delta: float, beside: Sequence[ExtraRelease]
) -> float:
    """Return a z by the central limit: μ² = Σ count·q²·(e^{1/z²} − 1)."""
    # μ² that (ε, δ) affords, roughly; the bracket corrects a bad guess.
    whole = (epsilon / (math.sqrt(2 * math.log(1 / delta)) + math.sqrt(epsilon))) ** 2
    # Gaussians compose as Σ 1/z². The floor of 1 % below keeps the guess finite.
    spent = sum(release.count / _noise_of(release) ** 2 for release in beside)
    mass = sum(s.count * (s.sampling_prob / s.noise_factor) ** 2 for s in schedule)
    return 1 / math.sqrt(math.log1p(max(whole - spent, 0.01 * whole) / mass))


def _bracket(cost: _Cost, epsilon: float, start: float, factor: float = 1.5) -> tuple[float, float]:
    """Return (too little noise, enough noise) around ``start``, widening by growing factors."""
    # Candidates are rounded before their cost is computed: the z that is returned was itself
    # verified.
    z = _round_up(start)
    enough = cost(z) <= epsilon
    while 1e-3 < z < 1e6:
        other = _round_up(z / factor if enough else z * factor)
        if (cost(other) <= epsilon) != enough:
            return (other, z) if enough else (z, other)
        z, factor = other, factor**2
    raise AccountingError(
        "no noise multiplier between 1e-3 and 1e6 fits this epsilon; "
        "ask for fewer steps or a larger epsilon, or for no privacy with 'inf'"
    )


def _narrow(
    cost: _Cost, epsilon: float, low: float, high: float, tolerance: float
) -> tuple[float, float]:
    """Shrink a bracket to high ≤ low·(1 + tolerance): log ε is nearly linear in log z."""
    cost_low, cost_high = cost(low), cost(high)
    while high > low * (1 + tolerance):
        # The secant in log-log coordinates; half of the bracket where an end has no logarithm.
        share = 0.5
        if math.isfinite(cost_low) and cost_high > 0:
            share = math.log(cost_low / epsilon) / math.log(cost_low / cost_high)
            # Away from both ends, or one end might hardly move.
            share = min(max(share, 0.02), 0.98)
        guess = low * (high / low) ** share
        # A probe on each side: where both are right, they are the new bracket, within the
        # tolerance.
        for z in (_round_up(guess * (1 + tolerance / 3)), _round_up(guess * (1 - tolerance / 3))):
            if not low < z < high:
                continue
            value = cost(z)
            # `high` always costs at most ε, so that the answer errs towards more noise.
            low, cost_low, high, cost_high = (
                (low, cost_low, z, value) if value <= epsilon else (z, value, high, cost_high)
            )
    return low, high


def merge(schedule: Schedule) -> list[Steps]:
    """Return the schedule with equal steps summed: composition has no order.

    Raises:
        AccountingError: a probability outside (0, 1], a negative count, or no factor of the noise.
    """
    counts: dict[tuple[float, float], int] = {}
    for steps in schedule:
        if not 0 < steps.sampling_prob <= 1 or steps.count < 0:
            raise AccountingError(
                "a sampling probability must be in (0, 1], and a count at least 0"
            )
        if not 0 < steps.noise_factor < math.inf:
            raise AccountingError("a factor of the noise must be positive and finite")
        kind = steps.sampling_prob, steps.noise_factor
        counts[kind] = counts.get(kind, 0) + steps.count
    return [
        Steps(q, counts[q, factor], factor) for q, factor in sorted(counts) if counts[q, factor]
    ]


def _round_up(z: float) -> float:
    """Return ``z`` with six significant digits, rounded up (more noise)."""
    digits = _DIGITS - 1 - math.floor(math.log10(z))
    # The 1e-9 absorbs the error of the product: a z of six digits stays the same.
    return math.ceil(z * 10.0**digits - 1e-9) / 10.0**digits
