"""dp-accounting's privacy-loss distributions of Gaussian steps, computed by arrays.

``PLDAccountant`` inverts the privacy loss of a subsampled Gaussian one grid point at a time, in
Python. The subclasses here compute the same numbers for the whole grid at once, and the bounds of
a self-composition by one product a moment; everything else is the library's. Nothing of the library
is changed. A simulation plans many sites by them (``accounting.account_by``); a deployed site plans
by the library alone, and gets the same noise multiplier: it is rounded up at the sixth digit.

Guarantees:
    The numbers are those of the library up to float64 rounding, which the library's own guarantees
    leave out, too: ε is pessimistic beyond it.

Reference: Doroshenko, Ghazi, Kamath, Kumar and Manurangsi, Connect the Dots: Tighter Discrete
Approximations of Privacy Loss Distributions (PoPETs 2022), and the library's supplement for the
inverse of a subsampled loss and equation 5 for the bounds.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.pld_pmf import DensePLDPmf, PLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import (
    AdjacencyType,
    ConnectDotsBounds,
    GaussianPrivacyLoss,
)
from scipy import fft, stats
from scipy.special import log_ndtr, ndtr, ndtri

Floats = npt.NDArray[np.float64]

_LARGE = 30.0
"""Loss from which e^l − 1 = e^l to within 1e-13."""
_LOG_TAIL = -50.0
"""Logarithm of the cut mass of noise on each side."""
_MOMENTS = 20
"""Orders of a self-composition's tail bounds, as in the library."""


class GridGaussianLoss(GaussianPrivacyLoss):  # type: ignore[misc]
    """Privacy loss of a Gaussian on a Poisson sample, at many ε at a time; ADD or REMOVE."""

    def __init__(
        self, standard_deviation: float, sampling_prob: float, adjacency_type: AdjacencyType
    ) -> None:
        """Prepare the loss of a sum with sensitivity 1.

        Args:
            standard_deviation: of the sum's noise, positive.
            sampling_prob: in (0, 1].
            adjacency_type: ADD or REMOVE.
        """
        self._standard_deviation, self._pessimistic_estimate = standard_deviation, True
        self._log_mass_truncation_bound = _LOG_TAIL
        # Not GaussianPrivacyLoss's: it freezes a distribution of SciPy's, a quarter of the time of
        # a cost, of which nothing here needs anything.
        super(GaussianPrivacyLoss, self).__init__(1, False, sampling_prob, adjacency_type)

    @cached_property
    def _gaussian_random_variable(self) -> Any:
        """The distribution that the library's own methods read."""
        return stats.norm(scale=self._standard_deviation)

    def connect_dots_bounds(self) -> ConnectDotsBounds:
        """Return the grid's bounds, without the masses of tails."""
        tail = self._standard_deviation * float(ndtri(0.5 * math.exp(_LOG_TAIL)))
        adds = self.adjacency_type is AdjacencyType.ADD
        low, high = (tail, 1 - tail) if adds else (tail - 1, -tail)
        return ConnectDotsBounds(
            epsilon_upper=self.privacy_loss(low), epsilon_lower=self.privacy_loss(high)
        )

    def deltas(self, epsilons: Floats) -> Floats:
        """Return δ at each ε, in one call.

        Args:
            epsilons: any real numbers, shape ``(m,)``.
        """
        adds, q = self.adjacency_type is AdjacencyType.ADD, self.sampling_prob
        deltas, inside = np.zeros(len(epsilons)), np.ones(len(epsilons), np.bool_)
        if q < 1:
            # −log(1 − q): the loss of ADD never exceeds it, that of REMOVE never falls below its
            # negative.
            most = -math.log1p(-q)
            inside = epsilons < most if adds else epsilons > -most
            if not adds:
                deltas[~inside] = -np.expm1(epsilons[~inside])
        epsilon = epsilons[inside]
        whole = _without_sampling(-epsilon if adds else epsilon, q)
        variance = self.standard_deviation**2
        cutoff = 0.5 + whole * variance if adds else -0.5 - whole * variance
        deltas[inside] = self._upper(cutoff) - np.exp(epsilon + self._log_lower(cutoff))
        return np.clip(deltas, 0, 1)

    def _upper(self, x: Floats) -> Floats:
        above: Floats = ndtr(x / self.standard_deviation)
        if self.adjacency_type is AdjacencyType.REMOVE:
            q, moved = self.sampling_prob, (x + 1) / self.standard_deviation
            above = (1 - q) * above + q * ndtr(moved)
        return above

    def _log_lower(self, x: Floats) -> Floats:
        below: Floats = log_ndtr(x / self.standard_deviation)
        if self.adjacency_type is AdjacencyType.ADD:
            q, moved = self.sampling_prob, (x - 1) / self.standard_deviation
            outside = math.log1p(-q) if q < 1 else -math.inf
            below = np.logaddexp(outside + below, math.log(q) + log_ndtr(moved))
        return below


