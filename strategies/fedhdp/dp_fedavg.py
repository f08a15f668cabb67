"""FedHDP's baselines: DP-FedAvg at the strictest ε, and FedAvg without privacy.

McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent Language Models (ICLR
2018) with the adaptive clipping of Andrew et al. (NeurIPS 2021), as FedHDP (TMLR) compares itself
with: one level with the ε of the strictest client, opted-out ones included.

Threat model: see ``level_averaging.py``. Every site discloses its ε.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hdpfl_flower.config.terms import RunTerms
from strategies.core.base import Declaration, Disclosed
from strategies.fedhdp.level_averaging import Floats, Ints, LevelAveraging, Levels


class DPFedAvg(LevelAveraging):
    """FedAvg at the strictest disclosed ε, the baseline of FedHDP."""

    name = "dp-fedavg"

    def menu(self, epsilons: Floats) -> tuple[float, ...]:
        """Return the strictest ε alone."""
        return (float(epsilons.min()),)

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms; noise at the sites is capped at the strictest ε."""
        terms = super().propose(terms, disclosed)
        strictest = min(float(facts["epsilon"]) for facts in disclosed.values())
        if not terms.source.site_plans or math.isinf(strictest):
            return terms
        # A cap of 0 means none; the lower of two caps counts.
        return terms.updated(epsilon_cap=min(terms.epsilon_cap or math.inf, strictest))


class NonPrivate(LevelAveraging):
    """FedAvg without noise: the cost of privacy (simulations only, violates private sites)."""

    name = "non-private"
    _table = "dp-fedavg"

    def declare(self) -> Declaration:
        """Declare the violation of private sites."""
        return replace(super().declare(), real_sites=False)

    def menu(self, epsilons: Floats) -> tuple[float, ...]:
        """Return no privacy alone."""
        return (math.inf,)

    def assign_levels(self, epsilons: Floats, menu: tuple[float, ...]) -> Ints:
        """Return the same level for every site."""
        return np.zeros(len(epsilons), np.int64)

    def spending(self, levels: Levels) -> dict[str, float]:
        """Return no privacy for every site."""
        return dict.fromkeys(super().spending(levels), math.inf)

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms with every simulated site drawn anew, opted out."""
        terms = super().propose(terms, disclosed)
        return terms.updated(simulated_epsilon="inf", run_id=f"{terms.run_id}/{self.name}")
