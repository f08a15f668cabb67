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
from strategies.core.interface import SiteRequest
from strategies.multi_model.groups import MultiModelState
from strategies.multi_model.local_training import LocalTraining

PULL = 0.1
"""λ where the terms leave it open."""


class MRMTL(LocalTraining):
    """A model a site, and a pull to their mean."""

    name = "mr-mtl"

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Return the terms with λ, where it is open; an explicit 0 is no pull."""
        if terms.prox_lambda == AUTO:
            terms = terms.updated(prox_lambda=PULL)
        return super().complete_terms(terms)

    def request_training(self, state: MultiModelState, server_round: int, site: str) -> SiteRequest:
        """Return the site's own model and the mean of all; without a pull nobody needs the mean."""
        use = wire.PULL if self.terms.pull else ""
        return replace(super().request_training(state, server_round, site), use=use)