def _without_sampling(loss: Floats, q: float) -> Floats:
    """Return log(1 + (e^loss − 1)/q), of losses above log(1 − q): that of the Gaussian itself."""
    if q == 1:
        return loss
    with np.errstate(over="ignore"):
        whole: Floats = np.where(
            loss < _LARGE,
            np.log1p(np.expm1(loss) / q),
            loss - math.log(q) + np.log1p(-(1 - q) * np.exp(-np.abs(loss))),
        )
    return whole


class GridPmf(DensePLDPmf):  # type: ignore[misc]
    """Probabilities on a grid of losses; self-composition bounds the tails by arrays."""

    def self_compose(self, num_times: int, tail_mass_truncation: float = 1e-15) -> DensePLDPmf:
        """Return the distribution of the sum of ``num_times`` losses, at least one."""
        low, high = _bounds(self._probs, num_times, tail_mass_truncation)
        length = high - low + 1
        fast = fft.next_fast_len(max(length, len(self._probs)), real=True)
        powers = fft.irfft(fft.rfft(self._probs, fast) ** num_times, fast)
        # The transform wraps around: place ``low`` of the sum lies at low modulo its length.
        probs = np.roll(powers, -low)[:length]
        infinite = tail_mass_truncation - math.expm1(num_times * math.log1p(-self._infinity_mass))
        return DensePLDPmf(
            self._discretization, self._lower_loss * num_times + low, probs, infinite, True
        )


def _bounds(probs: Floats, times: int, mass: float) -> tuple[int, int]:
    """Return the bounds of the sum's loss, by Chernoff."""
    n = len(probs)
    low, high = 0, (n - 1) * times
    room = math.log(2 / mass)
    for sign in (1, -1):
        factor, weighted = np.exp(sign * np.arange(n) / n), probs
        for order in range(1, _MOMENTS + 1):
            weighted = weighted * factor
            moment = float(weighted.sum())
            if not 0 < moment < math.inf:
                continue
            bound = (times * math.log(moment) + room) * n / (sign * order)
            if sign > 0:
                high = min(high, math.ceil(bound))
            else:
                low = max(low, math.floor(bound))
    return low, high


def gaussian(
    noise_multiplier: float, sampling_prob: float, interval: float
) -> PrivacyLossDistribution:
    """Return the losses of one step, for a record more and for one less.

    Args:
        noise_multiplier: of the sum's noise, in units of the sensitivity; positive.
        sampling_prob: in (0, 1].
        interval: width of the grid of losses.
    """

    def pmf(kind: AdjacencyType) -> GridPmf:
        loss = GridGaussianLoss(noise_multiplier, sampling_prob=sampling_prob, adjacency_type=kind)
        return _pmf(loss, interval)

    remove = pmf(AdjacencyType.REMOVE)
    # The losses of a plain Gaussian are symmetric.
    return PrivacyLossDistribution(remove, pmf(AdjacencyType.ADD) if sampling_prob < 1 else None)


def _pmf(loss: GridGaussianLoss, interval: float) -> GridPmf:
    """Return probabilities with the δ of ``loss`` at every grid point, and no less between.

    Those of ``create_pmf_pessimistic_connect_dots_fixed_gap``, without a dictionary of them.
    """
    bounds = loss.connect_dots_bounds()
    low = math.floor(bounds.epsilon_lower / interval)
    high = math.ceil(bounds.epsilon_upper / interval)
    # δ falls with ε; rounding alone may make it rise.
    deltas = np.minimum.accumulate(loss.deltas(np.arange(low, high + 1) * interval))
    changes, step = np.diff(deltas), math.expm1(interval)
    probs = np.empty(len(deltas))
    probs[0] = 1 - deltas[0] + changes[0] / step
    probs[1:-1] = (changes[1:] - changes[:-1] * math.exp(interval)) / step
    probs[-1] = changes[-1] / math.expm1(-interval)
    return GridPmf(interval, low, np.maximum(probs, 0.0), float(deltas[-1]), True)


