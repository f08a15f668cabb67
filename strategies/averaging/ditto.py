"""Ditto: one global model, and at every site a personal one, pulled to it, under the same privacy.

Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through Personalization (ICML
2021); a baseline of R-DPCFL (TMLR 2025). Updates are averaged as by FedAvg. The personal model is
trained with DP-SGD (``personal-noise``), so that it can be shown to whoever may see a model: a
round's steps count twice in the site's account, and both models are noisier for it. With an
explicit ``personal-noise = "none"`` it is trained by plain SGD, costs nothing, and is for the
site's own eyes. Either way it stays at its site. ``personal-lambda`` is λ.

Threat model: an untrusted server; each site's noise protects its records in updates and in its
personal model alike. No site discloses anything.
"""

from __future__ import annotations

from hdpfl_flower.config.terms import AUTO, RunTerms
from strategies.averaging.fedavg import FedAvg

PULL = "0.1"
"""λ where the terms name none."""


class Ditto(FedAvg):
    """FedAvg with private personal models."""

    name = "ditto"

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Set λ and the noise where open; an explicit λ = 0 is no pull, explicit noise stays."""
        if not terms.personal_lambda:  # "0" is one
            terms = terms.updated(personal_lambda=PULL)
        if terms.personal_noise == AUTO:
            terms = terms.updated(personal_noise="records")
        return super().complete_terms(terms)
