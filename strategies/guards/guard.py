"""Guard around a strategy: refuses updates, may bound weights.

A class a value of the key ``guard``, each with its own state: :class:`Guard` is ``none``, and
refuses updates of zeros and exact copies; ``cap.py`` and ``by_content.py`` refuse these too.
``registry.py`` makes the guard of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.estimators.temporal import NoiseEstimate
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.guards.bounds import Digests, refuse_copies
from strategies.guards.proof import Floor, ProofState, refuse_proven

Gauges = dict[str, float | npt.NDArray[np.float64]]


@dataclass(frozen=True)
class CopiesState:
    """State of the guard ``none`` between two rounds.

    Attributes:
        digests: site → the digests of its uploads so far.
    """

    digests: Digests = field(default_factory=dict)


@dataclass(frozen=True)
class ProvenState(CopiesState):
    """State of a guard that refuses proven liars.

    Attributes:
        proof: the proofs, and the data that they rest on.
    """

    proof: ProofState = field(default_factory=ProofState)


BY_SITE: Mapping[str, str] = {
    "one_model": "leave it out",
    "common_start": "leave it out, or take 'fedprox'",
    "fresh_noise": "leave it out",
    "whole_updates": "leave it out, or take 'pfa'",
}
"""Needs of guards that compare or bound the sites' steps."""


class Guard:
    """Guard ``none``: refuses zeros and exact copies alone.

    Attributes:
        needs: properties that the strategy must offer, each with the remedy.
        state: after the last round; a checkpoint stores it.
        refused: site → why, of the round that was screened last.
        taken_back: site → the coefficients of its updates that the last outcome takes out of the
            model again, summed over its rounds: rate × scale × weight, the mean over the
            coordinates.
    """

    needs: ClassVar[Mapping[str, str]] = {}
    state: Any

    def __init__(self, config: RunConfig, *, sums: bool, linear_step: bool = True) -> None:
        """Prepare for a run.

        Args:
            config: of the run.
            sums: whether the strategy's update is a multiple of the sum of the updates by its
                weights, see ``Declaration``; from another one nothing can be taken out.
            linear_step: whether the server's step is linear, see ``ServerStep``, and the strategy's
                final, see ``Declaration``; after another one nothing can be taken out either.
        """
        del sums, linear_step
        self._screens = config.terms.noise != "server"
        self._gauges: Gauges = {}
        self.state = CopiesState()
        self.refused: dict[str, str] = {}
        self.taken_back: dict[str, float] = {}

    def welcome(self, optional: frozenset[str], needs: frozenset[str]) -> frozenset[str]:
        """Return the ``optional`` facts and those of the guard.

        The guard does not hand its own on: some strategies weigh by whatever is there.
        """
        del needs
        return optional

    def screen(self, updates: RoundUpdates, model: Arrays | None = None) -> RoundUpdates:
        """Return the accepted updates; ``refused`` has reasons for others.

        Args:
            updates: of the round.
            model: from which the sites trained; ``content`` alone needs it.

        The rows that stay are moved together where they lie, for the server holds one copy of the
        updates: after a refusal ``updates`` is not to be used any more.

        With ``noise = server`` all of them: there no client's part may depend on another one's
        update, and a clipped update of zeros or a copy is no worse than any other.
        """
        del model
        if not self._screens:
            return updates
        digests, self.refused = refuse_copies(self.state.digests, updates.sites, updates.updates)
        self.state = replace(self.state, digests=digests)
        self._gauges = {}
        return without(updates, self.refused)

    def reweigh(self, outcome: Outcome, accepted: RoundUpdates, rate: float = 1.0) -> Outcome:
        """Return the outcome on ``accepted``, bounded, with gauges.

        ``rate`` is the server's, by which the outcome will be multiplied.

        The journal's ``weights`` are those that the aggregate was made with; ``capped`` is 1 where
        a weight was cut; ``taken_back`` counts the refused sites that lose their earlier part in
        the model with this update.
        """
        del accepted, rate
        return replace(outcome, gauges={**outcome.gauges, **self._gauges})


class ProvingGuard(Guard):
    """Base of guards that also refuse by ``proof.py``."""

    needs = BY_SITE

    def __init__(self, config: RunConfig, *, sums: bool, linear_step: bool = True) -> None:
        """Prepare for a run; see :class:`Guard`."""
        super().__init__(config, sums=sums, linear_step=linear_step)
        self._floor = Floor(config.terms.rounds, config.server.noise_floor)
        self.state = ProvenState()

    def _without_proven(self, updates: RoundUpdates) -> RoundUpdates:
        if not (self._screens and updates.sites):
            return updates
        proof, proven = refuse_proven(
            self.state.proof, updates.sites, updates.updates, self._floor, updates.head
        )
        self.state, self.refused = replace(self.state, proof=proof), self.refused | proven
        return without(updates, proven)


def without(updates: RoundUpdates, refused: dict[str, str]) -> RoundUpdates:
    """Return the updates without the ``refused``, in place."""
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
