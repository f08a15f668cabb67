"""MR-MTL: each site trains its own model, pulled to the mean.

Liu, Hu, Wu and Smith, On Privacy and Personalization in Cross-Silo Federated Learning (NeurIPS
2022), mean-regularized multi-task learning; a baseline of R-DPCFL (TMLR 2025). With the ``pull`` λ
of ``work`` each local step also goes −η·λ·(θᵢ − θ̄), with θ̄ the mean of the sites' models. The
pull lies outside of the clipping, where nothing of it is lost: θᵢ and θ̄ are made of noisy updates,
so it costs no privacy. λ = 0 is ``local``; a large λ is next to the mean model of all.

Threat model: as for ``local``. A site also sees the mean of the others' noisy models.
"""

from __future__ import annotations

from hdpfl_flower.work import Plain
from strategies.multi_model.base import MultiModel
from strategies.multi_model.own_models import (
    first_models,
    models_with_new_sites,
    own_model_and_mean,
)


class MRMTL(MultiModel):
    """Train a model per site, pulled towards the mean of all."""

    name, work = "mr-mtl", Plain(pull=0.1)
    initial_groups = first_models
    update_groups = models_with_new_sites
    request_training = own_model_and_mean
