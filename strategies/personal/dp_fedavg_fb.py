"""DP-FedAvg-fb: FedAvg, then tuning of the head.

A baseline of DP-pFedDSU (arXiv:2503.09192), after the federated baselines of Yu, Bagdasaryan and
Shmatikov, Salvaging Federated Learning by Local Adaptation (2020, arXiv:2002.04758); FedAvg is
McMahan et al. (AISTATS 2017). The paper does not say whether its tuning is private. Here
T' noisy steps (``after``) are charged with the rounds', T + T' in all; by default
they are as many as one round's. The tuned head stays at its client.

Threat model: as for ``fedper``.
"""

from __future__ import annotations

from hdpfl_flower.releases.tuning import Tuning
from strategies.averaging.fedavg import FedAvg


class DPFedAvgFB(FedAvg):
    """Average all updates; tune heads at the end."""

    name = "dp-fedavg-fb"
    after = (Tuning(steps="round", part="head"),)
