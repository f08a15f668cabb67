"""DP-pFedDSU: FedRep with a masked body.

Personalized Federated Learning via Dynamic Sparse Updates under differential privacy
(arXiv:2503.09192; no public code); FedRep is of ICML 2021. The body's steps train and send the
coordinates of a mask alone (``share`` of them); the others are 0 meanwhile. Heads stay.

``dsu`` takes a mask that costs nothing beyond the noisy steps, or pays for it (``mask``):

=================  ================================================================================
noisy-updates      the largest of the client's own summed noisy updates: T steps charged (default)
charged-top-k      the largest of one more noisy gradient a round: T + rounds steps charged
random             drawn anew each round from no record: T steps charged
global-magnitude   the largest of the global body, which is public: T steps charged
=================  ================================================================================

``dsu-published`` takes the mask of the client's clean weights as the paper does. That violates
every private client: removing one record changes the support, which is released without noise, so ε
is infinite. It exists to reproduce the paper and to be found by the audit; it runs in simulations
alone, every site that is none declines it, and every output says that it violates.

Errors of the paper. Eq. 6 takes the mask from private weights, and eq. 13 adds noise on the mask
alone, so that the support is released as it is: ε = ∞ (a canary audit of one round's support proves
ε ≥ 2.29 at 95 %). Eq. 8: its dense layers contradict the text. Eq. 10 clips by C/‖·‖ without the
minimum and pushes short updates out to C. Eq. 11 as printed uploads weights, not updates. Eq. 13:
σ²C²/(qN) suffices for the aggregate alone, not against the server. The algorithm takes τ + 1 steps
and T − 1 rounds; δ, q and B are missing. The definition is per record, the mechanism per client:
heads are trained without noise, which at the level of a record is the trap of ``fedrep``. Here
heads' steps are noisy and charged, under both strategies.

Threat model: as for ``fedper``; under ``dsu-published`` none.
"""

from __future__ import annotations

from hdpfl_flower.work import Alternate
from strategies.averaging.fedavg import FedAvg


class DSU(FedAvg):
    """Average the masked bodies."""

    name = "dsu"
    work = Alternate(mask="noisy-updates")


class DSUPublished(FedAvg):
    """Average bodies under clean masks: not private, simulations only."""

    name = "dsu-published"
    work = Alternate(mask="published")
