"""PPSGD: a global model and own offsets, by one noisy update.

Bietti, Wei, Dudik, Langford and Wu, Personalization Improves Privacy-Accuracy Tradeoffs in
Federated Learning (ICML 2022). Client i trains w + θᵢ and releases Δᵢ once: w moves by the mean of
the Δᵢ, and θᵢ by ``rate``·Δᵢ at home. T steps are charged, those of FedAvg: θᵢ stays, and
is post-processing of the client's own noisy releases. With ``of=head`` θᵢ lies in
the head alone, the form that CENTAUR's code compares with.

Threat model: as for ``fedper``.
"""

from __future__ import annotations

from hdpfl_flower.work import Offset
from strategies.averaging.fedavg import FedAvg


class PPSGD(FedAvg):
    """Average all updates; each client adds its own to its offset."""

    name = "ppsgd"

    work = Offset()
