"""Base of splittings with one common start: any weights, with proximal maps.

A client's local steps with the ``pull`` λ = 1/η of ``work``, to the model that they start from,
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

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.settings import Settings
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.work import Plain, Work
from strategies.averaging.fedavg import FedAvg
from strategies.core.base import Declaration, HDPStrategy, State, table_of
from strategies.core.interface import RoundSetup, RoundStart
from strategies.splitting.pulls import ProximalSettings, Pulls
from strategies.splitting.scheme import FEDPROX, Scheme


class Splitting(HDPStrategy):
    """Splitting of the clients of another strategy, with β = 1.

    Attributes:
        scheme: the relaxations α, β, γ.
    """

    default_weights = FedAvg
    scheme: ClassVar[Scheme] = FEDPROX
    work: ClassVar[Work] = Plain(pull=0.1)
    settings_type: ClassVar[type[Settings]] = ProximalSettings
    settings: ProximalSettings

    def __init__(self, config: RunConfig, weights: HDPStrategy | None = None) -> None:
        """Prepare for the run of ``config``.

        Raises:
            TermsError: a setting is wrong, or the schedule makes the pull too long in some round.
        """
        super().__init__(config, weights)
        self._pulls = Pulls.read(self.terms, self.settings.prox_schedule, table_of(type(self)))

    def declare(self) -> Declaration:
        """Declare the facts of the weights; a step with αγ ≠ 1 is not convex."""
        offers = super().declare()
        return replace(offers, is_convex=offers.is_convex and self._scale == 1)

    def begin_round(self, state: State, start: RoundStart) -> RoundSetup:
        """Return the terms with the round's pull."""
        return RoundSetup(state, self._pulls.at(self.terms, start.server_round))

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return αγ times the aggregate of the strategy that weighs."""
        state, outcome = self.weights.combine(state, updates, noise)
        scale = self._scale
        if scale == 1:
            return state, outcome
        update = np.float32(scale) * outcome.update
        return state, replace(outcome, update=update, scale=scale * outcome.scale)

    @property
    def _scale(self) -> float:
        """Factor αγ of the model's move along the mean update."""
        return self.scheme.alpha * self.scheme.gamma
