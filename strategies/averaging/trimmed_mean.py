"""Trimmed mean: average each coordinate without its extremes.

Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates (ICML 2018), Definition 2: of n values of a coordinate the β·n least and the β·n
greatest are dropped, and the others averaged; ``trimmed-mean.share`` is β. Here k = ⌊β·n⌋ are
dropped on each side, so that below 1/β clients nothing is.

Threat model: up to k clients that send anything; an untrusted server otherwise, which learns
nothing but the noisy updates. No site discloses anything. Trimming is post-processing: it costs no
privacy.

Known limits: a coordinate's values are dropped by their size, so that noisy clients lose more
coordinates than quiet ones, but count the same where they stay; ``robust-hdp`` weighs by the noise.
Where clients differ by their data, those unlike the others are trimmed too. In a composed strategy
(``trimmed-mean+pfa``) its weights alone count.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.config.settings import Settings
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Declaration, HDPStrategy, State

_BLOCK = 2**16
"""Coordinates sorted at a time: the order of all would double the memory."""


class TrimmedMeanSettings(Settings):
    """How much is dropped."""

    share: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.1,
        description="Share β of the clients that is dropped at each end, separately in "
        "every coordinate.",
    )


def trimmed_mean(
    rows: npt.NDArray[np.float32], count: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Return the trimmed mean of each coordinate, and each row's share in it.

    Args:
        rows: the updates, shape ``(n, d)``; not changed.
        count: how many values of a coordinate are dropped at each end; below n/2.

    >>> rows = np.array([[0, 9], [1, 0], [2, 1], [9, 2]], np.float32)
    >>> trimmed_mean(rows, 1)
    (array([1.5, 1.5], dtype=float32), array([0.  , 0.25, 0.5 , 0.25]))
    """
    n, d = rows.shape
    mean, stays = np.empty(d, np.float32), np.zeros(n)
    for start in range(0, d, _BLOCK):
        block = rows[:, start : start + _BLOCK]
        # Of equal values the first rows are the lesser: a stable order, the same everywhere.
        middle = np.argsort(block, axis=0, kind="stable")[count : n - count]
        # Shape (n − 2k, coordinates of the block), as `middle`, which holds row numbers.
        values = np.take_along_axis(block, middle, axis=0)
        mean[start : start + _BLOCK] = values.mean(axis=0, dtype=np.float64)
        stays += np.bincount(middle.ravel(), minlength=n)
    return mean, stays / stays.sum()


class TrimmedMean(HDPStrategy):
    """Average each coordinate without its smallest and largest values."""

    name = "trimmed-mean"
    settings_type = TrimmedMeanSettings
    settings: TrimmedMeanSettings

    def declare(self) -> Declaration:
        """Declare no weighted sum: each coordinate has its own set of clients."""
        return Declaration(is_weighted_sum=False, round_alone=True)

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the trimmed mean; a client's weight is its share in it.

        The journal's ``trimmed`` is the number of clients dropped at each end of a coordinate.
        """
        # Rounded down: β is never exceeded. β < ½ leaves at least one value.
        count = math.floor(self.settings.share * len(updates.sites))
        update, weights = trimmed_mean(updates.updates, count)
        return state, Outcome(update, weights, {"trimmed": float(count)})
