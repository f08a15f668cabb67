"""FedRP: FedProx with reflected maps, that is with a server rate of 2.

Malekmohammadi, Shaloudegi, Hu and Yu, An Operator Splitting View of Federated Learning (2021),
α = 2, β = γ = 1; reflections in FedSplit (Pathak and Wainwright, NeurIPS 2020) without its second
one. It has FedProx's fixed points, and may cycle where FedProx converges (two identical lines).

Threat model: as ``fedprox``.
"""

from __future__ import annotations

from strategies.splitting.base import Splitting
from strategies.splitting.scheme import FEDRP


class FedRP(Splitting):
    """FedProx with a doubled step: average the reflected proximal maps."""

    name = "fedrp"
    scheme = FEDRP
