"""Guard ``evidence``: what each site's updates say against the others', gathered over rounds.

Under differential privacy a single update is nearly all noise, and no norm, distance or median of
one round exposes a liar. But n updates have n(n − 1)/2 inner products. With rows û of unit length,
√d·cos(ûᵢ, ûⱼ) has variance 1 where either is noise, and mean mᵢ·mⱼ/√d, m being a row's
signal-to-noise ratio: positive for two sites that learn the same, negative for a site and a liar.
So every site has a vote on every other, of bounded size, and a share aⱼ ∝ 1/‖uⱼ‖ of at most 2/n:
a site with little noise counts for more, and no site decides alone.

- **Against the rest.** g₋ᵢ = Σ_{j≠i} aⱼûⱼ is the pilot of all but i. zᵢ = ⟨uᵢ, g₋ᵢ⟩ /
  (‖g₋ᵢ‖·‖uᵢ‖/√d) is of variance at most 1 given the others, and of mean ≥ 0 for an honest site.
  Page's CUSUM (Biometrika 1954) Sᵢ ← max(0, Sᵢ − zᵢ − κ) rises for a liar alone. Noise along g₋ᵢ is
  normal, so a single zᵢ beyond its quantile is enough at once. The site with most against it goes
  first and the others are judged again without its votes: a liar has n − f sites against it, an
  honest one f.
- **Likeness.** Where no head separates noise from signal, a pair that is nearer to each other than
  the signal that they share with the rest explains is suspect.
- **Gain.** A site whose step along the pilot is far shorter or longer than the mean of the
  others' would take all the weight of a strategy that weighs by noise, and stop the learning, or
  blow it up.

What ``proof.py`` proves comes first, and is refused however many there are. Votes, gains and
unexplained likeness are suspicion: honest sites can be outvoted, so ``max-liars`` bounds them, and
they never refuse half of those who are left. Where the proven are too many the round has no quorum,
and the model stays as it was.

Known limits: under label skew honest sites disagree, and may be refused; an honest site with 32
times fewer or 64 times more steps than the others, and little noise, is refused for its gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.sums import inner_products
from hdpfl_flower.linalg.types import Matrix, Vector
from strategies.guards.bounds import Rows, cap_weights
from strategies.guards.proof import SHARED, SURE, Floor, ProofState, refuse_proven
from strategies.guards.shared_noise import too_alike

Ints = npt.NDArray[np.int64]

FALSE_ALARMS = 1e-3
"""Chance that a run refuses any honest site for its alignment, where none has any signal at all;
with signal it is smaller."""
SHARE = 2.0
"""No site's votes have more than this many times 1/n of all weight."""
VOTE = 6.0
"""Most that one site says for or against another in a round, in standard deviations."""
SLACK = 1.0
"""κ of the CUSUM: a mean z below −κ is found in the end, and −h − κ at once."""
SHORT, LONG = 32.0, 64.0
"""Steps along the pilot so many times shorter or longer than the mean of the others are refused: a
short step with little noise gets all the weight, a long one is no worse than its length."""
AGAINST = "guard: evidence, it works against the others"
STRENGTH = "guard: evidence, its step is far from the others' in length"
ALIKE = "guard: evidence, more like another site's than the rest explains"
LASTING = (AGAINST, SHARED, STRENGTH, ALIKE)
"""Who is refused for one of these stays refused."""
_PROVEN = 1 + LASTING.index(SHARED)
"""``EvidenceState.refused`` of a site whose refusal the limit does not count."""


