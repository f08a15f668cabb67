"""Ditto: one global model, and at every site a personal one, pulled to it, under the same privacy.

Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through Personalization (ICML
2021); a baseline of R-DPCFL (TMLR 2025). Updates are averaged as by FedAvg. The personal model is
trained with DP-SGD (``personal-noise``), so that it can be shown to whoever may see a model: a
round's steps count twice in the site's account, and both models are noisier for it. It stays at its
site. ``personal-lambda`` is λ.

Threat model: an untrusted server; each site's noise protects its records in updates and in its
personal model alike. No site discloses anything.
"""

from __future__ import annotations

from hdpfl_flower.config import RunTerms
from strategies.fedavg import FedAvg
from strategies.rule import Disclosed

PULL = "0.1"
"""λ where the terms name none."""


class Ditto(FedAvg):
    """FedAvg with private personal models."""

    name = "ditto"

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """See :meth:`Rule.propose`."""
        terms = super().propose(terms, disclosed)
        return terms.updated(
            personal_lambda=terms.personal_lambda or PULL, personal_noise="records"
        )
