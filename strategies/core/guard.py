"""Guard around a strategy: refuses updates before it receives them, and bounds its weights.

``none``: updates of zeros and exact copies are refused. ``cap``: and no site weighs more than 3/n.
``centred-clipping``: and no update lies further from the last round's aggregate than the median
one. ``evidence``: and a site is refused for what it sent over the rounds, see ``evidence.py``, and
its part in the model since the evidence against it began to rise is taken out again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.guards.bounds import CAP, Digests, cap_weights, clip_around, refuse_copies
from strategies.guards.evidence import LASTING, Evidence, EvidenceState, weigh_evidence

Gauges = dict[str, float | npt.NDArray[np.float64]]
Parts = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class GuardState:
    """What a guard stores between two rounds.

    Attributes:
        digests: site → the digests of its uploads so far.
        evidence: about the sites so far; empty under another guard than ``evidence``.
        centre: the last aggregate, shape ``(d,)``; None but under ``centred-clipping``.
        given: site → its part in the model since it was first among the ``max-liars`` with most
            evidence against them, times the server's rate, float32, shape ``(d,)``.
    """

    digests: Digests = field(default_factory=dict)
    evidence: EvidenceState = field(default_factory=EvidenceState)
    centre: npt.NDArray[np.float64] | None = None
    given: Parts = field(default_factory=dict)


class Guard:
    """The guard of a run: screens the updates of each round and bounds their weights.

    Attributes:
        state: after the last round; a checkpoint stores it.
        refused: site → why, of the round that was screened last.
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
            TermsError: a guard that acts on weights, with a strategy whose update is no such sum.
        """
        self.kind: Literal["none", "cap", "centred-clipping", "evidence"] = config.server.guard
        if not sums and self.kind in ("cap", "centred-clipping"):
            raise TermsError(
                f"run config: 'guard': '{self.kind}' bounds a site's weight in a sum, and what "
                f"'strategy' '{config.terms.strategy}' gives is no such sum; take 'evidence' or "
                "'none', or another strategy"
            )
        self._screens = config.terms.noise != "server"
        self._settings = Evidence(
            config.server.max_liars, config.terms.rounds, config.server.noise_floor
        )
        self._takes_back = self.kind == "evidence" and sums and linear_step
        self._gauges: Gauges = {}
        self.state = GuardState()
        self.refused: dict[str, str] = {}

    def screen(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the updates that are let through; ``refused`` has the reasons for the others.

        The rows that stay are moved together where they lie, for the server holds one copy of the
        updates: after a refusal ``updates`` is not to be used any more.

        With ``noise = server`` all of them: there no client's part may depend on what another one
        sends, and a clipped update of zeros or a copy is no worse than any other.
        """
        if not self._screens:
            return updates
        digests, self.refused = refuse_copies(self.state.digests, updates.sites, updates.updates)
        self.state = replace(self.state, digests=digests)
        self._gauges = {}
        kept = _without(updates, self.refused)
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

    def reweigh(self, outcome: Outcome, kept: RoundUpdates, rate: float = 1.0) -> Outcome:
        """Return the outcome of a strategy on ``kept``, bounded, with the guard's gauges.

        ``rate`` is the server's, by which the outcome will be multiplied.

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
            centre = self.state.centre
            if centre is None:
                centre = np.zeros(kept.updates.shape[1])
            update, gauges["clipped_to"] = clip_around(centre, weights, kept.updates)
            # The next centre is the aggregate before the strategy's scale.
            self.state = replace(self.state, centre=update.astype(np.float64))
            update = np.float32(scale) * update
        if self._takes_back:
            given = dict(self.state.given)
            gone = [site for site in given if self.refused.get(site) in LASTING]
            # The refused site's earlier part is taken back with this round's step.
            for site in gone:
                # The model moved by it at the rates of those rounds, and moves now at ``rate``.
                update = update - given.pop(site) / np.float32(rate)
            if gone:
                gauges["taken_back"] = float(len(gone))
            self.state = replace(self.state, given=self._add_suspects(given, outcome, kept, rate))
        return replace(outcome, update=update, weights=weights, gauges={**outcome.gauges, **gauges})

    def _add_suspects(
        self, given: Parts, outcome: Outcome, kept: RoundUpdates, rate: float
    ) -> Parts:
        """Return ``given`` with this round's part of those with most against them, and no others.

        Of as many as may lie, for each part is as large as the model; a site that is not in
        ``kept`` stays as it is.
        """
        sums = np.broadcast_to(self._gauges["evidence"], len(kept.sites))
        # Stable: of equal evidence the first sites, in every process the same.
        most = np.argsort(-sums, kind="stable")[: self._settings.max_liars]
        suspects = {kept.sites[i]: i for i in most if sums[i] > 0}
        gone = set(kept.sites) - set(suspects)
        after = {site: part for site, part in given.items() if site not in gone}
        for site, i in suspects.items():
            part = np.float32(rate * outcome.scale * outcome.weights[i]) * kept.updates[i]
            if site in after:
                part += after[site]
            after[site] = part
        return after


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
    )