@dataclass(frozen=True)
class EvidenceState:
    """The evidence between two rounds, about the m sites that sent an update so far.

    Attributes:
        places: site → its place in the arrays of m rows.
        votes: of the column's site on the row's, since the row's CUSUM was last 0, shape (m, m).
        lengths: rounds since then, shape ``(m,)``.
        gains: sums of the steps along the pilot, of their variances, and rounds, shape (m, 3).
        refused: 0, or 1 + the index of the reason in ``LASTING``, shape ``(m,)``.
        proof: what is proven, and proofs rest on.
    """

    places: dict[str, int] = field(default_factory=dict)
    votes: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    lengths: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    gains: Matrix = field(default_factory=lambda: np.zeros((0, 3)))
    refused: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    proof: ProofState = field(default_factory=ProofState)

    def with_places(self, sites: Sequence[str]) -> EvidenceState:
        """Return a state with places for ``sites`` too; its arrays of m rows are copies."""
        places = dict(self.places)
        for site in sites:
            places.setdefault(site, len(places))
        more = (0, len(places) - len(self.places))
        return replace(
            self,
            places=places,
            votes=np.pad(self.votes, more),
            lengths=np.pad(self.lengths, more),
            gains=np.pad(self.gains, (more, (0, 0))),
            refused=np.pad(self.refused, more),
        )


@dataclass(frozen=True)
class Evidence:
    """What a run's evidence is weighed with.

    Attributes:
        max_liars: f, sites refused at most on suspicion over the run.
        rounds: of the run, for the threshold.
        noise_floor: least noise of an honest update, standard deviation a coordinate; 0: unknown.
        rounding: what updates may hold of rounding, over their norms, see ``LARGEST_ERROR``.
    """

    max_liars: int
    rounds: int
    noise_floor: float = 0.0
    rounding: float = 0.0


def alarm_level(sites: int, rounds: int) -> float:
    """Return h: no CUSUM of honest sites exceeds it, but with probability ``FALSE_ALARMS``.

    exp(−2κ·Σ(z + κ)) is a supermartingale for a z of mean ≥ 0 and variance ≤ 1, so by Ville's
    inequality a CUSUM that starts in a given round ever exceeds h with probability e^(−2κh); the
    union over the sites and starts gives n·T·e^(−2κh), half of the false alarms. Rounded up by the
    union.

    >>> round(alarm_level(20, 12), 2)
    6.54
    """
    return math.log(2 * sites * rounds / FALSE_ALARMS) / (2 * SLACK)


def alarm_at_once(sites: int, rounds: int) -> float:
    """Return the z that an honest site falls below with the other half of ``FALSE_ALARMS``.

    >>> round(alarm_at_once(20, 12), 2)
    -4.6
    """
    from scipy.special import ndtri

    return float(ndtri(FALSE_ALARMS / (2 * sites * rounds)))


def weigh_evidence(
    state: EvidenceState,
    sites: Sequence[str],
    updates: Rows,
    settings: Evidence,
    head: Head | None = None,
) -> tuple[EvidenceState, dict[str, str], dict[str, Vector]]:
    """Return the state after a round, which sites are refused and why, and gauges.

    Args:
        state: after the last round, at first empty; not changed.
        sites: the clients of the rows, by names that stay the same over the run.
        updates: float32, shape ``(n, d)``; no row of zeros, no exact copies.
        settings: see there.
        head: where the softmax layer lies, if there is one.

    Returns:
        The state; site → reason; and ``evidence``, each site's CUSUM over the level of alarm, and
        ``alignment``, its z of this round, each shape ``(n,)``.

    Guarantees:
        At most ``settings.max_liars`` sites are refused on suspicion over the run, and never so
        many that those who are left are no majority of those against whom nothing is proven. Whose
        noise is proven to be another site's is refused, whatever the limit. Who was refused for
        either stays so.
    """
    gram = inner_products(updates)
    floor = Floor(settings.rounds, settings.noise_floor, settings.rounding)
    # Of all updates: the noise of a site that is refused already proves a new one's, too.
    proof, refused = refuse_proven(state.proof, sites, updates, floor, head, gram)
    after = replace(state.with_places(sites), proof=proof)
    at = np.array([after.places[site] for site in sites])
    after.refused[[after.places[site] for site in proof.shared]] = _PROVEN
    refused |= {s: LASTING[int(after.refused[i]) - 1] for s, i in zip(sites, at, strict=True)
                if after.refused[i]}  # fmt: skip
    kept = np.array([site not in refused for site in sites], dtype=np.bool_)
    gauges = {"evidence": np.zeros(len(sites)), "alignment": np.zeros(len(sites))}
    # Of two sites that disagree neither has a majority against it.
    if kept.sum() > 2:
        rows = np.flatnonzero(kept)
        found = _Round(after, at[rows], gram[np.ix_(rows, rows)], updates.shape[1], settings)
        found.judge(head is None)
        gauges["evidence"][rows], gauges["alignment"][rows] = found.sums, found.alignment
        for row in rows[~found.kept]:
            refused[sites[int(row)]] = LASTING[int(after.refused[at[row]]) - 1]
    return after, refused, gauges


