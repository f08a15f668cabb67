"""Near copies count as one client, and honest clients are left alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.estimators import noise_level as module
from hdpfl_flower.estimators.factor_analysis import factor_analysis
from hdpfl_flower.estimators.near_copies import COPIES, near_copies
from hdpfl_flower.estimators.noise_level import measure_noise
from hdpfl_flower.estimators.temporal import NoiseMemory, track
from hdpfl_flower.linalg.sums import second_moments
from hdpfl_flower.linalg.types import Vector

Rows = npt.NDArray[np.float32]
METHODS = ("factor-analysis", "residual-mad", "auto", "temporal")


def honest(seed: int, n: int = 10, d: int = 6_000) -> tuple[Rows, Vector]:
    """Return updates with a shared signal, as strong as the loudest noise."""
    generator = np.random.default_rng(seed)
    variances = 10 ** np.random.default_rng(0).uniform(-2, 0, n)
    signal = np.random.default_rng(1).standard_normal(d)
    noise = np.sqrt(variances)[:, None] * generator.standard_normal((n, d))
    return (signal + noise).astype(np.float32), variances


def copied(rows: Rows, copies: int, jitter: float, seed: int) -> Rows:
    """Return ``rows`` of which the first ones are copies of row 0, jittered by that share."""
    generator, changed = np.random.default_rng(seed), rows.copy()
    for i in range(1, copies):
        noise = generator.standard_normal(rows.shape[1])
        changed[i] = rows[0] + jitter * rows[0].std() * noise
    return changed


def share(levels: Vector, rows: int) -> float:
    return float((1 / levels)[:rows].sum() / (1 / levels).sum())


@pytest.mark.parametrize("jitter", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_copies_weigh_together_what_one_client_would(
    method: str, copies: int, jitter: float
) -> None:
    """A level's standard error is 2 or 3 % here: 1.5 leaves ten of them."""
    rows, variances = honest(2)
    before = copied(honest(3)[0], copies, jitter, 4) if method == "temporal" else None
    found = measure_noise(copied(rows, copies, jitter, 5), method, before)
    kept = np.append(variances[:1], variances[copies:])
    assert share(found.variances, copies) <= 1.5 * share(kept, 1)
    assert not found.identified
    assert COPIES in found.why
    others = found.variances[copies:] / variances[copies:]
    assert np.all(np.abs(others - 1) < 0.5), "the others keep their levels"


def test_without_the_rule_they_take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "near_copies", lambda *_, **__: [])
    found = measure_noise(copied(honest(2)[0], 2, 1e-3, 5))
    assert share(found.variances, 2) > 0.99


def test_two_groups_count_apart() -> None:
    rows, variances = honest(2)
    rows[1], rows[3] = rows[0], rows[2] * np.float32(2)
    found = measure_noise(rows)
    assert found.copies is not None
    np.testing.assert_array_equal(found.copies, [2, 2, 2, 2, 1, 1, 1, 1, 1, 1])
    expected = np.array([variances[0], variances[0], variances[2], 4 * variances[2]]) * 2
    np.testing.assert_allclose(found.variances[:4], expected, rtol=0.3)


def test_over_the_rounds_copies_are_marked_and_share_one_weight() -> None:
    memory, names = NoiseMemory(), [str(i) for i in range(10)]
    for server_round in (1, 2, 3):
        rows, variances = honest(10 + server_round)
        memory, tracked = track(memory, server_round, names, copied(rows, 2, 1e-3, server_round))
        assert share(tracked.variances, 2) <= 1.5 * share(variances[[0, *range(2, 10)]], 1)
        assert not tracked.identified[:2].any()
        assert all(COPIES in reason for reason in tracked.reasons[:2])
    assert all(COPIES not in reason for reason in tracked.reasons[2:])
    memory, after = track(memory, 4, names, honest(20)[0])
    assert all(COPIES not in reason for reason in after.reasons)


