"""Synthetic first updates of clients in clusters, and an array that counts how it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


class Counted(np.ndarray[Any, Any]):
    """A matrix that counts how many of its numbers are read; what it gives is plain."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        found = np.asarray(self).__getitem__(key)
        Counted.read += np.size(found)
        return found

    def __iter__(self) -> Any:
        return (self[row] for row in range(len(self)))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*self._plain(inputs), **kwargs)

    def __array_function__(self, function: Any, _: Any, args: Any, kwargs: Any) -> Any:
        if function is np.take:
            found = np.take(np.asarray(args[0]), *args[1:], **kwargs)
            Counted.read += np.size(found)
            return found
        return function(*self._plain(args), **kwargs)

    @staticmethod
    def _plain(values: Any) -> list[Any]:
        Counted.read += sum(value.size for value in values if isinstance(value, Counted))
        return [np.asarray(v) if isinstance(v, Counted) else v for v in values]


def passes(matrix: npt.NDArray[np.float32], work: Callable[[Any], object]) -> float:
    """Return how often ``work`` reads a number of ``matrix``, on average."""
    Counted.read = 0
    work(matrix.view(Counted))
    return Counted.read / matrix.size
