"""Weights of the least mean squared error, state in, state out.

The rule of ``strategies/noise_aware/mmse.py``, which has the threat model and the limits.

FedAvg's step without noise is k̄·Σ qᵢmᵢ: qᵢ are shares of the records, mᵢ a client's mean signal a
local step, k̄ the mean of the local steps. Weights pᵢ in place of qᵢ make an error of two parts.
The noise Σ pᵢ²σ̂ᵢ²/kᵢ² is drawn anew in every round; the bias ‖Σ (pᵢ − qᵢ)mᵢ‖² is the same in all R
rounds of the run, so that it counts R times as much:

    p = argmin  c·R·E‖Σ (pᵢ − qᵢ)mᵢ‖² + d·Σ pᵢ²σ̂ᵢ²/kᵢ²,   p ≥ 0, Σp = 1        step = k̄·Σ pᵢuᵢ/kᵢ

Robust-HDP is the case without a bias and with equal steps; FedAvg is the limit of no noise. No ε is
known, and no label. Four things make it work:

* How far the mᵢ differ is estimated from *sums over the rounds*, without their common part, and
  only the directions above the noise count (``hdpfl_flower/estimators/client_bias.py``): where
  clients do not differ, the weights are those of least noise. In these directions a noisy client is
  taken to differ as the precise ones do: the weights use the expected difference, which noise
  hides.
* The departure of these weights from the target is tested by its sum over the rounds, Σₛ Σ
  (pᵢ − qᵢ)uᵢ (``hdpfl_flower/estimators/departure.py``): where few quiet clients differ from many
  noisy ones, absent ones among them, too little for a test of each client, the weights return to
  the target, and the moves by the other weights are taken back, as if they had never been. The less
  noise is saved, the sooner: weights that save a sixth of the target's noise or less are the
  target.
* A difference is that of *a class row of the softmax head* at a time, and so are the weights
  (``RowWeights``): a noisy client that alone holds a label keeps its part in that label's row, and
  in no other.
* The target is per local step and by records, each clipped to 10 times the median: an overstatement
  gains no more.

c = 20, ``CURVATURE``: the loss is steeper where the data lie, and so the bias, than in the mean
coordinate, where the noise lies. For a linear model the ratio is d·tr(Σ²)/tr(Σ)² of the inputs'
covariance Σ where biases are spread like inputs: 5 for scikit-learn's digits, 26 for MNIST.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.estimators.client_bias import differences, least_error_weights
from hdpfl_flower.estimators.departure import Departure, Parts, block_sizes
from hdpfl_flower.estimators.noise_level import sample_coordinates
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.estimators.temporal import NoiseEstimate
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.local_steps import disclosed_steps
from hdpfl_flower.updates import Outcome, Revision, RoundUpdates, RowWeights
from hdpfl_flower.weighting.by_records import by_rows, record_weights, stretches, weighted_rows
from hdpfl_flower.weighting.claimed_noise import noise_bounds, raise_estimates
from hdpfl_flower.weighting.inverse_variance import (
    RobustHDPSettings,
    RobustHDPState,
    estimate_noise,
    noise_gauges,
)

CURVATURE = 20.0
"""c, the harm of a squared bias over that of equal noise."""
KEPT = 25_000
"""Kept coordinates of a block, drawn by a hash of all updates."""
KEPT_OF_ROWS, LEAST_OF_A_ROW = 50_000, 1_000
"""Kept coordinates of all class rows, and of one row."""

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class UploadSum:
    """Sum of one client's uploads, each divided by its local steps.

    Attributes:
        rounds: uploads so far.
        noise: the sum of their noise variances a coordinate.
        total: their sum at the kept coordinates, float32.
    """

    rounds: float
    noise: float
    total: npt.NDArray[np.float32]


_NO_UPLOADS = UploadSum(0.0, 0.0, np.zeros(1, np.float32))


@dataclass(frozen=True)
class MMSEState(RobustHDPState):
    """The state of MMSE averaging.

    Attributes:
        sums: client → the sum of its uploads.
        coordinates: the kept ones, block after block; None before the first round.
        ends: where each block ends in ``coordinates``.
        departure: from the target's weights, before the last round; None: there is none.
        last: that of the last round, for a server's rate of 1; None: it is in ``departure``.
        kept: the share of the departure that the model has, by block; one number: of all.
        rate: the server's last rate.
    """

    sums: dict[str, UploadSum] = field(default_factory=dict)
    coordinates: Places | None = None
    ends: tuple[int, ...] = ()
    departure: Departure | None = None
    last: Departure | None = None
    kept: Floats = field(default_factory=lambda: np.ones(1))
    rate: float = 1.0

    def so_far(self) -> Departure | None:
        """Return the departure with that of the last round, at the server's last rate."""
        if self.last is None:
            return self.departure
        last = self.last.scaled(self.rate)
        return last if self.departure is None else self.departure.plus(last)

    def moved(self, rate: float, past: float = 1.0) -> MMSEState:
        """Return the state after a step at ``rate``; earlier moves are ``past`` times as long."""
        if self.last is None:
            return self
        before = None if self.departure is None else self.departure.scaled(past)
        state = replace(self, departure=before, rate=rate)
        return replace(state, departure=state.so_far(), last=None)


