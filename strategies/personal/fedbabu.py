"""FedBABU: clients train the body alone under a fixed head; each tunes its head at the end.

Oh, Kim and Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification (ICLR
2022); a successor of FedRep (ICML 2021). Every client has the same public random head, which no
round moves. After the last round each takes ``tuning-steps`` noisy steps on its head, by default as
many as one of its rounds has.

T + ``tuning-steps`` steps are charged, all composed into the plan before the first round. The tuned
head stays at its client. The paper has no privacy; its tuning without noise would be a *kept* model
here.

Threat model: as for ``fedper``.
"""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from strategies.averaging.fedavg import FedAvg
from strategies.personal.own_terms import with_head_at_home, with_training, with_tuning


class FedBABU(FedAvg):
    """The mean of the bodies; heads are tuned at the end."""

    name = "fedbabu"

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Set the fixed head and its tuning."""
        terms = with_training(terms, cls.name, "frozen")
        terms = with_tuning(with_head_at_home(terms, cls.name), cls.name, "head")
        return super().complete_terms(terms)
