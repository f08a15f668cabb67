"""Guard ``content``: refuses proven liars, and sites by their class rows.

See ``content.py`` for the judgement by public records. The part of a refused site in the class rows
is taken out whole, and the head is rebuilt from the sites that stay, where the strategy's steps are
final and the server's linear.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.estimators.temporal import NoiseEstimate, NoiseMemory, TrackOptions, track
from hdpfl_flower.local_steps import facts_needed, local_steps
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.by_records import part_of
from strategies.guards.content import (
    REASONS,
    Content,
    ContentState,
    Uploads,
    bounded_precision,
    judge_content,
)
from strategies.guards.guard import ProvenState, ProvingGuard, without
from strategies.guards.proof import SHARED
from strategies.guards.public_records import PublicRecords

Parts = dict[str, npt.NDArray[np.float32]]

MOST_RESTORED = 2.0
"""Largest growth of the remaining sites' parts of the head."""


@dataclass(frozen=True)
class ByContentState(ProvenState):
    """State of the guard ``content`` between two rounds.

    Attributes:
        given: site → its part before the head since it was first among the ``max-liars`` with the
            largest scores, times the server's rate, float32, shape ``(head.start,)``.
        content: of the sites so far.
        heads: site → its part in the head so far, times the server's rate, float32, shape
            ``(d − head.start,)``.
        noise: memory of the uploads, to estimate their noise.
        coefficients: site → by how much its updates were multiplied in ``given``, summed.
        head_coefficients: likewise in ``heads``.
    """

    given: Parts = field(default_factory=dict)
    content: ContentState = field(default_factory=ContentState)
    heads: Parts = field(default_factory=dict)
    noise: NoiseMemory = field(default_factory=NoiseMemory)
    coefficients: dict[str, float] = field(default_factory=dict)
    head_coefficients: dict[str, float] = field(default_factory=dict)


