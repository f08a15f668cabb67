"""FedRP: FedProx with reflected proximal maps, which is FedProx with a server's rate of 2.

Malekmohammadi, Shaloudegi, Hu and Yu, An Operator Splitting View of Federated Learning (2021),
α = 2, β = γ = 1; reflections in FedSplit (Pathak and Wainwright, NeurIPS 2020) without its second
one. It has FedProx's fixed points, and may cycle where FedProx converges (two identical lines).

Threat model: as ``fedprox``.
"""

from __future__ import annotations

from strategies.splitting.base import Splitting
from strategies.splitting.scheme import FEDRP, Scheme


class FedRP(Splitting):
    """The mean of the clients' reflected proximal maps."""

    name = "fedrp"

    @property
    def scheme(self) -> Scheme:
        """The relaxations 2, 1, 1."""
        return FEDRP
