"""Ditto: a global model and a personal model per site.

Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through Personalization (ICML
2021); a baseline of R-DPCFL (TMLR 2025). Updates are averaged as by FedAvg. The personal model is
trained with DP-SGD, so that it can be shown to whoever may see a model: a round's steps count twice
in the site's account, and both models are noisier for it. With ``second.kind = "kept"`` it is
trained by plain SGD, costs nothing, and is for the site's own eyes. It always stays at its site.

Threat model: an untrusted server; each site's noise protects its records in updates and in its
personal model alike. No site discloses anything.
"""

from __future__ import annotations

from hdpfl_flower.work.second import Private
from strategies.averaging.fedavg import FedAvg


class Ditto(FedAvg):
    """FedAvg plus a private personal model per site, pulled to the global model."""

    name = "ditto"
    second = Private(pull=0.1)
