"""Least noise of an honest update, from disclosed facts.

Weights by estimated noise give most to the site that seems quiet. A site that discloses ε, b and N
has claimed a noise: with less of it no accountant could grant it that ε. An estimate below the
bound is raised to it, so that a site gets no more weight than its claim allows.

The multiplier z is bounded from below by tests, not by an accountant. T steps of DP-SGD with
sampling probability q are (ε, δ)-DP only if for every event A of their outputs

    P(A) ≤ e^ε·Q(A) + δ

with P the run with one record of clipped gradient length C, and Q the one without. Two kinds of
events are tried: the sum of the T outputs along that gradient exceeds a threshold, and at least m
of the outputs do. A z at which one event violates this is below every honest one, whichever version
of whichever accountant found it, for more noise is post-processing. Whatever else a plan pays for
(other models, tuning, choices, counts) only raises its z and is left out. δ is not disclosed; a
profile's is below 1/N (``Profile``), which is used.

Trust: the facts are unchecked claims. A liar lowers its bound by a large ε or batch, or by
disclosing nothing. It loses one gain: a strict ε on paper and quiet updates. Strategies that take ε
for a weight (``weiavg``) grant it that influence in the open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.updates import RoundUpdates

Floats = npt.NDArray[np.float64]

CLAIMS = frozenset({"batch-size", "declared-records", "epsilon"})
"""Facts that bound a site's noise, all needed."""
LOWEST, HIGHEST = 1e-2, 1e4
"""Range of the multipliers that are tried."""
_TOLERANCE = 2e-3
"""Factor of the best bound at which the search stops."""
_MOST_STEPS = 10**7
"""Most counted steps: fewer need less noise."""
_MOST_RECORDS = 1e12
"""Most records of a site that are believed."""
_MOST_EPSILON = 500.0
"""Largest ε with a bound: beyond it noise is negligible."""
_SLACK = 1 + 1e-6
"""Rounding of probabilities, tolerated in every event."""
_TAILS = np.linspace(-1.5, 4.5, 49)
"""Thresholds, in standard deviations above the mean under P."""
_HITS = np.linspace(-2.0, 3.0, 11)
"""Thresholds of one output, in standard deviations."""
_BLOCKS = 128


@dataclass(frozen=True)
class Raised:
    """Noise variances of a round's updates, none below its site's bound.

    Attributes:
        variances: per coordinate, ∞ where there is no estimate, shape ``(n,)``.
        bounds: standard deviation a coordinate, 0 where there is none, shape ``(n,)``.
        raised: whether a site's estimate was below its bound, shape ``(n,)``.
    """

    variances: Floats
    bounds: Floats
    raised: npt.NDArray[np.bool_]

    @property
    def gauges(self) -> dict[str, float | Floats]:
        """``noise_bound`` and ``noise_raised`` for the journal, if bounds exist."""
        if not self.bounds.any():
            return {}
        return {"noise_bound": self.bounds, "noise_raised": self.raised.astype(np.float64)}


def raise_estimates(variances: Floats, bounds: Floats) -> Raised:
    """Return ``variances`` raised to ``bounds``²; ∞ stays.

    >>> raise_estimates(np.array([1.0, 9.0, np.inf]), np.array([2.0, 2.0, 2.0])).variances
    array([ 4.,  9., inf])
    """
    least = np.square(bounds)
    return Raised(np.maximum(variances, least), bounds, variances < least)


def noise_bounds(terms: RunTerms, updates: RoundUpdates) -> Floats:
    """Return each site's :func:`least_noise_std`, shape ``(n,)``.

    0 where a fact is missing, and for one number along a direction (``RoundUpdates.projected``),
    which has no noise in most coordinates.
    """
    nothing = np.full(len(updates.sites), np.nan)
    columns = (
        updates.disclosed.get(fact, nothing).tolist()
        for fact in ("epsilon", "batch-size", "declared-records")
    )
    bounds = np.array(
        [
            least_noise_std(terms, updates.server_round, *facts)
            for facts in zip(*columns, strict=True)
        ]
    )
    return bounds if updates.projected is None else np.where(updates.projected, 0.0, bounds)


def least_noise_std(
    terms: RunTerms, server_round: int, epsilon: float, batch_size: float, records: float
) -> float:
    """Return the least standard deviation of an honest update's noise.

    Args:
        terms: the run's.
        server_round: from 1; round 1 may have batches of another size.
        epsilon: ε of the site's run, as it discloses it; NaN: it does not.
        batch_size: b, likewise.
        records: declared N, likewise.

    Returns:
        √k·η·f·z·C/b, f the round's factor (``spend``), and 2z·C with ``noise = client``, z by
        :func:`least_noise_multiplier`; 0, no bound, where a fact is missing or cannot be true,
        where the server adds the noise, where a paper's formula makes it, and where a mask excludes
        coordinates.

    Guarantees:
        Not above the noise of a site with (ε, δ), b and N as disclosed, δ < 1/N, whatever else of
        the run's terms it pays for.

    >>> least_noise_std(RunTerms(rounds=10), 1, math.nan, 32.0, 1000.0)
    0.0
    """
    not_ours = terms.calibration != "pld" or not terms.source.site_plans
    of_part = not terms.work.sends_every_coordinate
    if not_ours or of_part or not 1 <= batch_size <= records <= _MOST_RECORDS:
        return 0.0
    rounds = min(terms.rounds, terms.participations or terms.rounds)
    of_client, full = not terms.source.per_record, terms.work.full_first
    steps = terms.local_steps or math.ceil(terms.local_epochs * records / batch_size)
    # Of round 1 with all records in a batch the later rounds alone are counted, of noise that falls
    # those of the least.
    count = rounds if of_client else steps * min(rounds - full, terms.spend.quietest(rounds))
    multiplier = terms.noise_multiplier
    if not multiplier:
        cap = terms.epsilon_cap or math.inf
        multiplier = least_noise_multiplier(
            1.0 if of_client else batch_size / records,
            min(count, _MOST_STEPS),
            min(epsilon, cap) if epsilon > 0 else math.nan,
            1 / records,
        )
    if of_client:
        return 2 * multiplier * terms.clip_norm
    if full and server_round == 1:
        steps, batch_size = terms.local_epochs, records
    steps, multiplier = terms.work.sent_steps(steps), multiplier * terms.noise_factor(server_round)
    decay = 1 - min(1.0, terms.learning_rate * terms.work.pull_factor)
    return math.sqrt(_geometric(decay**2, steps)) * (
        terms.learning_rate * multiplier * terms.clip_norm / batch_size
    )


