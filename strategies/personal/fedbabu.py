"""FedBABU: bodies under a fixed head, tuned at the end.

Oh, Kim and Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification (ICLR
2022); a successor of FedRep (ICML 2021). Every client has the same public random head, which no
round moves. After the last round each takes T' noisy steps on its head (``after``), by default as
many as one of its rounds has.

T + T' steps are charged, all composed into the plan before the first round. The tuned
head stays at its client. The paper has no privacy; its tuning without noise would be a *kept* model
here.

Threat model: as for ``fedper``.
"""

from __future__ import annotations

from hdpfl_flower.releases.tuning import Tuning
from hdpfl_flower.work import Frozen
from strategies.averaging.fedavg import FedAvg


class FedBABU(FedAvg):
    """Average the bodies; tune heads at the end."""

    name = "fedbabu"
    work = Frozen()
    after = (Tuning(steps="round", part="head"),)
