"""PFA+: private sites send one number, their coordinate along the last step.

Liu, Lou, Xiong, Liu and Meng, Projected Federated Averaging with Heterogeneous Differential Privacy
(VLDB 2021), Algorithms 4 and 5: round 1 is PFA's; from then on a private site sends V[t−1]ᵀu, k
numbers, the server lifts them with V[t−1], combines, and takes V[t] from the public updates. The
paper counts the uplink alone. If the server has to send V, each private site gets k·d numbers more
for the d that it saves, so that nothing is saved in total, and more is spent from k = 2 on.

Here V is not sent. With Algorithm 3 as printed (k = 1, V along the public mean) the global step of
the warm-up round is parallel to V, and a site that kept the model of the round before has it for
nothing: V[t] = (θ[t+1] − θ[t]) / ‖·‖. After the warm-up this V is not Algorithm 5's: the step
w·(public mean) + (1 − w)·s·V[t−1], with w the public share of Σ ε, holds a part of the step before,
as momentum does; a change of the public mean always enters. So there is one direction, of the whole
update, and no setting of PFA's.

Messages: the split is made among all sites that joined, by disclosed ε, as for PFA. Each private
one is sent the SHA-256 of the model that it answered about last; where that is two models back,
because the site was not asked in between, its V is the way from there. A site with a last model
further back, or that lost it in a restart, sends its whole update, which the server projects. There
is a warm-up wherever there is no last step or no public site, as in round 1. A checkpoint holds the
models kept: after a resume the same numbers are asked for, and a site that was started anew for it,
and has lost its model, sends its whole update. Where the public sites asked do not answer, the step
goes along the last ones.

Threat model: an untrusted server to which each site discloses its ε, which the updates' own (ε, δ)
does not cover; an overstated ε makes a site public and lets it choose the direction. Sites project
their noisy update: it costs no budget. Whether a site sends one number or all shows that it was
there in the round before. A number is bounded as a norm is. Weights are WeiAvg's: noise cannot be
estimated from one number, and guards cannot compare numbers.

Known limit: PFA's, and sites that share one direction only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.linalg.projection import project_private
from hdpfl_flower.linalg.step_direction import Direction
from hdpfl_flower.linalg.sums import inner_products, weighted_sum
from hdpfl_flower.models.networks import flatten
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.by_epsilon import epsilon_weights
from strategies.core.base import Declaration, Disclosed, HDPStrategy
from strategies.core.interface import RoundSetup, RoundStart, SiteRequest
from strategies.projection.base import Projected, Projection

log = logging.getLogger("hdpfl.server")

Row = npt.NDArray[np.float32]

KEPT = 2
"""Earlier models from which sites can still project; with four fifths of the sites asked in a
round, one private site in 25 answered about none of them. Each is one more vector of d numbers."""


def combine_along(
    lines: Sequence[Direction | None], rows: Row, weights: npt.NDArray[np.float64]
) -> Row:
    """Return Σ_public wᵢuᵢ + Σ_private wᵢvᵢ(vᵢ·uᵢ), shape ``(d,)`` (Algorithm 5, V = vᵢ).

    A row that was lifted from a number is projected to itself.

    Args:
        lines: of each row the direction to project on; None for a public one.
        rows: float32, shape ``(n, d)``.
        weights: convex, shape ``(n,)``.

    >>> rows = np.array([[1, 1], [2, 0]], np.float32)
    >>> v = Direction(np.array([0, 0], np.float32), np.array([0, 2], np.float32), 2.0)
    >>> combine_along([v, None], rows, np.array([0.5, 0.5]))
    array([1. , 0.5], dtype=float32)
    """
    along: dict[int, tuple[Direction, float]] = {}
    for line, row, weight in zip(lines, rows, weights, strict=True):
        if line is not None:
            # Each direction exists once a round, so its id is a key. The coordinates of its sites
            # add up first: one lift a direction, not one a site.
            _, before = along.get(id(line), (line, 0.0))
            along[id(line)] = line, before + weight * float(line.project(row)[0])
    # Weights of zero, not a choice of rows: that would copy them.
    public = np.array([line is None for line in lines])
    total = weighted_sum(np.where(public, weights, 0), rows)
    for line, coordinate in along.values():
        total += line.lift(coordinate)
    return total


@dataclass(frozen=True)
class PFAPlusState:
    """The state of PFA+.

    Attributes:
        models: digest → the model as a vector, the newest last.
        answered: site → the digests of the last two models that it answered about.
        weighting: the state of the strategy that weighs.
    """

    models: dict[str, Row] = field(default_factory=dict)
    answered: dict[str, tuple[str, ...]] = field(default_factory=dict)
    weighting: Any = None


class PFAPlus(Projected):
    """Weight by ε; each private site sends one number, along the model's last step."""

    name = "pfa-plus"
    settings_type = HDPStrategy.settings_type

    def __init__(self, config: RunConfig, weights: HDPStrategy | None = None) -> None:
        """Prepare for the run of ``config``."""
        super().__init__(config, weights)
        # Both of a round, for every site of it asks.
        self._lines, self._split = _Lines({}), _Split()

    def declare(self) -> Declaration:
        """Declare a projection's facts; a private site sends one number."""
        return replace(super().declare(), whole_updates=False)

    def initial_state(self, disclosed: Disclosed | None = None) -> PFAPlusState:
        """Return no models, no answers."""
        return PFAPlusState(weighting=super().initial_state(disclosed))

    def begin_round(self, state: PFAPlusState, start: RoundStart) -> RoundSetup:
        """Return the state with the last round's answers and this round's model."""
        answered = dict(state.answered)
        if state.models:
            # Sites that answered last round did so about the newest model of the state.
            last = next(reversed(state.models))
            for site in start.answered:
                before = [digest for digest in answered.get(site, ()) if digest != last]
                answered[site] = (*before, last)[-2:]
        models, digest = dict(state.models), wire.model_digest(start.arrays)
        model = models.pop(digest, None)  # after a round without a quorum it is the same
        if model is None:
            model = flatten(server_wire.read_own(start.arrays))
        # After its model is dropped here a site sends its whole update.
        models = {**dict(list(models.items())[-KEPT:]), digest: model}
        return RoundSetup(replace(state, models=models, answered=answered), self.terms)

    def request(
        self, state: PFAPlusState, server_round: int, site: str, kind: str = wire.TRAIN
    ) -> SiteRequest:
        """Request one number of a private site that has an earlier model."""
        if kind != wire.TRAIN:
            return SiteRequest()
        public, lines = self._public(), self._lines_of(state)
        if not public or site in public or lines.last is None:
            return SiteRequest(project=server_wire.WHOLE)
        began = _began(state, site)
        line = lines.since(began) if began else None
        return SiteRequest(project=began if line else server_wire.WHOLE, along=line)

    def combine(
        self, state: PFAPlusState, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[PFAPlusState, Outcome]:
        """Return PFA's step in the warm-up, Algorithm 5's later.

        The journal's ``warm_up`` is 1 in a round of PFA's, and ``sent_numbers`` marks the sites
        that sent one number.
        """
        public_sites, lines = self._public(), self._lines_of(state)
        if not public_sites or lines.last is None:
            inner, outcome = super().combine(state.weighting, updates, noise)
            gauges = {**outcome.gauges, "warm_up": 1.0}
            return replace(state, weighting=inner), replace(outcome, gauges=gauges)
        weights = epsilon_weights(updates.disclosed["epsilon"])
        public = np.array([site in public_sites for site in updates.sites])
        if not public.any():
            log.warning(
                "round %d: no public site answered; the step goes along the last ones",
                updates.server_round,
            )
        numbers = np.zeros(len(public)) if updates.projected is None else updates.projected
        gauges = {
            "public": public.astype(np.float64),
            "subspace_rank": float(not public.all()),
            "warm_up": 0.0,
            "sent_numbers": numbers.astype(np.float64),
        }
        along = [
            # A private site without an earlier model sent its update whole: it goes along the last
            # step.
            None if is_public else lines.since(_began(state, site)) or lines.last
            for site, is_public in zip(updates.sites, public, strict=True)
        ]
        return state, Outcome(combine_along(along, updates.updates, weights), weights, gauges)

    def project(
        self,
        updates: RoundUpdates,
        weights: npt.NDArray[np.float64],
        public: npt.NDArray[np.bool_],
    ) -> Projection:
        """Return the step of the warm-up, Algorithm 3 as printed."""
        rows = updates.updates
        coefficients, directions = project_private(inner_products(rows), weights, public, 1, "mean")
        return weighted_sum(coefficients, rows), directions

    def _public(self) -> frozenset[str]:
        """Return the public sites among those asked in this round."""
        if self._split.asked is not self.asked:
            # The sampler has the ε of all that it drew from.
            public = self.sampler.public_sites({}) if self.asked else frozenset[str]()
            self._split = _Split(self.asked, public & frozenset(self.asked))
        return self._split.public

    def _lines_of(self, state: PFAPlusState) -> _Lines:
        """Return the state's directions, computed once a round."""
        if self._lines.models is not state.models:
            self._lines = _Lines(state.models)
        return self._lines


@dataclass(frozen=True)
class _Split:
    """Public sites of a round.

    Attributes:
        asked: the sites that are asked.
        public: those of them that are public.
    """

    asked: tuple[str, ...] = ()
    public: frozenset[str] = frozenset()


class _Lines:
    """Directions from earlier models to the newest, computed once."""

    def __init__(self, models: dict[str, Row]) -> None:
        self.models = models
        self._found: dict[str, Direction | None] = {}

    @property
    def last(self) -> Direction | None:
        """The direction of the last step, if there was one."""
        return self.since(list(self.models)[-2]) if len(self.models) > 1 else None

    def since(self, began: str) -> Direction | None:
        """Return the direction from the model with this digest, if it is kept."""
        if began not in self._found and began in self.models:
            now = next(reversed(self.models.values()))
            self._found[began] = Direction.between(self.models[began], now)
        return self._found.get(began)


def _began(state: PFAPlusState, site: str) -> str:
    """Return the digest of the newest answered model; empty if there is none."""
    earlier = list(state.models)[:-1]
    return next(
        (digest for digest in reversed(state.answered.get(site, ())) if digest in earlier), ""
    )
