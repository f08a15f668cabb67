"""FedPer: the body is averaged, the head of each client stays with it; all train jointly.

Arivazhagan, Aggarwal, Singh and Choudhary, Federated Learning with Personalization Layers (2019,
arXiv:1912.00818); a baseline of FedRep (ICML 2021). With ``personal-part = "body"`` it is LG-FedAvg
(Liang et al. 2020, arXiv:2001.01523): the head is averaged, the body stays.

Each step is one of DP-SGD on all coordinates under one clip norm: T steps are charged, those of
FedAvg. The head stays, in the site's state folder. It is noisy, too: a head that was trained
without noise between releases would move the gradients that other records send.

Threat model: an untrusted server; each client's noise protects its records in what it sends and in
the part that stays. No client discloses anything.
"""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from strategies.averaging.fedavg import FedAvg
from strategies.personal.own_terms import with_training


class FedPer(FedAvg):
    """The mean of the shared parts."""

    name = "fedper"

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Set joint steps, and the part that stays where the terms name none."""
        terms = with_training(terms, cls.name, "joint")
        return super().complete_terms(terms.updated(personal_part=terms.personal_part or "head"))