def _geometric(ratio: float, count: int) -> float:
    """Return 1 + r + … + r^(count − 1), a pulled step's noise."""
    return float(count) if ratio == 1 else (1 - ratio**count) / (1 - ratio)


@lru_cache(maxsize=1 << 16)
def least_noise_multiplier(sampling_prob: float, steps: int, epsilon: float, delta: float) -> float:
    """Return a z below every (ε, δ)-DP run's, or 0.

    Args:
        sampling_prob: q, with which a record is in a step's batch, in (0, 1].
        steps: T.
        epsilon: ε of all steps together; NaN or ∞: no bound.
        delta: δ, in (0, 1].

    Returns:
        A z at which an event violates (ε, δ), see the file's head; at most ``HIGHEST``.

    >>> least_noise_multiplier(1.0, 1, 1.0, 1e-5) < 3.73  # the least for one Gaussian
    True
    """
    if not (0 < epsilon <= _MOST_EPSILON and steps >= 1 and delta < 1):
        return 0.0
    law = _Sampled(sampling_prob, steps)
    low, high = LOWEST, HIGHEST
    if not law.violates(low, epsilon, delta):
        return 0.0
    if law.violates(high, epsilon, delta):
        return high
    while high > low * (1 + _TOLERANCE):
        middle = math.sqrt(low * high)
        if law.violates(middle, epsilon, delta):
            low = middle
        else:
            high = middle
    # `low` itself violates: rounded down, whichever way the search went.
    return low


class _Sampled:
    """Steps of T with a given record, B ~ Bin(T, q), in blocks."""

    def __init__(self, sampling_prob: float, steps: int) -> None:
        from scipy.special import bdtrc

        self.q, self.steps = sampling_prob, steps
        mean, spread = steps * sampling_prob, math.sqrt(steps * sampling_prob * (1 - sampling_prob))
        edges = np.linspace(max(0.0, mean - 6 * spread), min(steps, mean + 8 * spread + 8), _BLOCKS)
        # The least B of each block stands for all of it: P(A) is rounded down.
        self.counts = np.unique(np.floor(edges))
        above = np.where(self.counts > 0, bdtrc(self.counts - 1, steps, sampling_prob), 1.0)
        self.masses = above - np.append(above[1:], 0.0)
        self.mean, self.variance = mean, spread**2

    def violates(self, multiplier: float, epsilon: float, delta: float) -> bool:
        """Return whether an event proves this noise not (ε, δ)-DP."""
        grown, delta = math.exp(epsilon), delta * _SLACK
        return bool(
            any((p > grown * q * _SLACK + delta).any() for p, q in self._events(multiplier))
        )

    def _events(self, z: float) -> tuple[tuple[Floats, Floats], ...]:
        """Return P(A) and Q(A) of the events."""
        return self._by_sum(z), self._by_count(z)

    def _by_sum(self, z: float) -> tuple[Floats, Floats]:
        from scipy.special import ndtr

        # Without the record N(0, T·z²), with it N(B, T·z²).
        noise = z * math.sqrt(self.steps)
        limits = self.mean + _TAILS * math.sqrt(noise**2 + self.variance)
        with_it = ndtr((self.counts[:, None] - limits) / noise)
        return self.masses @ with_it, ndtr(-limits / noise)

    def _by_count(self, z: float) -> tuple[Floats, Floats]:
        from scipy.special import bdtrc, ndtr

        # An output's likelihood ratio is 1 − q + q·e^((2x − 1)/2z²): it grows from here on.
        starts = 0.5 + z**2 * math.log(1 / self.q) + z * _HITS
        without = ndtr(-starts / z)
        with_it = (1 - self.q) * without + self.q * ndtr((1 - starts) / z)
        mean = self.steps * with_it
        limits = mean + _TAILS[:, None] * np.sqrt(mean * (1 - with_it))
        # At least m outputs, m ≥ 1: bdtrc(m − 1) is P(K > m − 1).
        limits = np.clip(np.ceil(limits), 1, self.steps) - 1
        return (
            np.asarray(bdtrc(limits, self.steps, with_it)),
            np.asarray(bdtrc(limits, self.steps, without)),
        )
