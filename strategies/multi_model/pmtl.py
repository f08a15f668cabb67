"""PMTL-FT: a model per site, pulled to the mean, then tuned.

Hu, Wu and Smith, Private Multi-Task Learning: Formulation and Applications to Federated Learning
(TMLR 2023), by the form of Liu et al. (NeurIPS 2022) that ``mr-mtl`` has; then T' noisy
steps without the pull (``after``), a baseline of DP-pFedDSU (arXiv:2503.09192). The steps are
DP-SGD's and charged with the rounds', T + T' in all; by default they are as many as one
round's. The tuned model stays at its site.

Threat model: as for ``mr-mtl``.
"""

from __future__ import annotations

from hdpfl_flower.releases.tuning import Tuning
from hdpfl_flower.work import Plain
from strategies.multi_model.base import MultiModel
from strategies.multi_model.own_models import (
    first_models,
    models_with_new_sites,
    own_model_and_mean,
)


class PMTL(MultiModel):
    """Train a model per site, pulled to the mean, then tune it."""

    name, work = "pmtl", Plain(pull=0.1)
    after = (Tuning(steps="round", part="all"),)
    initial_groups = first_models
    update_groups = models_with_new_sites
    request_training = own_model_and_mean
