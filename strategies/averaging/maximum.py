"""Everyone at the loosest ε: an upper bound that violates the stricter sites.

The "maximum" baseline of PFA (VLDB 2021): each site trains with ε = max over the sites, and updates
are averaged as in FedAvg. It is not an algorithm to use: every site but the loosest spends more
than it allows. It shows what heterogeneous privacy costs.

Threat model: none, the sites' own ε are broken. Only a simulation can run it: it draws the
simulated sites anew with the largest ε. A real site's ε stands in its own profile, and no term can
raise it; for real sites the rule refuses to run.
"""

from __future__ import annotations

from typing import Any

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError
from strategies.core.base import Disclosed
from strategies.averaging.fedavg import FedAvg


class Maximum(FedAvg):
    """FedAvg after raising every simulated site to the largest ε."""

    name = "maximum"

    @classmethod
    def discloses(cls, terms: RunTerms) -> frozenset[str]:
        """See :meth:`HDPStrategy.discloses`."""
        return super().discloses(terms) | {"epsilon"}

    def privacy(self) -> dict[str, Any]:
        """See :meth:`HDPStrategy.privacy`: what the sites asked for is not kept."""
        return {**super().privacy(), "violates": "every site but the loosest"}

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms with ``epsilons`` at the largest disclosed ε.

        Raises:
            StrategyError: the sites have records of their own.
        """
        if terms.dataset == "site":
            raise StrategyError(
                "strategy 'maximum' violates the stricter sites, so it runs on simulated ones "
                "alone; take 'minimum', or a named 'dataset'"
            )
        largest = max(facts["epsilon"] for facts in disclosed.values())
        # The ledgers that the sites opened to join hold their own ε; those drawn anew need others
        return terms.updated(epsilons=repr(largest), run_id=f"{terms.run_id}/{self.name}")
