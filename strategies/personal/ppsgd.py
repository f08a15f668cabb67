"""PPSGD: a global model and an offset of each client's own, trained by one noisy update.

Bietti, Wei, Dudik, Langford and Wu, Personalization Improves Privacy-Accuracy Tradeoffs in
Federated Learning (ICML 2022). Client i trains w + θᵢ and releases Δᵢ once: w moves by the mean of
the Δᵢ, and θᵢ by ``personal-rate``·Δᵢ at home. T steps are charged, those of FedAvg: θᵢ stays, and
is post-processing of the client's own noisy releases. With ``personal-part = "head"`` θᵢ lies in
the head alone, the form that CENTAUR's code compares with.

Threat model: as for ``fedper``.
"""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from strategies.averaging.fedavg import FedAvg
from strategies.personal.own_terms import with_training


class PPSGD(FedAvg):
    """The mean of all updates; each client adds its own to its offset."""

    name = "ppsgd"

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Set the offset."""
        return super().complete_terms(with_training(terms, cls.name, "offset"))
