"""The terms' guard around a rule: refuses before the rule sees a round, and bounds what it gives.

``none``: updates of zeros and exact copies are refused. ``cap``: and no site weighs more than 3/n.
``centred-clipping``: and no update lies further from the last round's aggregate than the median
one. ``evidence``: and a site is refused for what it sent over the rounds, see ``evidence.py``, and
what it gave to the model since the evidence against it began to rise is taken out again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from strategies.guards.evidence import LASTING, Evidence, weigh_evidence
from strategies.guards.bounds import CAP, cap_weights, clip_around, refuse_copies
from hdpfl_flower.updates import Outcome, RoundUpdates, weighted_sum

State = dict[str, npt.NDArray[np.float64]]
Gauges = dict[str, float | npt.NDArray[np.float64]]
_CENTRE = "centre"


class Guard:
    """What ``guard`` in the terms asks for.

    Attributes:
        state: what is kept between rounds: arrays by name, so that a checkpoint can hold it.
        given: site → what it gave to the model while it was among the ``max-liars`` with most
            evidence against them, float32, shape ``(d,)``; kept between rounds too.
        refused: site → why, of the round that was screened last.
    """

    def __init__(self, terms: RunTerms, *, sums: bool) -> None:
        """Prepare for a run.

        Args:
            terms: name the guard.
            sums: whether the rule's update is a multiple of the sum of the updates by its
                weights, see ``Rule.is_weighted_sum``; from another one nothing can be taken out.

        Raises:
            TermsError: a guard that acts on weights, with a rule whose update is no such sum.
        """
        self.kind: Literal["none", "cap", "centred-clipping", "evidence"] = terms.guard
        if not sums and self.kind in ("cap", "centred-clipping"):
            raise TermsError(
                f"run config: 'guard': '{self.kind}' bounds a site's weight in a sum, and what "
                f"'strategy' '{terms.strategy}' gives is no such sum; take 'evidence' or 'none', "
                "or another strategy"
            )
        self._settings = Evidence(terms.max_liars, terms.rounds, terms.noise_floor)
        self._takes_back = self.kind == "evidence" and sums
        self._gauges: Gauges = {}
        self.state: State = {}
        self.given: dict[str, npt.NDArray[np.float32]] = {}
        self.refused: dict[str, str] = {}

    def screen(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the updates that the rule may see; ``refused`` says who is not among them.

        The rows that stay are moved together where they lie, for the server holds one copy of the
        updates: after a refusal ``updates`` is not to be used any more.
        """
        self.state, self.refused = refuse_copies(self.state, updates.sites, updates.updates)
        self._gauges = {}
        kept = _without(updates, self.refused)
        if self.kind != "evidence" or not kept.sites:
            return kept
        self.state, found, gauges = weigh_evidence(
            self.state, kept.sites, kept.updates, self._settings, kept.head
        )
        stay = np.array([site not in found for site in kept.sites], dtype=np.bool_)
        self._gauges = {name: values[stay] for name, values in gauges.items()}
        self.refused |= found
        return _without(kept, found)

    def reweigh(self, outcome: Outcome, kept: RoundUpdates) -> Outcome:
        """Return the outcome of a rule on ``kept``, bounded, with the guard's gauges.

        The journal's ``weights`` are those that the aggregate was made with; ``clipped_to``, of
        ``centred-clipping``, is the share of each site's distance that was left; ``taken_back``
        counts the refused whose earlier part in the model ends with this update.
        """
        gauges, scale = self._gauges, outcome.scale
        weights, update = outcome.weights, outcome.update
        if self.kind in ("cap", "centred-clipping"):
            weights = cap_weights(weights, CAP / len(weights))
        if self.kind == "cap":
            update = weighted_sum(scale * weights, kept.updates)
        if self.kind == "centred-clipping":
            centre = self.state.get(_CENTRE, np.zeros(kept.updates.shape[1]))
            update, gauges["clipped_to"] = clip_around(centre, weights, kept.updates)
            self.state = {**self.state, _CENTRE: update.astype(np.float64)}
            update = np.float32(scale) * update
        if self._takes_back:
            gone = [site for site in self.given if self.refused.get(site) in LASTING]
            for site in gone:
                update = update - self.given.pop(site)
            if gone:
                gauges["taken_back"] = float(len(gone))
            self._note_suspects(outcome, kept)
        return replace(outcome, update=update, weights=weights, gauges={**outcome.gauges, **gauges})

    def _note_suspects(self, outcome: Outcome, kept: RoundUpdates) -> None:
        """Add this round's part of those with most against them; forget that of the others.

        Of as many as may lie: what is kept are rows as large as the model.
        """
        sums = np.broadcast_to(self._gauges["evidence"], len(kept.sites))
        most = np.argsort(-sums, kind="stable")[: self._settings.max_liars]
        suspects = {kept.sites[i]: i for i in most if sums[i] > 0}
        for site in set(kept.sites) & set(self.given) - set(suspects):
            del self.given[site]
        for site, i in suspects.items():
            part = np.float32(outcome.scale * outcome.weights[i]) * kept.updates[i]
            if site in self.given:
                part += self.given[site]
            self.given[site] = part


def _without(updates: RoundUpdates, refused: dict[str, str]) -> RoundUpdates:
    stay, rows = [i for i, site in enumerate(updates.sites) if site not in refused], updates.updates
    if len(stay) == len(updates.sites):
        return updates
    for row, former in enumerate(stay):
        if row != former:
            rows[row] = rows[former]
    return replace(
        updates,
        sites=tuple(updates.sites[i] for i in stay),
        updates=rows[: len(stay)],
        disclosed={fact: column[stay] for fact, column in updates.disclosed.items()},
        squares=None if updates.squares is None else updates.squares[stay],
    )