def test_rounding_that_lifts_a_correlation_above_one_hides_no_copy() -> None:
    """Moments of float32 rows are rounded, differently on each processor."""
    rows, _ = honest(11)
    moments = second_moments(copied(rows, 2, 1e-3, 1))
    moments[0, 1] = moments[1, 0] = (1 + 2e-7) * np.sqrt(moments[0, 0] * moments[1, 1])
    model = factor_analysis(moments, rows.shape[1])
    (group,) = near_copies(moments, rows.shape[1], model)
    np.testing.assert_array_equal(group, [0, 1])


# Honest clients.

SIGNALS = ("weak", "strong rank-1", "4 clusters", "dense private", "sparse private", "heavy tail")


def _signal(name: str, shared: Vector, i: int, generator: np.random.Generator) -> Vector:
    """Return client ``i``'s signal."""
    d = len(shared)
    private: Vector
    match name:
        case "weak":
            return 0.01 * shared
        case "4 clusters":
            return np.roll(shared, i % 4)
        case "dense private":
            private = 0.05 * generator.standard_normal(d)
        case "sparse private":
            private = (generator.random(d) < 0.01) * generator.standard_normal(d)
        case "heavy tail":
            private = 0.03 * generator.standard_t(2.5, d)
        case _:
            return shared
    return shared + private


def signal_class(
    name: str, seed: int, n: int = 20, d: int = 100_000
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Return updates of a signal kind, and their noise variances."""
    generator = np.random.default_rng(seed)
    variances = 10 ** generator.uniform(-3, 0, n)
    shared = generator.standard_normal(d, dtype=np.float32)
    updates = generator.standard_normal((n, d), dtype=np.float32)
    updates *= np.sqrt(variances).astype(np.float32)[:, None]
    for i in range(n):
        updates[i] += _signal(name, shared, i, generator)
    return updates, variances


@pytest.mark.parametrize("name", SIGNALS)
def test_honest_signals_hold_no_copies(name: str) -> None:
    for seed in range(3):
        assert measure_noise(signal_class(name, seed, 20, 20_000)[0]).copies is None


@pytest.mark.parametrize("n", [3, 4, 5, 10])
def test_two_quiet_clients_of_a_strong_common_signal_are_no_copies(n: int) -> None:
    """They are near, 1 % and less is left of either, and a third one knows their signal too."""
    generator = np.random.default_rng(4)
    variances = np.array([2e-3, 2e-3] + [0.3] * (n - 2))
    rows = generator.standard_normal(20_000) + np.sqrt(variances)[:, None] * (
        generator.standard_normal((n, 20_000))
    )
    moments = second_moments(rows)
    assert 1 - moments[0, 1] ** 2 / (moments[0, 0] * moments[1, 1]) < 0.01
    assert near_copies(moments, 20_000, factor_analysis(moments, 20_000)) == []


@pytest.mark.parametrize(("n", "clusters"), [(6, 2), (8, 4), (12, 3), (20, 4)])
def test_clusters_of_quiet_clients_are_no_copies(n: int, clusters: int) -> None:
    generator = np.random.default_rng(6)
    centres = generator.standard_normal((clusters, 5_000))[np.arange(n) % clusters]
    rows = (centres + 0.05 * generator.standard_normal((n, 5_000))).astype(np.float32)
    assert measure_noise(rows).copies is None
    np.testing.assert_array_equal(
        measure_noise(rows).variances, measure_noise(rows, copies=False).variances
    )


@pytest.mark.parametrize("seed", [2, 3])
def test_the_quietest_of_clusters_of_two_are_no_copies(seed: int) -> None:
    """Eight clients in 4 clusters, one of them quiet: the others' partners give it away."""
    assert measure_noise(signal_class("4 clusters", seed, 8, 20_000)[0]).copies is None


def test_who_looks_for_clusters_gets_the_levels_without_the_rule() -> None:
    rows = copied(honest(2)[0], 2, 0.05, 5)
    assert measure_noise(rows).copies is not None
    assert measure_noise(rows, copies=False).copies is None


def test_changes_that_all_share_make_no_copies() -> None:
    first, second = honest(2)[0], honest(3)[0]
    turned = second + 3 * np.random.default_rng(5).standard_normal(6_000).astype(np.float32)
    assert measure_noise(turned, "temporal", first).copies is None
