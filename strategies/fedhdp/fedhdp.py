"""FedHDP: average within privacy levels first, across them with weights that know their noise.

Aldaghri, Mahdavifar and Beirami, Federated Learning with Heterogeneous Differential Privacy
(arXiv:2110.15252; TMLR), Algorithm 1: clients that opt out of privacy count fully, private ones r
times that, 0 ≤ r ≤ 1. ``level-ratio`` is r; r = 1 is the uniform average with the same privacy.
``auto`` is ours (``auto_weights.py``): noise averages out over the rounds planned, the bias of a
level that is unlike the others does not (``levels.drift_weights``); and noise lies in all
directions, updates in few, so the part of the means in the span of opted-out clients' earlier
updates and the rest are weighed each on its own. ``precision`` is weights by noise alone, which
collapse where opted-out clients are all alike: the case to compare with.

Threat model: see ``level_averaging.py``: the server is trusted where ``noise = "server"``, else not. Every
site discloses its ε; opted-out sites (ε infinite) are promised nothing, and the run's report says
so.
"""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from strategies.fedhdp.levels import read_menu, read_ratios
from strategies.fedhdp.level_averaging import Leveled


class FedHDP(Leveled):
    """Two-step averaging over the levels of the run."""

    name = "fedhdp"

    def __init__(self, terms: RunTerms) -> None:
        """See :meth:`Leveled.__init__`."""
        super().__init__(terms)
        read_menu(terms.levels)  # what is wrong is said before a site is asked
        read_ratios(terms.level_ratio, 0)
