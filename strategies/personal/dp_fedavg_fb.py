"""DP-FedAvg-fb: FedAvg, then each client tunes the head of the final model on its own records.

A baseline of DP-pFedDSU (arXiv:2503.09192), after the federated baselines of Yu, Bagdasaryan and
Shmatikov, Salvaging Federated Learning by Local Adaptation (2020, arXiv:2002.04758); FedAvg is
McMahan et al. (AISTATS 2017). The paper does not say whether its tuning is private. Here
``tuning-steps`` noisy steps are charged with the rounds', T + ``tuning-steps`` in all; by default
they are as many as one round's. The tuned head stays at its client.

Threat model: as for ``fedper``.
"""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from strategies.averaging.fedavg import FedAvg
from strategies.personal.own_terms import with_tuning


class DPFedAvgFB(FedAvg):
    """The mean of all updates; heads are tuned at the end."""

    name = "dp-fedavg-fb"

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Set the tuning of the head."""
        return super().complete_terms(with_tuning(terms, cls.name, "head"))