@dataclass(frozen=True)
class NoiseAndSteps:
    """Noise and steps of a round's clients.

    Attributes:
        variances: σ̂ᵢ² a coordinate, none below its site's bound; ∞ for an update of zeros.
        steps: kᵢ, shape ``(n,)``.
        gauges: of both, for the journal.
    """

    variances: Floats
    steps: Floats
    gauges: dict[str, float | Floats]


def noise_and_steps(
    terms: RunTerms, updates: RoundUpdates, estimate: NoiseEstimate
) -> NoiseAndSteps:
    """Return σ̂ᵢ² and kᵢ of a round's clients.

    The journal's ``steps`` are the kᵢ that were used, ``steps_known`` is 0 where one is not
    the site's own. ``noise_std`` is the estimate as the updates have it; ``noise_bound`` is
    the least that an honest site of the disclosed facts has, 0 where they bound nothing, and
    ``noise_raised`` is 1 where it replaces the estimate.
    """
    steps = disclosed_steps(terms, updates)
    variances = np.square(np.sqrt(estimate.variances))  # of the journal's ``noise_std``
    raised = raise_estimates(variances, noise_bounds(terms, updates))
    gauges = {
        **noise_gauges(estimate),
        **raised.gauges,
        "steps": steps.counts,
        "steps_known": steps.known.astype(np.float64),
    }
    return NoiseAndSteps(raised.variances, steps.counts, gauges)


@dataclass(frozen=True)
class LeastError:
    """Weights of the least mean squared error, by class row.

    Attributes:
        terms: of the run.
        settings: the noise estimator's.
        by_row: whether the weights may differ by row.
        is_final: whether no later round takes back a part of a step.
    """

    terms: RunTerms
    settings: RobustHDPSettings
    by_row: bool = True
    is_final: bool = False

    def initial_state(self) -> MMSEState:
        """Return no uploads and no sums."""
        return MMSEState()

    def combine(self, state: MMSEState, updates: RoundUpdates) -> tuple[MMSEState, Outcome]:
        """Return the step by σ̂ᵢ², kᵢ and the sums so far.

        The journal's ``weights`` are the mean shares over the coordinates, ``target`` is qᵢ,
        ``differing_directions`` those in which clients differ, a block in the mean, and
        ``kept_departure`` the share of p's departure from q that the model keeps, likewise.
        """
        state = state.moved(1.0)  # a part reports no step: its rate counts as 1
        after, estimate = estimate_noise(state, updates, self.settings, self.terms)
        measures = noise_and_steps(self.terms, updates, estimate)
        measured = np.flatnonzero(np.isfinite(measures.variances))
        if not len(measured):  # all are zeros
            weights = np.full(len(updates.sites), 1 / len(updates.sites))
            return after, Outcome(weighted_sum(weights, updates.updates), weights, measures.gauges)
        head = updates.head if self.by_row else None
        steps, of_steps = measures.steps, measures.variances / measures.steps**2
        state = _with_uploads(after, updates, measured, of_steps, steps, head)
        target = np.zeros(len(steps))
        target[measured] = _target(updates, measured)
        shares, directions = self._shares(state, updates, measured, target, of_steps)
        mean_steps = float(steps[measured].mean())
        parts = _parts(head, updates.updates.shape[1])
        noise = np.where(np.isfinite(of_steps), mean_steps**2 * of_steps, 0.0)
        factors = mean_steps * (shares - target) / steps
        noises = _noises(shares, target, noise, parts)
        by_site = dict(zip(updates.sites, factors.T, strict=True))
        step = _sum(head, factors, updates.updates)
        last = Departure(step, *noises, by_site)
        state = replace(state, last=last)
        kept_shares = (state.so_far() or last).shares(parts, self.terms.rounds)
        revision = None if self.is_final else _revision(state, kept_shares, parts)
        state = replace(state, kept=kept_shares)
        # The updates are sums over the local steps: uᵢ has the weight pᵢ/kᵢ.
        shares = (target + kept_shares[:, None] * (shares - target)) / steps
        scales = mean_steps * shares.sum(axis=1)
        shares /= shares.sum(axis=1, keepdims=True)
        gauges = {
            **measures.gauges,
            "target": target,
            "differing_directions": directions,
            "kept_departure": float(kept_shares.mean()),
        }
        update = _sum(head, scales[:, None] * shares, updates.updates)
        if head is None:
            factor, weights = float(scales[0]), shares[0]
            return state, Outcome(update, weights, gauges, factor, revision=revision)
        outcome = by_rows(RowWeights(head, shares, scales), update, gauges)
        return state, replace(outcome, revision=revision)

    def after_step(self, state: MMSEState, moved: Outcome) -> MMSEState:
        """Return the state with the departure as the server's step has moved the model by it."""
        rate, past = (moved.gauges.get(name, 1.0) for name in ("server_rate", "past_scale"))
        return state.moved(float(rate), float(past))

    def _shares(
        self,
        state: MMSEState,
        updates: RoundUpdates,
        measured: Places,
        target: Floats,
        noise: Floats,
    ) -> tuple[Floats, float]:
        """Return p of every block, ``(blocks, n)``, and mean directions."""
        sums = [state.sums[updates.sites[i]] for i in measured]
        rounds = np.array([upload_sum.rounds for upload_sum in sums])
        noises = np.array([upload_sum.noise for upload_sum in sums])
        q, variances = target[measured], noise[measured]
        shares = np.tile(target, (len(state.ends), 1))
        directions = 0
        for block, (start, end) in enumerate(pairwise((0, *state.ends))):
            if start == end:  # a model that is a head alone has no rest
                shares[block] = shares[:block].mean(axis=0)
                continue
            # A block at a time: all sums would be as large as the state.
            totals = np.array([upload_sum.total[start:end] for upload_sum in sums])
            differ = differences(totals, rounds, noises).times(CURVATURE * self.terms.rounds)
            directions += differ.factors.shape[1]
            # Of a block's coordinates only those kept are counted, of the noise as of the bias.
            shares[block, measured] = least_error_weights(q, differ, (end - start) * variances)
        return shares, directions / len(state.ends)


