"""FedSplit: Peaceman–Rachford splitting with one start for each client.

Pathak and Wainwright, FedSplit: An Algorithmic Framework for Fast Federated Optimization (NeurIPS
2020), Algorithm 1: a client's proximal map and the mean of all are both reflected, α = β = 2,
γ = 1. With any constant ``pull`` its fixed points solve Σ wᵢfᵢ itself, where FedProx's solve
a regularised problem. It may cycle where fᵢ are not strongly convex (two identical lines).

Threat model: as the strategy that weighs: an untrusted server, which makes the starts of updates
that it has. A site's own start says nothing of the others but their mean.
"""

from __future__ import annotations

from strategies.splitting.own_starts import OwnStarts
from strategies.splitting.scheme import FEDSPLIT


class FedSplit(OwnStarts):
    """Peaceman–Rachford splitting: two reflections, from a start kept for each client."""

    name = "fedsplit"
    scheme = FEDSPLIT
