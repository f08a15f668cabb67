"""FedPer: the body is averaged, the head of each client stays with it; all train jointly.

Arivazhagan, Aggarwal, Singh and Choudhary, Federated Learning with Personalization Layers (2019,
arXiv:1912.00818). With ``personal-part = "body"`` it is LG-FedAvg (Liang et al. 2020,
arXiv:2001.01523): the head is averaged, the body stays.

Each step is one of DP-SGD on all coordinates under one clip norm: the charge is that of FedAvg's
steps. What stays is noisy, too: a head that was trained without noise between releases would move
the gradients that other records send.
"""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from strategies.averaging.fedavg import FedAvg


class FedPer(FedAvg):
    """The mean of the shared parts."""

    name = "fedper"

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Set the part that stays, where the terms name none."""
        if not terms.personal_part:
            terms = terms.updated(personal_part="head")
        return super().complete_terms(terms)
