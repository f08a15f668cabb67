"""FedPi: Douglas–Rachford splitting over clients, Spingarn's method of partial inverses.

Malekmohammadi, Shaloudegi, Hu and Yu, An Operator Splitting View of Federated Learning (2021),
α = β = 2, γ = ½: half of FedSplit's step (Pathak and Wainwright, NeurIPS 2020), which converges for
every convex fᵢ, to the solution of Σ wᵢfᵢ itself. P_H u converges to it, not u: the dual uᵢ − ū
ends at ∇fᵢ/λ.

Threat model: as ``fedsplit``.
"""

from __future__ import annotations

from strategies.splitting.own_starts import OwnStarts
from strategies.splitting.scheme import FEDPI


class FedPi(OwnStarts):
    """Average FedSplit's step with the previous start of each client."""

    name = "fedpi"
    scheme = FEDPI
