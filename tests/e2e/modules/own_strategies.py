"""A strategy of a user's own, importable at the server alone: elsewhere the import fails."""

from __future__ import annotations

import sys

if "client_app.app" in sys.modules and "server_app.run.rounds" not in sys.modules:
    raise ImportError("a site imported a strategy of the server's user")

import numpy as np

from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import HDPStrategy, State


class FirstTwice(HDPStrategy):
    """An average in which the first client counts twice."""

    name = "first-twice"

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        weights = np.ones(len(updates.sites))
        weights[0] = 2.0
        weights /= weights.sum()
        return state, Outcome(weighted_sum(weights, updates.updates), weights)
