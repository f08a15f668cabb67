"""FedAvg over noisy updates: equal or record weights.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data
(AISTATS 2017), Algorithm 1. With DP-SGD at the sites this is the DPFedAvg baseline of Robust-HDP
(ICML 2024); with every ε infinite it is plain FedAvg.

Threat model: an untrusted server; it learns nothing but the noisy updates. With
``weights = "records"`` each site discloses the number of records it declared, a constant.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hdpfl_flower.config.settings import Settings
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.by_records import record_weights
from strategies.core.base import Declaration, HDPStrategy, State


class FedAvgSettings(Settings):
    """Setting of FedAvg: the kind of weights."""

    weights: Literal["uniform", "records"] = Field(
        "uniform",
        description="Equal weights (uniform), or weights by the number of records "
        "that the sites declare (records).",
    )


class FedAvg(HDPStrategy):
    """Average all updates with equal weights, or by declared numbers of records."""

    name = "fedavg"
    settings_type = FedAvgSettings
    settings: FedAvgSettings

    def declare(self) -> Declaration:
        """Declare the number of records as a fact if it sets the weights."""
        facts = {"declared-records"} if self.settings.weights == "records" else ()
        # By records: the sites' own weights, as far as their noise allows, are in the sum.
        return Declaration(frozenset(facts), constant_weights=True, sum_alone=not facts)

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the updates' mean, uniform or by declared records."""
        if "declared-records" in updates.disclosed:
            weights = record_weights(updates.disclosed["declared-records"])
        else:
            weights = np.full(len(updates.sites), 1 / len(updates.sites))
        return state, Outcome(weighted_sum(weights, updates.updates), weights)


class GlobalModel(FedAvg):
    """FedAvg as R-DPCFL's baseline: one model for all clients."""

    name = "global"
