"""FedProx: clients compute proximal maps of the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, Federated Optimization in Heterogeneous Networks
(MLSys 2020): a client minimises fᵢ(x) + (λ/2)‖x − w‖² from the global model w; the ``pull`` of
``work`` is λ. As a splitting (Malekmohammadi et al., An Operator Splitting View of Federated
Learning, 2021) α = β = γ = 1, and with a constant λ it solves the Moreau-regularised
problem at η = 1/λ, another one than Σ wᵢfᵢ; ``prox-schedule = "inverse"`` brings it to that one.

Threat model: as the strategy that weighs; the pull lies between models that the server knows.
"""

from __future__ import annotations

from strategies.splitting.base import Splitting


class FedProx(Splitting):
    """Average local minimisers that are pulled to the global model (proximal maps)."""

    name = "fedprox"
