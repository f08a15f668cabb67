"""FedRep with every step charged: each client trains its head, then the shared body.

Collins, Hassani, Mokhtari and Shakkottai, Exploiting Shared Representations for Personalized
Federated Learning (ICML 2021); with differential privacy CENTAUR (Shen et al., Share Your
Representation Only, 2023). ``personal-steps`` of a round's steps train the head, the others the
body, which alone is sent.

The record-level trap: CENTAUR's code trains the head without noise. At the level of a client that
is private, for the body's update is clipped and noised as a whole. At the level of a record it is
not: a record outside of the batch moves the head, and with it the gradients of all others (up to
.42 C measured, and 8.2 C under a server that scales the body). Here the head's steps are noisy and
charged: T steps in all, those of FedAvg. The head stays at its client.

Threat model: as for ``fedper``.
"""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from strategies.averaging.fedavg import FedAvg
from strategies.personal.own_terms import with_training


class FedRep(FedAvg):
    """The mean of the bodies; heads are trained first."""

    name = "fedrep"

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Set the phases, and the part that stays where the terms name none."""
        terms = with_training(terms, cls.name, "alternate")
        return super().complete_terms(terms.updated(personal_part=terms.personal_part or "head"))
