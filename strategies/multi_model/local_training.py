"""Local: every site trains its own model, without averaging.

The baseline of Malekmohammadi, Taik and Farnadi, Differentially Private Clustered Federated
Learning (TMLR 2025): a site's model without the others, under the same privacy. Its model goes
through the server, which needs it to test it; each site trains with DP-SGD as under any strategy.

Threat model: an untrusted server; each site's noise protects its own records. No site discloses
anything.
"""

from __future__ import annotations

from strategies.multi_model.base import MultiModel
from strategies.multi_model.own_models import first_models, models_with_new_sites, own_model


class LocalTraining(MultiModel):
    """Train a separate model at each site, without averaging."""

    name = "local"
    initial_groups = first_models
    update_groups = models_with_new_sites
    request_training = own_model
