"""What an aggregation rule sees, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class RoundUpdates:
    """The updates of one round that passed every check, a site a row.

    Attributes:
        server_round: from 1.
        sites: names, in the one order that everything follows.
        updates: float32, shape ``(n, d)``; local model − global model. Not to be written to.
        disclosed: what the sites disclosed and the rule asked for, each shape ``(n,)``.
    """

    server_round: int
    sites: tuple[str, ...]
    updates: npt.NDArray[np.float32]
    disclosed: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a rule makes of a round.

    Attributes:
        update: float32, shape ``(d,)``; added to the global model.
        weights: float64, shape ``(n,)``; each site's share.
        gauges: numbers worth a look, for the journal: a float, or an array of shape ``(n,)``.
    """

    update: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float64]
    gauges: Mapping[str, float | npt.NDArray[np.float64]] = field(default_factory=dict)


def weighted_sum(
    weights: npt.NDArray[np.float64], updates: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return Σᵢ wᵢ·uᵢ, shape ``(d,)``.

    Summed in float64, row after row: every number of threads gives the same bits.

    >>> weighted_sum(np.array([0.25, 0.75]), np.array([[4.0], [8.0]], dtype=np.float32))
    array([7.], dtype=float32)
    """
    total = np.zeros(updates.shape[1])
    for weight, update in zip(weights, updates, strict=True):
        total += weight * update.astype(np.float64)
    return total.astype(np.float32)
