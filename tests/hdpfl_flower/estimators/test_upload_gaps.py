"""Pairs over gaps: what the signals drifted is found and subtracted, memory is bounded."""

from __future__ import annotations

import pickle

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.estimators import upload_gaps as module
from hdpfl_flower.estimators.temporal import NoiseMemory, TrackOptions, track
from hdpfl_flower.estimators.upload_gaps import CLASSES, FIELDS, levels_of_pairs
from hdpfl_flower.linalg.types import Vector
from tests.hdpfl_flower.estimators.signals import excess

N, D = 20, 2_000


class Drifting:
    """Sites whose private signals walk at random, and of whom some take part in a round."""

    def __init__(self, seed: int, step: float = 0.02, taking_part: int = 6) -> None:
        self._draw = np.random.default_rng(seed)
        self.variances = 10 ** self._draw.uniform(-2, 0, N)
        self._signal = self._draw.standard_normal((N, D))
        self._step, self._part = np.sqrt(step), taking_part

    def round(self) -> tuple[list[int], npt.NDArray[np.float32]]:
        self._signal *= np.sqrt(1 - self._step**2)
        self._signal += self._step * self._draw.standard_normal((N, D))
        here = sorted(int(i) for i in self._draw.choice(N, self._part, replace=False))
        noise = self._draw.standard_normal((len(here), D))
        rows = self._signal[here] + np.sqrt(self.variances[here])[:, None] * noise
        return here, rows.astype(np.float32)


def late_excess(seed: int) -> list[float]:
    """Return q of rounds 11 to 40 whose sites have all been there before, by ``temporal``."""
    sites, memory, found, seen = Drifting(seed), NoiseMemory(), [], set()
    for server_round in range(1, 41):
        here, rows = sites.round()
        memory, tracked = track(
            memory, server_round, [str(i) for i in here], rows, TrackOptions("temporal")
        )
        if server_round > 10 and set(here) <= seen:
            found.append(excess(tracked.variances, sites.variances[here]))
        seen |= set(here)
    return found


def test_at_30_percent_the_drift_is_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seeds of 30 rounds; without the subtraction the same bounds do not hold."""
    found = np.array([q for seed in (1, 2, 3) for q in late_excess(seed)])
    assert found.mean() <= 1.05
    original = module._drift
    monkeypatch.setattr(module, "_drift", lambda *given: (np.zeros(CLASSES), original(*given)[1]))
    plain = np.array([q for seed in (1, 2, 3) for q in late_excess(seed)])
    assert plain.mean() > 1.05
    assert plain.mean() - 1 > 2 * (found.mean() - 1)


def sums_of(
    variances: Vector, signal: Vector, drift: Vector, classes: list[list[int]], pairs: int = 4
) -> npt.NDArray[np.float64]:
    """Return exact sums of clients that have pairs in these classes."""
    sums = np.zeros((len(variances), CLASSES, FIELDS))
    for i, here in enumerate(classes):
        for place in here:
            level = variances[i] + signal[i] * drift[place]
            sums[i, place] = pairs, pairs * level, pairs * (variances[i] + signal[i])
    return sums


def test_exact_pairs_give_the_drift_and_the_levels() -> None:
    """The third and the last client have no consecutive pairs: others show them the drift."""
    variances, signal = np.array([1.0, 0.5, 0.15, 0.2]), np.array([1.0, 2.0, 1.0, 0.5])
    drift = np.array([0, 0.02, 0.05, 0.05, 0.2, 0.4])
    sums = sums_of(variances, signal, drift, [[0, 1, 2, 3], [0, 3, 4, 5], [3, 4], [5]])
    found = levels_of_pairs(sums, 10**6)
    np.testing.assert_allclose(found.variances, variances, rtol=0.1)
    np.testing.assert_allclose(found.drift, drift, atol=0.02)
    np.testing.assert_array_equal(found.pairs, [16, 16, 8, 4])
    np.testing.assert_array_equal(found.sure, [True, True, True, False])
    raw = sums[2, 3, 1] / 4
    assert raw > 1.3 * variances[2], "what is not subtracted counts as noise"


def size_of(memory: NoiseMemory) -> int:
    """Return the bytes of a memory's numbers."""
    uploads = sum(one.upload.nbytes + one.facts.nbytes for one in memory.clients.values())
    return uploads + sum(array.nbytes for array in memory.gaps.values())


def test_memory_is_bounded_and_a_checkpoint_carries_the_run_on_to_the_bit() -> None:
    sites, memory, sizes = Drifting(4), NoiseMemory(), []
    for server_round in range(1, 60):
        here, rows = sites.round()
        names = [str(i) for i in here]
        stored = pickle.loads(pickle.dumps(memory))
        _, other = track(stored, server_round, names, rows)
        memory, tracked = track(memory, server_round, names, rows)
        np.testing.assert_array_equal(other.variances, tracked.variances)
        sizes.append(size_of(memory))
    assert max(sizes) == sizes[-1] <= N * 8 * (D + 6 + (CLASSES - 1) * FIELDS)
