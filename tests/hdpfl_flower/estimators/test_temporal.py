"""Noise over time: consecutive uploads tell it, add up, and stand down where they cannot.

Every statistical bound is computed from FALSE_ALARM (seeds are fixed, so that right code passes for
good), and the same check is run at wrong scales, which must fail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from hdpfl_flower.estimators import temporal as module
from hdpfl_flower.estimators.temporal import KEPT, NoiseEstimate, NoiseMemory, TrackOptions, track
from hdpfl_flower.work.spend import Late

FALSE_ALARM = 1e-6
Rows = npt.NDArray[np.float32]


class Sites:
    """Clients with a private signal each, all of it steady, and noise of their own."""

    def __init__(self, n: int = 6, d: int = 2_000, signal: float = 3.0, seed: int = 1) -> None:
        self._draw = np.random.default_rng(seed)
        self.variances = 10 ** self._draw.uniform(-2, 0, n)
        self.signal = signal * self._draw.standard_normal((n, d))
        self.names = [str(i) for i in range(n)]

    def round(self) -> Rows:
        noise = self._draw.standard_normal(self.signal.shape)
        return (self.signal + np.sqrt(self.variances)[:, None] * noise).astype(np.float32)


@pytest.mark.parametrize("method", ["auto", "temporal"])
def test_noise_that_falls_by_a_known_factor_stays_right(method: str) -> None:
    """Half of the difference of two unlike noises has the mean of both."""
    for knows in (True, False):
        sites, memory = Sites(d=20_000), NoiseMemory()
        for server_round in range(1, 9):
            factor = Late(ratio=8).noise_factor(server_round, 8)
            noise = sites.round() - sites.signal
            rows = (sites.signal + factor * noise).astype(np.float32)
            options = TrackOptions(method)
            if knows:
                options = replace(options, noise_factor=lambda r: Late(ratio=8).noise_factor(r, 8))
            memory, found = track(memory, server_round, sites.names, rows, options)
        assert right(found.variances, sites.variances, 2 * spread(7, 20_000)) is knows


def follow(sites: Sites, rounds: Sequence[int], **how: Any) -> tuple[NoiseMemory, NoiseEstimate]:
    memory = NoiseMemory()
    for server_round in rounds:
        memory, tracked = track(
            memory, server_round, sites.names, sites.round(), TrackOptions(**how)
        )
    return memory, tracked


def spread(pairs: int, d: int) -> float:
    """Relative standard error over m pairs of neighbours: √((3m − 1)/m² / d)."""
    return math.sqrt((3 * pairs - 1) / pairs**2 / d)


def right(levels: npt.NDArray[np.float64], true: npt.NDArray[np.float64], error: float) -> bool:
    """Return whether all levels lie within what FALSE_ALARM allows, shared among them."""
    bound = stats.norm.isf(FALSE_ALARM / (2 * len(true))) * error
    return bool(np.all(np.abs(levels / true - 1) < bound))


@pytest.mark.parametrize("pairs", [1, 2, 9])
def test_private_signals_cancel_and_pairs_add_up(pairs: int) -> None:
    sites = Sites()
    _, tracked = follow(sites, range(1, pairs + 2))
    error = spread(pairs, 2_000)
    assert right(tracked.variances, sites.variances, error)
    for wrong in (2 / 3, 1.5):  # of σ
        assert not right(tracked.variances * wrong**2, sites.variances, error)
    np.testing.assert_array_equal(tracked.pairs, pairs)


def test_a_change_that_all_share_is_no_noise() -> None:
    """The global model turns: each update changes by the same vector, ten times the quietest σ."""
    sites = Sites(n=8)
    memory, _ = track(NoiseMemory(), 1, sites.names, sites.round())
    turned = sites.round() + np.random.default_rng(5).standard_normal(2_000).astype(np.float32)
    _, tracked = track(memory, 2, sites.names, turned)
    raw = Sites(n=8).variances + 0.5  # what half the mean square of the differences would say
    assert np.all(np.abs(tracked.variances / sites.variances - 1) < 0.5)
    assert np.all(tracked.variances < raw)


def test_sites_that_come_and_go_are_told_apart_by_name() -> None:
    sites, memory = Sites(), NoiseMemory()
    present = [[0, 1, 2, 3], [1, 2, 3, 4], [0, 2, 3, 4, 5], [5, 4, 0]]
    for server_round, these in enumerate(present, start=1):
        names = [sites.names[i] for i in these]
        memory, tracked = track(memory, server_round, names, sites.round()[these])
    np.testing.assert_array_equal(tracked.pairs, [1, 2, 2])
    true = sites.variances[present[-1]]
    assert right(tracked.variances, true, spread(1, 2_000))


def turned(n: int) -> tuple[NoiseEstimate, NoiseEstimate]:
    """A signal that turns its sign doubles in the difference: ``auto``'s and ``temporal``'s."""
    sites = Sites(n=n, signal=1.0)
    first, second = sites.round(), sites.round()
    second -= 2 * sites.signal.astype(np.float32)
    memory, _ = track(NoiseMemory(), 1, sites.names, first)
    _, tracked = track(memory, 2, sites.names, second)
    _, stubborn = track(memory, 2, sites.names, second, TrackOptions("temporal"))
    assert all(reason.startswith("temporal") for reason in stubborn.reasons)
    return tracked, stubborn


def test_differences_beyond_the_uploads_are_not_believed() -> None:
    """Auto reads the round alone, where that identifies the noise."""
    tracked, stubborn = turned(6)
    assert all("differences exceed the uploads" in reason for reason in tracked.reasons)
    assert np.all(tracked.variances < stubborn.variances)


def test_pure_noise_hardly_ever_seems_to_move() -> None:
    """One round in 1,000 by _ALARM: more than 6 of 400 have probability 2e-6 (binomial)."""
    assert stats.binom.sf(6, 400, 1e-3) < FALSE_ALARM * 2
    moved = 0
    for seed in range(200):
        sites, memory = Sites(n=5, d=200, signal=0.0, seed=seed), NoiseMemory()
        for server_round in (1, 2, 3):
            memory, tracked = track(memory, server_round, sites.names, sites.round())
            moved += any("exceed" in reason for reason in tracked.reasons)
    assert moved <= 6


def test_the_clip_norm_is_the_unit() -> None:
    """Half the clip norm, half the update: nothing but the unit has changed."""
    one, other = Sites(), Sites()
    memory, same = NoiseMemory(), NoiseMemory()
    for server_round, clip_norm in ((1, 2.0), (2, 2.0), (3, 1.0)):
        scale = np.float32(clip_norm / 2)
        memory, found = track(
            memory, server_round, one.names, one.round() * scale, TrackOptions(clip_norm=clip_norm)
        )
        same, fixed = track(
            same, server_round, other.names, other.round(), TrackOptions(clip_norm=2.0)
        )
    np.testing.assert_allclose(found.variances, fixed.variances / 4, rtol=1e-5)


@pytest.mark.parametrize("d", [2_000, 2 * KEPT])
@pytest.mark.parametrize("silent", ["zeros", "denormal", "one entry"])
def test_an_update_beside_zeros_has_no_weight(d: int, silent: str) -> None:
    sites, memory = Sites(d=d, signal=0.1), NoiseMemory()
    for server_round in (1, 2, 3):
        updates = sites.round()
        updates[3] = 1e-30 if silent == "denormal" else 0
        if silent == "one entry":
            updates[3, -1] = 1e-6
        memory, tracked = track(memory, server_round, sites.names, updates)
        assert np.isinf(tracked.variances[3])
        assert tracked.reasons[3] == module.SILENT
    others = [0, 1, 2, 4, 5]
    np.testing.assert_array_equal(tracked.pairs[others], 2)
    seen = d if memory.coordinates is None else len(memory.coordinates)
    assert right(tracked.variances[others], sites.variances[others], spread(2, seen))
