"""Global: one model for all sites, the plain mean of their updates.

FedAvg with DP-SGD under the name that it has as a baseline of clustered rules (Malekmohammadi, Taik
and Farnadi, Differentially Private Clustered Federated Learning, TMLR 2025).

Threat model: FedAvg's: an untrusted server; no site discloses anything.
"""

from __future__ import annotations

from strategies.averaging.fedavg import FedAvg


class GlobalModel(FedAvg):
    """FedAvg."""

    name = "global"
