"""Training at the strictest ε: a baseline with equal weights.

The "minimum" baseline of Robust-HDP (ICML 2024) and PFA (VLDB 2021): each site trains with
ε = min over the sites, and updates are averaged as in FedAvg.

Threat model: each site discloses its ε to the server. A site never spends more than its own ε: the
server can only propose less.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hdpfl_flower.config.terms import RunTerms
from strategies.averaging.fedavg import FedAvg
from strategies.core.base import Declaration, Disclosed


class Minimum(FedAvg):
    """FedAvg with every site at the strictest disclosed ε."""

    name = "minimum"

    def declare(self) -> Declaration:
        """Declare ε as a fact that every site must disclose."""
        inner = super().declare()
        return replace(inner, required_facts=inner.required_facts | {"epsilon"})

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms with ``epsilon-cap`` at most the least disclosed ε."""
        least = min(facts["epsilon"] for facts in disclosed.values())
        least = min(least, terms.epsilon_cap or math.inf)
        return terms if math.isinf(least) else terms.updated(epsilon_cap=least)
