"""Synthetic first updates of clients in clusters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

SIZES = (3, 6, 6, 6)
TRUTH = np.repeat(range(4), SIZES)
"""R-DPCFL's 21 clients; the first three are the minority."""

Noises = Callable[[np.random.Generator], npt.NDArray[np.float64]]


def equal(_: np.random.Generator) -> npt.NDArray[np.float64]:
    return np.full(21, 0.1)


def unequal(generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Standard deviations as of ε 10, 3, 1, .5 or so, dealt out without regard to clusters."""
    return generator.permutation(np.resize([0.03, 0.05, 0.1, 0.3], 21))


def first_updates(
    seed: int, noises: Noises, gap: float, d: int = 5000, apart: float = 1.0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Return updates and their noise variances: a common part, a cluster's of length ``gap``.

    The second cluster lies the share ``apart`` of its way from the first.
    """
    generator = np.random.default_rng(seed)
    common = 0.02 * generator.standard_normal(d)
    centres = generator.standard_normal((4, d))
    centres *= gap / np.linalg.norm(centres, axis=1)[:, None]
    centres[1] = centres[0] + apart * (centres[1] - centres[0])
    stds = noises(generator)
    noise = stds[:, None] * generator.standard_normal((21, d))
    return (common + centres[TRUTH] + noise).astype(np.float32), stds**2


def finds_all(assignment: npt.NDArray[np.int64]) -> bool:
    """Tell whether the clusters are the true ones, whatever their numbers."""
    together = assignment[:, None] == assignment[None, :]
    return bool(np.array_equal(together, TRUTH[:, None] == TRUTH[None, :]))


def finds_minority(assignment: npt.NDArray[np.int64]) -> bool:
    """Tell whether the first three clients, and no others, share a cluster."""
    return bool(np.array_equal(assignment == assignment[0], TRUTH == 0))
