"""Training at the loosest ε: an upper bound that violates stricter sites.

The "maximum" baseline of PFA (VLDB 2021): each site trains with ε = max over the sites, and updates
are averaged as in FedAvg. It is not an algorithm to use: every site but the loosest spends more
than it allows. It shows the cost of heterogeneous privacy.

Threat model: none, the sites' own ε are broken. Only a simulation can run it: it draws the
simulated sites anew with the largest ε. A real site's ε stands in its own profile, and no term can
raise it; with real sites it refuses to run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hdpfl_flower.config.terms import RunTerms
from strategies.averaging.fedavg import FedAvg
from strategies.core.base import Declaration, Disclosed, State


class Maximum(FedAvg):
    """FedAvg with every site at the loosest ε (simulations only, violates stricter sites)."""

    name = "maximum"

    def declare(self) -> Declaration:
        """Declare ε as a fact that every site must disclose, and the violation."""
        inner = super().declare()
        facts = inner.required_facts | {"epsilon"}
        return replace(inner, required_facts=facts, real_sites=False)

    def privacy(self, state: State) -> dict[str, Any]:
        """Return the promise of the terms with the violated ε of stricter sites."""
        return {**super().privacy(state), "violates": "every site except the loosest"}

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms with ``simulated-epsilon`` at the largest disclosed ε."""
        largest = max(facts["epsilon"] for facts in disclosed.values())
        # The ledgers that the sites opened to join hold their own ε; those drawn anew need others
        return terms.updated(simulated_epsilon=repr(largest), run_id=f"{terms.run_id}/{self.name}")
