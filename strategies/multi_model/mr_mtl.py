"""MR-MTL: every site trains a model of its own, pulled towards the mean of all.

Liu, Hu, Wu and Smith, On Privacy and Personalization in Cross-Silo Federated Learning (NeurIPS
2022), mean-regularized multi-task learning; a baseline of R-DPCFL (TMLR 2025). ``prox-lambda`` is
λ: each local step also goes −η·λ·(θᵢ − θ̄), with θ̄ the mean of the sites' models. The pull lies
outside of the clipping, where nothing of it is lost: θᵢ and θ̄ are made of noisy updates, so it
costs no privacy. λ = 0 is ``local``; a large λ is next to the mean model of all.

Threat model: as for ``local``. A site also sees the mean of the others' noisy models.
"""

from __future__ import annotations

from dataclasses import replace

from hdpfl_flower import wire
from hdpfl_flower.config.terms import AUTO, RunTerms
from strategies.multi_model.groups import Ask
from strategies.multi_model.local_training import LocalTraining
from strategies.core.rule import State

PULL = 0.1
"""λ where the terms leave it open."""


class MRMTL(LocalTraining):
    """A model a site, and a pull to their mean."""

    name = "mr-mtl"

    @classmethod
    def completed(cls, terms: RunTerms) -> RunTerms:
        """See :meth:`Rule.completed`; an explicit 0 is no pull."""
        if terms.prox_lambda == AUTO:
            terms = terms.updated(prox_lambda=PULL)
        return super().completed(terms)

    def ask(self, state: State, server_round: int, site: str) -> Ask:
        """See :meth:`ManyModels.ask`."""
        use = wire.PULL if self.terms.pull else ""  # without a pull nobody needs the mean
        return replace(super().ask(state, server_round, site), use=use)
