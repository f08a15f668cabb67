"""Guard around a strategy: refuses updates before it receives them, and bounds its weights.

``none``: updates of zeros and exact copies are refused. ``cap``: and no site weighs more than 3/n.
``centred-clipping``: and no update lies further from the last round's aggregate than the median
one. ``evidence``: and a site is refused for what it sent over the rounds, see ``evidence.py``, and
its part in the model since the evidence against it began to rise is taken out again. ``content``:
and for what its class rows say of public records, see ``content.py``; its part in these rows is
taken out whole, and the head is rebuilt from those who stay. Both refuse what ``proof.py`` proves;
the votes of ``evidence`` are no part of ``content``, for under label skew they refuse the honest.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.estimators.temporal import NoiseEstimate, NoiseMemory, TrackOptions, track
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.rounding import FLOAT32, LARGEST_ERROR, LEAST_KNOWN_APART
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.weights import by_rows, part_of, weighted_rows
from strategies.guards.bounds import CAP, FEW, Digests, cap_weights, clip_around, refuse_copies
from strategies.guards.content import (
    REASONS,
    Content,
    ContentState,
    Uploads,
    bounded_precision,
    judge_content,
)
from strategies.guards.evidence import LASTING, Evidence, EvidenceState, weigh_evidence
from strategies.guards.proof import Floor, ProofState, refuse_proven
from strategies.guards.public_records import PublicRecords
from strategies.noise_aware.local_steps import facts_needed, local_steps

Gauges = dict[str, float | npt.NDArray[np.float64]]
Parts = dict[str, npt.NDArray[np.float32]]
Vector = npt.NDArray[np.float64]

MOST_RESTORED = 2.0
"""The parts of those who stay grow by no more when others are taken out of the head."""


@dataclass(frozen=True)
class GuardState:
    """What a guard stores between two rounds.

    Attributes:
        digests: site → the digests of its uploads so far.
        evidence: about the sites so far; empty under another guard than ``evidence``.
        centre: the last aggregate, shape ``(d,)``; None but under ``centred-clipping``.
        given: site → its part in the model since it was first among the ``max-liars`` with most
            evidence against them, times the server's rate, float32, shape ``(d,)``; under
            ``content`` what lies before the head of it.
        content: of the sites so far; empty under another guard than ``content``.
        heads: under ``content``, site → its part in the head so far, times the server's rate,
            float32, shape ``(d − head.start,)``.
        noise: what is kept of the uploads to estimate their noise, under ``content``.
        proof: what is proven, and proofs rest on, under ``content``.
        coefficients: site → by how much its updates were multiplied in ``given``, summed.
        head_coefficients: likewise in ``heads``.
    """

    digests: Digests = field(default_factory=dict)
    evidence: EvidenceState = field(default_factory=EvidenceState)
    centre: npt.NDArray[np.float64] | None = None
    given: Parts = field(default_factory=dict)
    content: ContentState = field(default_factory=ContentState)
    heads: Parts = field(default_factory=dict)
    noise: NoiseMemory = field(default_factory=NoiseMemory)
    proof: ProofState = field(default_factory=ProofState)
    coefficients: dict[str, float] = field(default_factory=dict)
    head_coefficients: dict[str, float] = field(default_factory=dict)


class Guard:
    """The guard of a run: screens the updates of each round and bounds their weights.

    Attributes:
        state: after the last round; a checkpoint stores it.
        refused: site → why, of the round that was screened last.
        taken_back: site → the coefficients of its updates that the last outcome takes out of the
            model again, summed over its rounds: rate × scale × weight, the mean over the
            coordinates.
    """

    def __init__(self, config: RunConfig, *, sums: bool, linear_step: bool = True) -> None:
        """Prepare for a run.

        Args:
            config: names the guard.
            sums: whether the strategy's update is a multiple of the sum of the updates by its
                weights, see ``Declaration``; from another one nothing can be taken out.
            linear_step: whether the server's step is linear, see ``ServerStep``; after another
                one nothing can be taken out either.

        Raises:
            TermsError: a guard that acts on weights, with a strategy whose update is no such sum;
                or one that needs public records, where there are none.
            DataError: the public records cannot be read.
        """
        self.kind: Literal["none", "cap", "centred-clipping", "evidence", "content"]
        self.kind = config.server.guard
        if not sums and self.kind in ("cap", "centred-clipping"):
            raise TermsError(
                f"run config: 'guard': '{self.kind}' bounds a site's weight in a sum, and what "
                f"'strategy' '{config.terms.strategy}' gives is no such sum; take 'evidence' or "
                "'none', or another strategy"
            )
        self._screens = config.terms.noise != "server"
        form = config.terms.upload
        self._settings = Evidence(
            config.server.max_liars,
            config.terms.rounds,
            config.server.noise_floor,
            LARGEST_ERROR[form],
        )
        self._apart = FEW if form == FLOAT32 else LEAST_KNOWN_APART
        judges = self.kind == "content" and self._screens
        self._public = PublicRecords(config) if judges else None
        self._terms = config.terms
        self._uses = facts_needed(config.terms) if judges else frozenset()
        self._own: frozenset[str] = frozenset()
        self._takes_back = self.kind in ("evidence", "content") and sums and linear_step
        self._gauges: Gauges = {}
        self.state = GuardState()
        self.refused: dict[str, str] = {}
        self.taken_back: dict[str, float] = {}

    def welcome(self, optional: frozenset[str], needs: frozenset[str]) -> frozenset[str]:
        """Return the ``optional`` facts of a strategy, and those that the guard uses beside them.

        The guard does not hand its own on: some strategies weigh by whatever is there.
        """
        self._own = self._uses - optional - needs
        return optional | self._own

    def screen(self, updates: RoundUpdates, model: Arrays | None = None) -> RoundUpdates:
        """Return the updates that are let through; ``refused`` has the reasons for the others.

        Args:
            updates: of the round.
            model: from which the sites trained; ``content`` alone needs it.

        The rows that stay are moved together where they lie, for the server holds one copy of the
        updates: after a refusal ``updates`` is not to be used any more.

        With ``noise = server`` all of them: there no client's part may depend on what another one
        sends, and a clipped update of zeros or a copy is no worse than any other.
        """
        if not self._screens:
            return updates
        digests, self.refused = refuse_copies(
            self.state.digests, updates.sites, updates.updates, self._apart
        )
        self.state = replace(self.state, digests=digests)
        self._gauges = {}
        kept = _without(updates, self.refused)
        if self._public is not None and kept.sites:
            kept = self._without_proven(kept)
            return self._judge(kept, self._public, model or {}) if kept.sites else kept
        if self.kind != "evidence" or not kept.sites:
            return kept
        evidence, found, gauges = weigh_evidence(
            self.state.evidence, kept.sites, kept.updates, self._settings, kept.head
        )
        self.state = replace(self.state, evidence=evidence)
        stay = np.array([site not in found for site in kept.sites], dtype=np.bool_)
        self._gauges = {name: values[stay] for name, values in gauges.items()}
        self.refused |= found
        return _without(kept, found)

    def _without_proven(self, updates: RoundUpdates) -> RoundUpdates:
        settings = self._settings
        floor = Floor(settings.rounds, settings.noise_floor, settings.rounding)
        proof, found = refuse_proven(
            self.state.proof, updates.sites, updates.updates, floor, updates.head
        )
        self.state, self.refused = replace(self.state, proof=proof), self.refused | found
        return _without(updates, found)

    def _judge(self, updates: RoundUpdates, records: PublicRecords, model: Arrays) -> RoundUpdates:
        """Return the updates that content speaks for, with the noise that their weights may use.

        A row that is too long is shortened where it lies.
        """
        terms, most = self._terms, self._settings.max_liars
        noise, found = track(
            self.state.noise,
            updates.server_round,
            updates.sites,
            updates.updates,
            TrackOptions(clip_norm=terms.clip_norm),
            updates.head,
        )
        self.state, public = replace(self.state, noise=noise), records.means(model)
        updates = replace(updates, noise=found)
        if public is not None:
            judged = judge_content(
                self.state.content,
                _uploads(updates, found, terms),
                records.head,
                public,
                Content(most, terms.rounds),
            )
            self.state = replace(self.state, content=judged.state)
            stay = np.array([site not in judged.refused for site in updates.sites], dtype=np.bool_)
            for i in np.flatnonzero(stay & (judged.factors < 1)):
                updates.updates[i] *= np.float32(judged.factors[i])
                if updates.squares is not None:
                    updates.squares[i] *= judged.factors[i] ** 2
            self._gauges = {
                "content": judged.scores[stay],
                "content_fits": judged.fits[stay].astype(np.float64),
                "shortened_to": judged.factors[stay],
            }
            self.refused |= judged.refused
            updates = _without(updates, judged.refused)
        others = {f: facts for f, facts in updates.disclosed.items() if f not in self._own}
        updates = replace(updates, disclosed=others)
        suspects = most - int(np.count_nonzero(self.state.content.refused))
        if updates.noise is None or not updates.sites:
            return updates
        estimated = updates.noise.variances
        variances = bounded_precision(estimated, suspects)
        self._gauges["precision_bounded"] = (variances > estimated).astype(np.float64)
        return replace(updates, noise=replace(updates.noise, variances=variances))

    def reweigh(self, outcome: Outcome, kept: RoundUpdates, rate: float = 1.0) -> Outcome:
        """Return the outcome of a strategy on ``kept``, bounded, with the guard's gauges.

        ``rate`` is the server's, by which the outcome will be multiplied.

        The journal's ``weights`` are those that the aggregate was made with; ``clipped_to``, of
        ``centred-clipping``, is the share of each site's distance that was left; ``capped`` is 1
        where a weight was cut; ``taken_back`` counts the refused whose earlier part in the model
        ends with this update.
        """
        gauges, asked = self._gauges, outcome.weights
        self.taken_back = {}
        if self.kind == "cap":
            outcome = _capped(outcome, kept)
        if self.kind == "centred-clipping":
            outcome, gauges["clipped_to"] = self._clipped(outcome, kept)
        if self.kind in ("cap", "centred-clipping"):
            gauges["capped"] = (outcome.weights < asked * (1 - 1e-9)).astype(np.float64)
        update = outcome.update
        if self._takes_back:
            before = self.state.given.keys() | self.state.heads.keys()
            gone = sorted(s for s in before if self.refused.get(s) in (*LASTING, *REASONS))
            # The refused site's earlier part is taken back with this round's step.
            for site in gone:
                # The model moved by it at the rates of those rounds, and moves now at ``rate``.
                self.taken_back[site] = self._coefficient(site, len(update))
                update = update - self._take(site, len(update)) / np.float32(rate)
            if gone:
                gauges["taken_back"] = float(len(gone))
                update = update + self._restored(gone, len(update)) / np.float32(rate)
            self._add_parts(outcome, kept, rate)
            self._add_coefficients(outcome, kept, rate)
        return replace(outcome, update=update, gauges={**outcome.gauges, **gauges})

    def _clipped(self, outcome: Outcome, kept: RoundUpdates) -> tuple[Outcome, Vector]:
        """Return the outcome with capped weights and clipped updates, and the shares left.

        Weights that differ by row count by their means over the coordinates: a distance is the
        whole update's.
        """
        weights, centre = cap_weights(outcome.weights, CAP / len(kept.sites)), self.state.centre
        if centre is None:
            centre = np.zeros(kept.updates.shape[1])
        update, left = clip_around(centre, weights, kept.updates)
        # The next centre is the aggregate before the strategy's scale.
        self.state = replace(self.state, centre=update.astype(np.float64))
        update = np.float32(outcome.scale) * update
        return replace(outcome, update=update, weights=weights, row_weights=None), left

    def _take(self, site: str, size: int) -> npt.NDArray[np.float32]:
        """Return the site's part in the model, shape ``(d,)``, and keep it no longer."""
        given, heads = dict(self.state.given), dict(self.state.heads)
        if self._public is None:
            part = given.pop(site)
        else:
            start, part = self._public.head.start, np.zeros(size, np.float32)
            part[start:] = heads.pop(site, np.float32(0))
            part[:start] = given.pop(site, np.float32(0))
        self.state = replace(self.state, given=given, heads=heads)
        return part

    def _restored(self, gone: Collection[str], size: int) -> npt.NDArray[np.float32]:
        """Return what rebuilds the head from those who stay, shape ``(d,)``; zeros without heads.

        Their parts times Ω/(Ω − ω), with ω of all coefficients Ω those of who is ``gone``: the
        head is then what the weights of those who stay make of them, each as large as if it had
        been one of theirs. At most twice their parts, for their noise grows with them.
        """
        restored, state = np.zeros(size, np.float32), self.state
        coefficients = state.head_coefficients
        stay = {site: head for site, head in state.heads.items() if site not in gone}
        left = sum(coefficients.get(site, 0.0) for site in stay)
        if self._public is None or left <= 0:
            return restored
        taken = sum(coefficients.get(site, 0.0) for site in gone)
        more = min(taken / left, MOST_RESTORED - 1)
        for head in stay.values():
            restored[self._public.head.start :] += np.float32(more) * head
        self.state = replace(
            state,
            heads={site: np.float32(1 + more) * head for site, head in stay.items()},
            head_coefficients={s: (1 + more) * value for s, value in coefficients.items()},
        )
        return restored

    def _coefficient(self, site: str, size: int) -> float:
        """Return by how much the site's updates were multiplied in its part, of ``size`` numbers.

        Where the head's part is of all its rounds and the rest of some, the mean over both.
        """
        state, head = self.state, 0.0
        if self._public is not None:
            head = 1 - self._public.head.start / size
        of_rest = state.coefficients.get(site, 0.0)
        return head * state.head_coefficients.get(site, 0.0) + (1 - head) * of_rest

    def _add_coefficients(self, outcome: Outcome, kept: RoundUpdates, rate: float) -> None:
        """Add this round's coefficients of the parts that can be taken out; drop all others."""
        weights = (rate * outcome.scale * outcome.weights).tolist()
        of_round, state = dict(zip(kept.sites, weights, strict=True)), self.state

        def with_round(before: dict[str, float], parts: Parts) -> dict[str, float]:
            return {site: before.get(site, 0.0) + of_round.get(site, 0.0) for site in parts}

        self.state = replace(
            state,
            coefficients=with_round(state.coefficients, state.given),
            head_coefficients=with_round(state.head_coefficients, state.heads),
        )

    def _add_parts(self, outcome: Outcome, kept: RoundUpdates, rate: float) -> None:
        """Add this round's parts to those that can be taken out.

        The whole of those with most against them, and under ``content`` everybody's in the head.
        Whole parts of as many as may lie, for each is as large as the model, and of no others; a
        site that is not in ``kept`` stays as it is.
        """
        sums = np.broadcast_to(self._gauges.get(self.kind, 0.0), len(kept.sites))
        # Stable: of equal evidence the first sites, in every process the same.
        most = np.argsort(-sums, kind="stable")[: self._settings.max_liars]
        suspects = {kept.sites[i]: i for i in most if sums[i] > 0}
        gone = set(kept.sites) - set(suspects)
        given = {site: part for site, part in self.state.given.items() if site not in gone}
        heads, start = dict(self.state.heads), None
        if self._public is not None:
            start = self._public.head.start
        for i, site in enumerate(kept.sites):
            if site not in suspects and start is None:
                continue
            part = np.float32(rate) * part_of(outcome, i, kept.updates[i])
            if start is not None:
                head = part[start:].copy()
                heads[site] = heads[site] + head if site in heads else head
                part = part[:start]
            if site in suspects and len(part):
                given[site] = part + given[site] if site in given else part
        self.state = replace(self.state, given=given, heads=heads)


