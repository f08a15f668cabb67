"""FedRep, every step charged: heads first, then the body.

Collins, Hassani, Mokhtari and Shakkottai, Exploiting Shared Representations for Personalized
Federated Learning (ICML 2021); with differential privacy CENTAUR (Shen et al., Share Your
Representation Only, 2023). ``own-steps`` of a round's steps train the head, the others the
body, which alone is sent.

The record-level trap: CENTAUR's code trains the head without noise. At the level of a client that
is private, for the body's update is clipped and noised as a whole. At the level of a record it is
not: a record outside of the batch moves the head, and with it the gradients of all others (up to
.42 C measured, and 8.2 C under a server that scales the body). Here the head's steps are noisy and
charged: T steps in all, those of FedAvg. The head stays at its client.

Threat model: as for ``fedper``.
"""

from __future__ import annotations

from hdpfl_flower.work import Alternate
from strategies.averaging.fedavg import FedAvg


class FedRep(FedAvg):
    """Average the bodies; each site trains its head first."""

    name = "fedrep"

    work = Alternate()