def _with_uploads(
    state: MMSEState,
    updates: RoundUpdates,
    measured: Places,
    noise: Floats,
    steps: Floats,
    head: Head | None,
) -> MMSEState:
    """Return the state with the uploads of the clients ``measured``."""
    if state.coordinates is None:
        blocks = _kept(updates.updates, head)
        ends = tuple(int(end) for end in np.cumsum([len(block) for block in blocks]))
        state = replace(state, coordinates=np.concatenate(blocks), ends=ends)
    sums = dict(state.sums)
    for i in measured:
        site, row = updates.sites[i], updates.updates[i]
        total = row[state.coordinates]
        total /= np.float32(steps[i])
        before = sums.get(site, _NO_UPLOADS)
        total += before.total
        sums[site] = UploadSum(before.rounds + 1, before.noise + float(noise[i]), total)
    return replace(state, sums=sums)


def _parts(head: Head | None, size: int) -> Parts:
    """Return the stretches of a model that have weights of their own."""
    return [(0, slice(0, size))] if head is None else list(stretches(head, size))


def _sum(
    head: Head | None, factors: Floats, updates: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the sum of the updates by the factors of each block, ``(blocks, n)``."""
    if head is None:
        return weighted_sum(factors[0], updates)
    return weighted_rows(RowWeights(head, factors, np.ones(len(factors))), updates)


def _noises(
    shares: Floats, target: Floats, noise: Floats, parts: Parts
) -> tuple[Floats, Floats, Floats]:
    """Return the noise of p − q, q and p, by block, of updates with that noise a coordinate."""
    sizes = block_sizes(parts, len(shares))
    apart, of_target, of_shares = (
        sizes * (np.square(p) @ noise) for p in (shares - target, target, shares)
    )
    return apart, of_target, of_shares


def _revision(state: MMSEState, shares: Floats, parts: Parts) -> Revision | None:
    """Return the move from the shares of the departure that the state has to others."""
    before, departure = np.broadcast_to(state.kept, shares.shape), state.departure
    if departure is None or np.array_equal(before, shares):
        return None
    change, move = shares - before, np.empty_like(departure.total)
    for block, stretch in parts:
        np.multiply(departure.total[stretch], np.float32(change[block]), out=move[stretch])
    means = -block_sizes(parts, len(shares)) * change / len(move)
    taken_back = {site: float(means @ factors) for site, factors in departure.factors.items()}
    return Revision(move, departure.noise_at(before), departure.noise_at(shares), taken_back)


def _kept(updates: npt.NDArray[np.float32], head: Head | None) -> list[Places]:
    """Return the kept coordinates of every block, the rest last."""
    size = updates.shape[1]
    if head is None:
        return [sample_coordinates(updates, KEPT)]
    places: list[list[Places]] = [[] for _ in range(head.classes + 1)]
    of_a_row = min(KEPT, max(KEPT_OF_ROWS // head.classes, LEAST_OF_A_ROW))
    for block, stretch in stretches(head, size):
        most = of_a_row if block < head.classes else KEPT
        places[block].append(stretch.start + sample_coordinates(updates[:, stretch], most))
    return [np.concatenate(of_block) if of_block else np.zeros(0, np.intp) for of_block in places]


def _target(updates: RoundUpdates, measured: Places) -> Floats:
    """Return q of the clients ``measured``, by records or equal."""
    records = updates.disclosed.get("declared-records", np.full(len(updates.sites), np.nan))
    records = records[measured]
    if not np.all(np.isfinite(records) & (records >= 1)):
        return np.full(len(measured), 1 / len(measured))
    return record_weights(records)