class ByContent(ProvingGuard):
    """Guard ``content``: proofs, judgement by public records, parts taken back."""

    def __init__(self, config: RunConfig, *, sums: bool, linear_step: bool = True) -> None:
        """Prepare for a run; see :class:`~strategies.guards.guard.Guard`.

        Raises:
            TermsError: the run has no public records, or its model no head to judge.
            DataError: the public records cannot be read.
        """
        self.state: ByContentState
        super().__init__(config, sums=sums, linear_step=linear_step)
        self._most = config.server.max_liars
        self._public = PublicRecords(config) if self._screens else None
        self._terms = config.terms
        self._uses = facts_needed(config.terms) if self._screens else frozenset()
        self._own: frozenset[str] = frozenset()
        self._takes_back = self._screens and sums and linear_step
        self.state = ByContentState()

    def welcome(self, optional: frozenset[str], needs: frozenset[str]) -> frozenset[str]:
        """Return the ``optional`` facts, and those of local steps."""
        self._own = self._uses - optional - needs
        return optional | self._own

    def screen(self, updates: RoundUpdates, model: Arrays | None = None) -> RoundUpdates:
        """Return the updates that neither proofs nor their content speak against."""
        accepted = super().screen(updates, model)
        accepted = self._without_proven(accepted)
        if self._public is not None and accepted.sites:
            return self._judge(accepted, self._public, model or {})
        return accepted

    def _judge(self, updates: RoundUpdates, records: PublicRecords, model: Arrays) -> RoundUpdates:
        """Return the accepted updates, with the noise for their weights.

        A row that is too long is shortened where it lies.
        """
        terms, most = self._terms, self._most
        noise, estimate = track(
            self.state.noise,
            updates.server_round,
            updates.sites,
            updates.updates,
            TrackOptions(clip_norm=terms.clip_norm, noise_factor=terms.noise_factor),
            updates.head,
        )
        self.state, public = replace(self.state, noise=noise), records.means(model)
        updates = replace(updates, noise=estimate)
        if public is not None:
            judged = judge_content(
                self.state.content,
                _uploads(updates, estimate, terms),
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
            updates = without(updates, judged.refused)
        others = {f: facts for f, facts in updates.disclosed.items() if f not in self._own}
        updates = replace(updates, disclosed=others)
        suspects = most - int(np.count_nonzero(self.state.content.refused))
        if updates.noise is None or not updates.sites:
            return updates
        estimated = updates.noise.variances
        variances = bounded_precision(estimated, suspects)
        self._gauges["precision_bounded"] = (variances > estimated).astype(np.float64)
        return replace(updates, noise=replace(updates.noise, variances=variances))

    def reweigh(self, outcome: Outcome, accepted: RoundUpdates, rate: float = 1.0) -> Outcome:
        """Return the outcome less the refused sites' parts."""
        self.taken_back, gauges = {}, self._gauges
        update = outcome.update
        if self._takes_back and self._public is not None:
            start = self._public.head.start
            before = self.state.given.keys() | self.state.heads.keys()
            gone = sorted(s for s in before if self.refused.get(s) in (SHARED, *REASONS))
            # The refused site's earlier part is taken back with this round's step.
            for site in gone:
                # The model moved by it at the rates of those rounds, and moves now at ``rate``.
                self.taken_back[site] = self._coefficient(site, 1 - start / len(update))
                update = update - self._take(site, start, len(update)) / np.float32(rate)
            if gone:
                gauges["taken_back"] = float(len(gone))
                update = update + self._restored(gone, start, len(update)) / np.float32(rate)
            self._add_parts(outcome, accepted, start, rate)
            self._add_coefficients(outcome, accepted, rate)
        return super().reweigh(replace(outcome, update=update), accepted, rate)

    def _take(self, site: str, start: int, size: int) -> npt.NDArray[np.float32]:
        """Remove and return the site's part in the model, shape ``(d,)``."""
        given, heads = dict(self.state.given), dict(self.state.heads)
        removed = np.zeros(size, np.float32)
        removed[start:] = heads.pop(site, np.float32(0))
        removed[:start] = given.pop(site, np.float32(0))
        self.state = replace(self.state, given=given, heads=heads)
        return removed

    def _restored(self, gone: Collection[str], start: int, size: int) -> npt.NDArray[np.float32]:
        """Return the update that rebuilds the head, shape ``(d,)``.

        The remaining sites' parts times Ω/(Ω − ω), with ω of all coefficients Ω those of ``gone``:
        the head is then the weighted sum of the remaining sites alone, with the weights of the
        others shared among them. At most twice their parts, for their noise grows with them.
        """
        restored, state = np.zeros(size, np.float32), self.state
        coefficients = state.head_coefficients
        stay = {site: head for site, head in state.heads.items() if site not in gone}
        left = sum(coefficients.get(site, 0.0) for site in stay)
        if left <= 0:
            return restored
        taken = sum(coefficients.get(site, 0.0) for site in gone)
        more = min(taken / left, MOST_RESTORED - 1)
        for head in stay.values():
            restored[start:] += np.float32(more) * head
        self.state = replace(
            state,
            heads={site: np.float32(1 + more) * head for site, head in stay.items()},
            head_coefficients={s: (1 + more) * value for s, value in coefficients.items()},
        )
        return restored

    def _coefficient(self, site: str, head: float) -> float:
        """Return by how much the site's updates were multiplied in its part.

        The mean over the coordinates, of which the head has the share ``head``.
        """
        of_head = self.state.head_coefficients.get(site, 0.0)
        return head * of_head + (1 - head) * self.state.coefficients.get(site, 0.0)

    def _add_coefficients(self, outcome: Outcome, accepted: RoundUpdates, rate: float) -> None:
        """Add this round's coefficients of removable parts; drop others."""
        weights = (rate * outcome.scale * outcome.weights).tolist()
        of_round, state = dict(zip(accepted.sites, weights, strict=True)), self.state

        def with_round(before: dict[str, float], parts: Parts) -> dict[str, float]:
            return {site: before.get(site, 0.0) + of_round.get(site, 0.0) for site in parts}

        self.state = replace(
            state,
            coefficients=with_round(state.coefficients, state.given),
            head_coefficients=with_round(state.head_coefficients, state.heads),
        )

    def _add_parts(self, outcome: Outcome, accepted: RoundUpdates, start: int, rate: float) -> None:
        """Add this round's parts to those that can be taken out.

        Every site's in the head; before it those of the sites with the largest scores, as many as
        may lie, for each is as large as the model. A site not in ``accepted`` stays.
        """
        sums = np.broadcast_to(self._gauges.get("content", 0.0), len(accepted.sites))
        # Stable: of equal scores the first sites, in every process the same.
        most = np.argsort(-sums, kind="stable")[: self._most]
        suspects = {accepted.sites[i]: i for i in most if sums[i] > 0}
        gone = set(accepted.sites) - set(suspects)
        given = {site: in_model for site, in_model in self.state.given.items() if site not in gone}
        heads = dict(self.state.heads)
        for i, site in enumerate(accepted.sites):
            in_model = np.float32(rate) * part_of(outcome, i, accepted.updates[i])
            head = in_model[start:].copy()
            heads[site] = heads[site] + head if site in heads else head
            if site in suspects and start:
                body = in_model[:start]
                given[site] = body + given[site] if site in given else body
        self.state = replace(self.state, given=given, heads=heads)


def _uploads(updates: RoundUpdates, noise: NoiseEstimate, terms: RunTerms) -> Uploads:
    """Return the judged updates: those of estimated noise."""
    nothing = np.full(len(updates.sites), np.nan)
    facts = (updates.disclosed.get(fact, nothing) for fact in ("batch-size", "declared-records"))
    steps = local_steps(terms, *facts)
    return Uploads(
        updates.sites,
        updates.updates,
        np.where(noise.identified | (noise.pairs > 0), noise.variances, np.inf),
        np.where(steps.known, steps.counts, np.nan),
    )
