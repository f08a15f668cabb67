"""FedAvg over noisy updates: the same weight for every site, or its declared share of the records.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data
(AISTATS 2017), Algorithm 1. With DP-SGD at the sites this is the DPFedAvg baseline of Robust-HDP
(ICML 2024); with every ε infinite it is plain FedAvg.

Threat model: an untrusted server; it learns nothing but the noisy updates. With
``weights = "records"`` each site discloses the number of records it declared, a constant.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates, weighted_sum
from strategies.core.base import HDPStrategy, State

MAX_SHARE = 10.0
"""A declared size counts at most this many times the median: a lie buys no more."""


def record_weights(declared: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return weights wᵢ ∝ min(Nᵢ, 10 · median N), shape ``(n,)``.

    >>> record_weights(np.array([100.0, 300.0]))
    array([0.25, 0.75])
    """
    capped: npt.NDArray[np.float64] = np.minimum(declared, MAX_SHARE * np.median(declared))
    return capped / float(capped.sum())


class FedAvg(HDPStrategy):
    """Uniform weights, or weights by declared records."""

    name = "fedavg"

    @classmethod
    def discloses(cls, terms: RunTerms) -> frozenset[str]:
        """See :meth:`HDPStrategy.discloses`."""
        return frozenset({"declared-records"} if terms.weights == "records" else ())

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """See :meth:`HDPStrategy.combine`."""
        if "declared-records" in updates.disclosed:
            weights = record_weights(updates.disclosed["declared-records"])
        else:
            weights = np.full(len(updates.sites), 1 / len(updates.sites))
        return state, Outcome(weighted_sum(weights, updates.updates), weights)
