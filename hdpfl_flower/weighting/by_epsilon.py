"""Weights by disclosed ε.

Liu, Lou, Xiong, Liu and Meng, Projected Federated Averaging with Heterogeneous Differential Privacy
(VLDB 2021): wᵢ = εᵢ / Σ ε.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import EstimationError

CEILING = 20.0
"""Largest weight of a disclosed ε.

No published setting goes beyond, ``inf`` needs a number, and an overstated ε buys no more.
"""


def counted_epsilons(epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return min(ε, 20), shape ``(n,)``.

    >>> counted_epsilons(np.array([0.5, np.inf]))
    array([ 0.5, 20. ])
    """
    return np.minimum(epsilons, CEILING)


def epsilon_weights(epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return weights ∝ min(εᵢ, 20), shape ``(n,)``; equal if every ε is 0.

    Args:
        epsilons: shape ``(n,)``, n ≥ 1; ``inf`` counts as 20.

    Raises:
        EstimationError: another shape, or a number that is negative or NaN.

    >>> epsilon_weights(np.array([1.0, 3.0]))
    array([0.25, 0.75])
    """
    if np.ndim(epsilons) != 1 or not np.size(epsilons):
        raise EstimationError("epsilons must be one number per client, shape (n,)")
    if not np.all(epsilons >= 0):
        raise EstimationError("an epsilon is negative or not a number; leave out that client")
    counted = counted_epsilons(epsilons)
    if not counted.any():
        counted = np.ones(len(epsilons))
    weights: npt.NDArray[np.float64] = counted / counted.sum()
    return weights