class GridAccountant(PLDAccountant):  # type: ignore[misc]
    """The library's accountant; the steps of DP-SGD and the search for ε are computed by arrays."""

    _pld: PrivacyLossDistribution

    def __init__(self, interval: float) -> None:
        """Prepare the accounting of add/remove-one on a grid of this width."""
        super().__init__(value_discretization_interval=interval)
        self._nothing, self._interval = self._pld, interval

    def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> Any:
        q, inner = 1.0, event
        if isinstance(event, PoissonSampledDpEvent):
            q, inner = event.sampling_probability, event.event
        is_step = isinstance(inner, GaussianDpEvent) and inner.noise_multiplier > 0 and q > 0
        if not (do_compose and is_step):
            return super()._maybe_compose(event, count, do_compose)
        if q < 1:
            losses = gaussian(inner.noise_multiplier, q, self._interval).self_compose(count)
        else:
            losses = gaussian(inner.noise_multiplier / math.sqrt(count), q, self._interval)
            losses = losses.self_compose(1)
        self._pld = losses if self._pld is self._nothing else self._pld.compose(losses)
        return None

    def get_epsilon(self, target_delta: float) -> float:
        """Return the least ε at δ = ``target_delta``; infinite where there is none."""
        if self._contains_non_dp_event:
            return math.inf
        both = (self._pld._pmf_remove, self._pld._pmf_add)
        return max(_epsilon(pmf, target_delta) for pmf in dict.fromkeys(both) if pmf is not None)

    def deltas(self, epsilons: Floats) -> Floats:
        """Return δ at each ε, of a unit less and of one more, shape ``(2, len(epsilons))``.

        Args:
            epsilons: finite, shape ``(m,)``.
        """
        if self._contains_non_dp_event:
            return np.ones((2, len(epsilons)))
        deltas = []
        for pmf in (self._pld._pmf_remove, self._pld._pmf_add):
            losses, upper, lower = _above(pmf, float(epsilons.min()))
            above = np.searchsorted(-losses, -epsilons, side="left")
            deltas.append(np.clip(upper[above] - np.exp(epsilons) * lower[above], 0, 1))
        return np.array(deltas)


def _above(pmf: PLDPmf, least: float) -> tuple[Floats, Floats, Floats]:
    """Return the losses from the top to ``least``, and the masses U and L above each and all.

    U is the mass under the one distribution, L that under the other; both have an entry more.
    """
    dense = pmf.to_dense_pmf()
    top = dense._lower_loss + len(dense._probs) - 1
    count = min(max(top - math.floor(least / dense._discretization) + 1, 0), len(dense._probs))
    probs = dense._probs[::-1][:count]
    losses = (top - np.arange(count)) * dense._discretization
    upper = dense._infinity_mass + np.concatenate([[0.0], np.cumsum(probs)])
    lower = np.concatenate([[0.0], np.cumsum(probs * np.exp(-losses))])
    return losses, upper, lower


def _epsilon(pmf: PLDPmf, delta: float) -> float:
    """Return ε at δ: log((U − δ)/L), or 0, of the masses U and L of the losses above it.

    ε lies above the first loss from the top that is no larger than log((U − δ)/L) of those above
    it.
    """
    # An ε below 0 counts as 0: losses below 0 do not matter.
    losses, upper, lower = _above(pmf, 0.0)
    if upper[0] > delta:
        return math.inf
    if np.any((upper[1:] >= delta) & (lower[1:] == 0)):
        by_library: float = pmf.get_epsilon_for_delta(delta)  # losses so large that e^−l is 0
        return by_library
    with np.errstate(divide="ignore", invalid="ignore"):
        by_those_above = np.log((upper - delta) / lower)
    enough = np.flatnonzero((lower[:-1] > 0) & (by_those_above[:-1] >= losses))
    last = int(enough[0]) if len(enough) else len(losses)
    return 0.0 if upper[last] <= lower[last] + delta else float(by_those_above[last])