class _Round:
    """One round's rows against each other; the arrays of ``state`` are written to."""

    def __init__(
        self,
        state: EvidenceState,
        at: npt.NDArray[np.intp],
        gram: Matrix,
        size: int,
        settings: Evidence,
    ) -> None:
        n = len(at)
        self.state, self.at, self.size = state, at, size
        self.norms = np.sqrt(np.diag(gram))
        self.cosines = gram / np.outer(self.norms, self.norms)
        # No site has a vote on itself.
        np.fill_diagonal(self.cosines, 0)
        self.level = alarm_level(n, settings.rounds)
        self.at_once = alarm_at_once(n, settings.rounds)
        proven = int(np.count_nonzero(state.refused == _PROVEN))
        # Those who are left must be a majority of all against whom nothing is proven.
        most = min(settings.max_liars, (len(state.places) - proven - 1) // 2)
        # Refusals of earlier rounds count against the limit, proven ones do not; never half of a
        # round.
        self.left = min(most + proven - int(np.count_nonzero(state.refused)), (n - 1) // 2)
        self.kept = np.ones(n, dtype=np.bool_)
        self.sums, self.alignment, self.against = np.zeros(n), np.zeros(n), np.zeros(n)

    def judge(self, by_likeness: bool) -> None:
        """Refuse the sites that there is evidence against, and record the round of the rest.

        ``by_likeness``: there is no head, whose sums would separate likeness from shared noise.
        """
        pairs = too_alike(self.cosines, self.size) if by_likeness else []
        alike = {i for pair in pairs for i in pair}
        if len(alike) <= self.left:  # what more sites than may lie have in common is no noise
            for i in sorted(alike):
                self._refuse(i, ALIKE)
        votes = self._weigh()
        # One at a time: without the votes of the worst the others may be cleared.
        while self.left > 0 and self.against.max() > 1:
            self._refuse(int(np.argmax(self.against)), AGAINST)
            votes = self._weigh()
        self._measure_gain()
        self._record(votes)

    def _shares(self) -> Vector:
        """Return aⱼ, shape ``(n,)``: convex, at most ``SHARE``/n, 0 for the refused."""
        shares = np.zeros(len(self.kept))
        shares[self.kept] = bounded_shares(self.norms.min() / self.norms[self.kept])
        return shares

    def _pilots(self, shares: Vector) -> Vector:
        """Return ‖g₋ᵢ‖, from below: as if the others were independent, or more."""
        own = shares**2
        # Σ aⱼ·aₖ·cos(uⱼ, uₖ) over all pairs j ≠ k, less those with i; the diagonal is 0. Shape
        # (n,).
        pairs = shares @ self.cosines @ shares - 2 * shares * (self.cosines @ shares)
        # Never below what independent rows would have: a short pilot would inflate every z.
        independent = np.maximum(own.sum() - own, own.max())
        lengths: Vector = np.sqrt(np.maximum(own.sum() - own + pairs, independent))
        return lengths

    def _weigh(self) -> Matrix:
        """Set the alignments and CUSUMs by the votes of those who are left; return the votes."""
        shares = self._shares()
        # √d·cos has variance 1 where either row is noise; VOTE bounds what one site can say.
        bounded = np.clip(self.cosines * math.sqrt(self.size), -VOTE, VOTE)
        # Row i: the votes on site i; their sum is zᵢ.
        votes: Matrix = bounded * shares / self._pilots(shares)[:, None]
        self.alignment = votes.sum(axis=1)
        counted = self.state.refused == 0
        # Votes of refused sites are left out, those of earlier rounds too.
        before = self.state.votes[self.at] @ counted.astype(np.float64)
        # −Σ (zᵢ + κ) since the CUSUM was last 0, this round included.
        sums = -before - self.alignment - SLACK * (self.state.lengths[self.at] + 1)
        self.sums = np.where(self.kept, np.maximum(sums, 0), 0) / self.level
        at_once = np.where(self.kept, self.alignment / self.at_once, 0)
        self.against = np.maximum(self.sums, at_once)
        return votes

    def _refuse(self, i: int, reason: str) -> None:
        if self.left > 0 and self.kept[i]:
            self.kept[i], self.left = False, self.left - 1
            self.state.refused[self.at[i]] = 1 + LASTING.index(reason)

    def _measure_gain(self) -> None:
        """Refuse whose mean step along the pilot, so far, is out of all proportion."""
        rows, shares = np.flatnonzero(self.kept), self._shares()
        # ⟨uᵢ, g₋ᵢ⟩/‖g₋ᵢ‖, shape (n,). Noise along a given direction has variance ‖uᵢ‖²/d.
        steps = self.norms * (self.cosines @ shares) / self._pilots(shares)
        gains = self.state.gains
        gains[self.at] += np.stack([steps, self.norms**2 / self.size, np.ones_like(steps)], axis=1)
        if len(rows) < 4:
            return
        total, variance, rounds = gains[self.at[rows]].T
        mean, error = total / rounds, np.sqrt(variance) / rounds
        others, doubt = means_of_others(mean, error)
        low, high = others - SURE * doubt, others + SURE * doubt
        # Even the longest step that chance allows is too short; below, even the shortest is too
        # long.
        short = (np.abs(mean) + SURE * error) * SHORT < low
        long = (mean - SURE * error > LONG * high) & (high > 0)
        for i in rows[short | long]:
            self._refuse(int(i), STRENGTH)

    def _record(self, votes: Matrix) -> None:
        """Add the round to the CUSUMs that are above 0, and begin the others anew."""
        rising, at, state = (self.sums > 0) & self.kept, self.at, self.state
        # The round's n × n votes at the places of their sites among all m so far.
        added = np.zeros_like(state.votes)
        added[np.ix_(at, at)] = votes
        state.votes[at] = np.where(rising[:, None], state.votes[at] + added[at], 0)
        state.lengths[at] = np.where(rising, state.lengths[at] + 1, 0)


def bounded_shares(precise: Vector) -> Vector:
    """Return convex shares in proportion to ``precise``, none above ``SHARE``/n."""
    return cap_weights(precise / precise.sum(), SHARE / len(precise))


def means_of_others(mean: Vector, error: Vector) -> tuple[Vector, Vector]:
    """Return for each site the mean of the others and its error, shape ``(n,)``.

    Weighed by 1/error, as votes are; nobody has more than ``SHARE``/n of the weight.

    >>> means_of_others(np.array([1.0, 1, 1, 9]), np.full(4, 0.3))[0].round(2)
    array([3.67, 3.67, 3.67, 1.  ])
    """
    shares = bounded_shares(error.min() / error)
    rest = 1 - shares
    doubt = np.sqrt(np.sum((shares * error) ** 2) - (shares * error) ** 2) / rest
    # The weighted mean without i: (Σ aⱼ·mⱼ − aᵢ·mᵢ) / (1 − aᵢ).
    return (shares @ mean - shares * mean) / rest, doubt
