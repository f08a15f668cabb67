"""Base of splittings whose clients all start from one model: any weights, with proximal maps.

A client's local steps with ``prox-lambda`` = λ = 1/η, pulled to the model that they start from,
compute its proximal map P: z ↦ argmin fᵢ(x) + ‖x − z‖²/(2η), as closely as the steps are many. So a
client's update is P(u) − u. With β = 1 of ``scheme.py`` all clients agree after every round, and
the model moves by αγ times the weighted mean of the updates.

``prox-schedule`` is that of η: round e + 1 has the pull λ/factor, a term computed from the round. A
pull is no part of a site's plan, for it is post-processing and costs no privacy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.settings import Settings
from hdpfl_flower.config.terms import AUTO, RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.averaging.fedavg import FedAvg
from strategies.core.base import HDPStrategy
from strategies.core.interface import Declaration, Disclosed, RoundPlan, RoundStart, State
from strategies.server_step.schedule import Schedule, read_schedule
from strategies.splitting.scheme import FEDPROX, Scheme

PULL = 0.1
"""λ where the terms leave it open."""


class ProximalSettings(Settings):
    """How the proximal maps change over the rounds."""

    prox_schedule: str = Field(
        "constant",
        description="Factor of eta = 1/prox-lambda in round e + 1: constant, log "
        "(1/(log10(e + 1) + 1)), sqrt (1/sqrt(e + 1)), inverse (1/(e + 1)), linear (1 - e/E) or "
        "halved:T (every T rounds); the pull of the round is prox-lambda over it.",
    )


class Splitting(HDPStrategy):
    """A splitting of the clients of ``weighting``; this class is that of β = 1.

    Attributes:
        weighting: the strategy whose weights are those of the mean over clients.
        own_starts: whether every client starts from a model of its own.
    """

    weighting: ClassVar[type[HDPStrategy]] = FedAvg
    own_starts: ClassVar[bool] = False
    settings_type: ClassVar[type[Settings]] = ProximalSettings
    settings: ProximalSettings

    def __init__(self, config: RunConfig) -> None:
        """Prepare for the run of ``config``.

        Raises:
            TermsError: a setting is wrong, or the schedule makes the pull too long in some round.
        """
        self._weighting = self.weighting(config)
        super().__init__(config)
        self._weighting.sampler = self.sampler  # who is public is one matter
        # Of round 1: later ``self.terms`` holds the pull of the last round.
        self._pull = self.terms.pull
        key = f"{self.settings_table()}.prox-schedule"
        self._schedule = read_schedule(self.settings.prox_schedule, self.terms.rounds, key)
        check_pulls(self.terms, self._schedule, key)

    @property
    def scheme(self) -> Scheme:
        """The relaxations α, β, γ."""
        return FEDPROX

    # --- the hooks of HDPStrategy --------------------------------------------------------------

    def declare(self) -> Declaration:
        """Declare the facts of the strategy that weighs; a step of αγ ≠ 1 leaves the clients'."""
        inner = self._weighting.declare()
        return replace(inner, is_convex=inner.is_convex and self._scale == 1)

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Return the terms with λ, where it is open; an explicit 0 is no pull."""
        if terms.prox_lambda == AUTO:
            terms = terms.updated(prox_lambda=PULL)
        return super().complete_terms(cls.weighting.complete_terms(terms))

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms as the strategy that weighs proposes them."""
        return self._weighting.propose(terms, disclosed)

    def initial_state(self, disclosed: Disclosed | None = None) -> State:
        """Return the state of the strategy that weighs."""
        return self._weighting.initial_state(disclosed)

    def begin_round(self, state: State, start: RoundStart) -> RoundPlan:
        """Return the terms with the round's pull."""
        pull = self._pull / self._schedule(start.server_round)
        terms = self.terms
        if pull != terms.pull:
            terms = terms.updated(prox_lambda=pull)
        return RoundPlan(state, terms)

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return αγ times the aggregate of the strategy that weighs."""
        state, outcome = self._weighting.combine(state, updates, noise)
        scale = self._scale
        if scale == 1:
            return state, outcome
        update = np.float32(scale) * outcome.update
        return state, replace(outcome, update=update, scale=scale * outcome.scale)

    @property
    def _scale(self) -> float:
        """αγ, by which the model moves along the mean of the updates."""
        return self.scheme.alpha * self.scheme.gamma


def check_pulls(terms: RunTerms, schedule: Schedule, key: str) -> None:
    """Refuse a schedule that makes the pull too long in some round, or has none to change.

    Args:
        terms: with the pull of round 1.
        schedule: of η = 1/λ.
        key: whose value it is, for messages.

    Raises:
        TermsError: names the first such round.
    """
    if schedule.text == "constant":
        return
    if not terms.pull:
        raise TermsError(
            f"run config: '{key}' is '{schedule.text}', and 'prox-lambda' is 0: there is no pull "
            "to change; set it, or leave the schedule out"
        )
    for server_round in range(1, terms.rounds + 1):
        pull = terms.pull / schedule(server_round)
        if pull * terms.learning_rate > 1:
            raise TermsError(
                f"run config: '{key}' = '{schedule.text}' makes 'prox-lambda' {pull:g} in round "
                f"{server_round}, and with 'learning-rate' {terms.learning_rate:g} a step would go "
                "beyond the model that it is pulled to; lower one of them, or the 'rounds'"
            )
