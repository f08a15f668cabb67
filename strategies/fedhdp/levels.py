"""Privacy levels: assignment of sites, and weights.

FedHDP (federated learning with heterogeneous differential privacy), Algorithm 1: updates are
averaged within each level first, and the levels' means then with weights w. For two levels of N₁
(loose) and N₂ (strict) clients w₁ = N₁/(N₁ + r·N₂), w₂ = r·N₂/(N₁ + r·N₂) with 0 ≤ r ≤ 1. Here a
level j of any number has a ratio rⱼ of its own, that of the loosest being 1: wⱼ ∝ rⱼ·Nⱼ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator

from hdpfl_flower.errors import TermsError
from hdpfl_flower.linalg.sums import exact_sum

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

AUTO = "auto"
"""The ratio that is found from the updates, see :func:`drift_weights`."""
PRECISION = "precision"
"""Weights by noise alone, see :func:`precision_weights`: to compare with."""


def read_menu(spec: str) -> tuple[float, ...]:
    """Return the ε in ``spec``, the loosest first; empty for an empty text.

    Raises:
        ValueError: not numbers above 0, or one twice.

    >>> read_menu("1, 3.6,inf"), read_menu("")
    ((inf, 3.6, 1.0), ())
    """
    try:
        menu = [float(text) for text in spec.split(",")] if spec.strip() else []
    except ValueError:
        menu = [math.nan]
    if not all(value > 0 for value in menu) or len(set(menu)) < len(menu):
        raise ValueError("must list each ε once, above 0, with commas between, such as 1,3.6,inf")
    return tuple(sorted(menu, reverse=True))


def _check_menu(spec: str) -> str:
    read_menu(spec)
    return spec


def menu_of(spec: str, epsilons: Floats) -> tuple[float, ...]:
    """Return the levels of a run, the loosest first.

    Args:
        spec: the setting ``levels``.
        epsilons: the sites' disclosed ε, shape ``(n,)``, n ≥ 1.

    Returns:
        The menu in ``spec``; without one, ``inf`` if somebody opted out, and the strictest of the
        finite ε, which satisfies everybody else.

    >>> menu_of("", np.array([3.0, np.inf, 1.0])), menu_of("", np.array([np.inf]))
    ((inf, 1.0), (inf,))
    """
    menu = read_menu(spec)
    if menu:
        return menu
    finite = epsilons[np.isfinite(epsilons)]
    loose = (math.inf,) if len(finite) < len(epsilons) else ()
    return (*loose, float(finite.min())) if len(finite) else loose


def assign_levels(epsilons: Floats, menu: Sequence[float]) -> Ints:
    """Return each site's level, ``(n,)``: the loosest within its ε; −1 for none.

    >>> assign_levels(np.array([np.inf, 5.0, 1.0, 0.5]), (np.inf, 3.6, 1.0))
    array([ 0,  1,  2, -1])
    """
    # The menu falls from the loosest, so the first level that is allowed is the loosest: argmax.
    allowed = np.asarray(menu)[None, :] <= epsilons[:, None]
    levels: Ints = np.where(allowed.any(1), allowed.argmax(1), -1)
    return levels


def read_ratios(spec: str, levels: int) -> tuple[float, ...] | None:
    """Return rⱼ of each level, the loosest first; None if the updates decide it.

    Args:
        spec: ``auto``, ``precision``, one number for all levels but the loosest, or one for each.
        levels: how many there are, 0 before it is known.

    Raises:
        ValueError: not numbers in [0, 1].
        TermsError: not as many as levels.

    >>> read_ratios("0.1", 3), read_ratios("auto", 2)
    ((1.0, 0.1, 0.1), None)
    """
    if spec.strip() in (AUTO, PRECISION):
        return None
    try:
        ratios = [float(text) for text in spec.split(",")]
    except ValueError:
        ratios = [math.nan]
    if not all(0 <= ratio <= 1 for ratio in ratios):
        raise ValueError("must be auto, precision, or numbers from 0 to 1 with commas between")
    if len(ratios) == 1:
        ratios *= max(levels - 1, 1)
    if levels and len(ratios) != max(levels - 1, 1):
        raise TermsError(
            f"'fedhdp.level-ratio' has {len(ratios)} numbers and the run has {levels} levels; "
            "give one number, or one for each level except the loosest"
        )
    return (1.0, *ratios)[: levels or None]


def _check_ratios(spec: str) -> str:
    read_ratios(spec, 0)
    return spec


Menu = Annotated[str, AfterValidator(_check_menu)]
"""Setting ``levels``."""
Ratios = Annotated[str, AfterValidator(_check_ratios)]
"""Setting ``level-ratio``."""


def ratio_weights(counts: Floats, ratios: Sequence[float] | Floats) -> Floats:
    """Return wⱼ ∝ rⱼ·Nⱼ, shape ``(l,)``; by N alone if all products are 0.

    >>> ratio_weights(np.array([100.0, 1900.0]), (1.0, 0.1))
    array([0.34482759, 0.65517241])
    >>> ratio_weights(np.array([0.0, 4.0]), (1.0, 0.0))
    array([0., 1.])
    """
    products = counts * np.asarray(ratios)
    if not products.any():
        products = counts
    weights: Floats = products / products.sum()
    return weights


def precision_weights(variances: Floats) -> Floats:
    """Return wⱼ ∝ 1/Vⱼ, shape ``(l,)``: least noise, regardless of bias.

    ``auto`` must not be this: opted-out clients that are all alike have next to no variance and
    take all the weight, and the model learns their records alone.

    >>> precision_weights(np.array([1.0, 3.0]))
    array([0.75, 0.25])
    """
    return drift_weights(
        variances, np.zeros((len(variances),) * 2), np.full(len(variances), 1 / len(variances)), 1
    )


def drift_weights(variances: Floats, gaps: Floats, shares: Floats, horizon: float) -> Floats:
    """Return weights for noise that averages out over rounds and bias that stays.

    Ours. The mean over all clients is Σ ρⱼμⱼ; the weighted mean Σ wⱼΔⱼ misses it with variance
    Σ wⱼ²Vⱼ in one round and with the bias Σ (wⱼ − ρⱼ)μⱼ in every round. Over H rounds the first
    adds up to H·Σ wⱼ²Vⱼ and the second to H²·‖bias‖², so w minimises
    Σ wⱼ²Vⱼ + H·‖Σ (wⱼ − ρⱼ)μⱼ‖², and ‖…‖² = −½·Σⱼₖ (wⱼ − ρⱼ)(wₖ − ρₖ)·Dⱼₖ². For two levels
    w₁ = (ρ₁·H·D² + V₂)/(H·D² + V₁ + V₂).

    Args:
        variances: Vⱼ > 0 of each level's mean (summed over the coordinates), shape ``(l,)``.
        gaps: D² ≥ 0 between the levels' true means, symmetric, shape ``(l, l)``.
        shares: ρⱼ, each level's share of the clients, shape ``(l,)``, sums to 1.
        horizon: H, the rounds planned.

    >>> drift_weights(np.array([0.0, 9.0]), np.array([[0, 1.0], [1, 0]]), np.array([0.1, 0.9]), 1)
    array([0.91, 0.09])
    """
    size = len(variances)
    # Classical scaling: −½·J D² J holds the inner products of the levels' means about their centre.
    # An estimated D² may have negative eigenvalues, which no distances have: they become 0.
    centre = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(-0.5 * centre @ gaps @ centre)
    bias = horizon * (vectors * np.maximum(values, 0)) @ vectors.T
    scale = float(variances.sum() + np.trace(bias)) or 1.0
    # A = diag(V) + H·G; the floor keeps A invertible where a level has no noise.
    matrix = np.diag(np.maximum(variances, 1e-12 * scale)) + bias
    free = np.ones(size, bool)
    weights = np.zeros(size)
    while True:  # ends: every turn but the last one fixes one more weight at 0
        some = np.flatnonzero(free)
        # Lagrange: A w = H·G ρ + ν·1, with ν for Σ w = 1. A weight below 0 is fixed at 0, and the
        # rest is solved again.
        inverse = np.linalg.inv(matrix[np.ix_(some, some)])
        pull = inverse @ (bias @ shares)[some]
        toward = inverse.sum(1)
        weights[:] = 0
        weights[some] = pull + toward * (1 - pull.sum()) / toward.sum()
        if weights.min() >= 0 or len(some) == 1:
            break
        free[int(weights.argmin())] = False
    weights = np.maximum(weights, 0)
    result: Floats = weights / weights.sum()
    return result


def plain_means(rows: npt.NDArray[np.float32], levels: Ints, size: int) -> Floats:
    """Return each level's mean row, ``(size, d)``; 0 for an empty level.

    Each row is read once.
    """
    means = np.empty((size, rows.shape[1]))
    for level in range(size):
        chosen = np.flatnonzero(levels == level)
        means[level] = exact_sum(np.ones(len(chosen)), rows, chosen)
        means[level] /= max(len(chosen), 1)
    return means


def site_weights(shares: Floats, levels: Ints) -> Floats:
    """Return each site's share of the update, ``(n,)``; equal if all are 0."""
    weights = np.where(levels >= 0, shares[levels], 0.0)
    if not len(weights):
        return weights
    total = float(weights.sum())
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
