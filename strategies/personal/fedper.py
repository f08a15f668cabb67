"""FedPer: shared body, own heads, trained jointly.

Arivazhagan, Aggarwal, Singh and Choudhary, Federated Learning with Personalization Layers (2019,
arXiv:1912.00818); a baseline of FedRep (ICML 2021). With ``stays=body`` it is LG-FedAvg
(Liang et al. 2020, arXiv:2001.01523): the head is averaged, the body stays.

Each step is one of DP-SGD on all coordinates under one clip norm: T steps are charged, those of
FedAvg. The head stays, in the site's state folder. It is noisy, too: a head that was trained
without noise between releases would move the gradients that other records send.

Threat model: an untrusted server; each client's noise protects its records in its updates and in
the part that stays. No client discloses anything.
"""

from __future__ import annotations

from hdpfl_flower.work import Joint
from strategies.averaging.fedavg import FedAvg


class FedPer(FedAvg):
    """Average the shared parts."""

    name = "fedper"

    work = Joint()
