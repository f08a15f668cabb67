"""Proof of noise shared by two sites (``cap``, ``content``).

Honest noise is drawn by each site for itself. A jittered copy of another's update is no exact copy,
and to factor analysis it looks free of noise.

Two things prove it, each at the stated rate of false alarms, so that no number of liars is too
large to be refused for it: noise that is compared with noise (:func:`copied_noise`), and two
updates of less difference than honest noise makes (:func:`too_near`). Alike updates prove nothing:
honest sites may have more in common than all the others.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.types import Matrix

Pairs = list[tuple[int, int]]

FALSE_ALARMS = 1e-6
"""Chance per proof that a run finds copied noise at any two honest sites."""
NEAR = 0.2
"""Smallest cosine as proof, for any number of silent sums."""
HUSH = 1e-4
"""Share of silent sums in their head below which a site adds no noise. Measured: 4e-6 at most of
sites without noise, .04 at least of private ones, at ε = 1,000 too."""
_ROUNDING = 1e-12
"""Distance from 1 at which cosines are equal: two or three sums prove no sharing."""


def copied_noise(silent: npt.NDArray[np.float32], norms: Matrix, rounds: int) -> Pairs:
    """Return row pairs with similar silent sums, a proof of copied noise.

    Silent sums hold no signal, whatever two sites have in common. The cosine of two directions that
    are drawn for themselves has the density (1 − c²)^((p − 3)/2).

    Args:
        silent: the updates' silent sums, shape ``(n, p)``, p ≥ 2.
        norms: of the head's coordinates in each update, shape ``(n,)``.
        rounds: of the run.

    Guarantees:
        Of honest sites no pair is found in a run, but with probability ``FALSE_ALARMS``; sites
        without noise of their own are not compared.
    """
    rows = silent.astype(np.float64)
    lengths = np.sqrt(np.sum(rows**2, axis=1))
    audible = lengths > HUSH * norms
    # Rows of unit length; a row without noise becomes zeros, which are like no other.
    unit = np.where(audible, 1 / np.where(audible, lengths, 1), 0)[:, None] * rows
    cosines: Matrix = unit @ unit.T
    least = max(_chance_cosine(silent.shape[1], len(rows), rounds), NEAR)
    return _pairs(np.abs(cosines) > least) if 1 - least > _ROUNDING else []


def too_near(gram: Matrix, size: int, floor: float, rounds: int) -> Pairs:
    """Return row pairs in which neither row has noise of its own.

    Of an honest update the part that is orthogonal to another one holds the noise of d − 1
    coordinates, whatever both sites learn. By Laurent and Massart (Annals of Statistics 2000) the
    square of it is below σ²(d − 1 − 2√((d − 1)·x)) with probability e^(−x) at most.

    Args:
        gram: inner products of the updates, shape ``(n, n)``.
        size: d, coordinates of an update.
        floor: σ, the least noise of an honest update, a coordinate; 0: not known.
        rounds: of the run.

    Guarantees:
        Of honest sites no pair is found in a run, but with probability ``FALSE_ALARMS``.
    """
    n, free = len(gram), size - 1
    # x of the bound, with a union over the pairs and rounds.
    doubt = math.log(max(n * (n - 1) // 2 * rounds, 1) / FALSE_ALARMS)
    least = floor**2 * (free - 2 * math.sqrt(free * doubt))
    if not floor or least <= 0:
        return []
    squares = np.diag(gram)
    # ‖uᵢ‖² − ⟨uᵢ, uⱼ⟩²/‖uⱼ‖², the square of the part of i orthogonal to j, shape (n, n).
    rest = squares[:, None] - gram**2 / squares[None, :]
    return _pairs(np.maximum(rest, rest.T) < least)  # a quiet one alone is near to all


def _chance_cosine(size: int, sites: int, rounds: int) -> float:
    """Return a chance bound on the |cosine| of two directions of ``size`` coordinates.

    False-alarm probability over all pairs and rounds: ``FALSE_ALARMS``. c² is distributed as
    Beta(½, (p − 1)/2).

    >>> round(_chance_cosine(200, 20, 12), 2), round(_chance_cosine(10**6, 20, 12) * 10**3, 2)
    (0.42, 6.24)
    """
    from scipy.special import betaincinv

    pairs = max(sites * (sites - 1) // 2 * rounds, 1)
    # By the complement 1 − c²: its lower tail takes the tiny probability itself, not 1 less it.
    return math.sqrt(1 - float(betaincinv((size - 1) / 2, 0.5, FALSE_ALARMS / pairs)))


def _pairs(alike: npt.NDArray[np.bool_]) -> Pairs:
    return [(int(i), int(j)) for i, j in np.argwhere(np.triu(alike, 1))]