def _uploads(updates: RoundUpdates, noise: NoiseEstimate, terms: RunTerms) -> Uploads:
    """Return what content judges; of noise that is only guessed nobody is judged."""
    nothing = np.full(len(updates.sites), np.nan)
    facts = (updates.disclosed.get(fact, nothing) for fact in ("batch-size", "declared-records"))
    found = local_steps(terms, *facts)
    return Uploads(
        updates.sites,
        updates.updates,
        np.where(noise.identified | (noise.pairs > 0), noise.variances, np.inf),
        np.where(found.known, found.counts, np.nan),
    )


def _capped(outcome: Outcome, kept: RoundUpdates) -> Outcome:
    """Return the outcome with no weight above ``CAP``/n, in any class row."""
    limit, rows = CAP / len(kept.sites), outcome.row_weights
    if rows is not None:
        shares = np.array([cap_weights(block, limit) for block in rows.shares])
        rows = replace(rows, shares=shares)
        capped = by_rows(rows, weighted_rows(rows, kept.updates), outcome.gauges)
        return replace(capped, group=outcome.group)
    weights = cap_weights(outcome.weights, limit)
    update = weighted_sum(outcome.scale * weights, kept.updates)
    return replace(outcome, update=update, weights=weights)


def _without(updates: RoundUpdates, refused: dict[str, str]) -> RoundUpdates:
    stay, rows = [i for i, site in enumerate(updates.sites) if site not in refused], updates.updates
    if len(stay) == len(updates.sites):
        return updates
    # Rows move up only, so that none is overwritten before it is read.
    for row, former in enumerate(stay):
        if row != former:
            rows[row] = rows[former]

    def of(column: npt.NDArray[Any] | None) -> Any:
        return None if column is None else column[stay]

    return replace(
        updates,
        sites=tuple(updates.sites[i] for i in stay),
        updates=rows[: len(stay)],
        disclosed={fact: column[stay] for fact, column in updates.disclosed.items()},
        group=of(updates.group),
        chose=of(updates.chose),
        squares=of(updates.squares),
        projected=of(updates.projected),
        noise=updates.noise and _noise_of(updates.noise, stay),
    )


def _noise_of(noise: NoiseEstimate, stay: list[int]) -> NoiseEstimate:
    return NoiseEstimate(
        noise.variances[stay],
        tuple(noise.reasons[i] for i in stay),
        noise.pairs[stay],
        noise.identified[stay],
    )
