"""Noise levels from updates alone: near the best weights where the model is identified.

q = Σ w²σ² · Σ 1/σ² is the noise of the aggregate over the least there is (1: as good as told).
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.credible import FLAT, flat_updates
from hdpfl_flower.estimators.factor_analysis import FactorModel, factor_analysis, noise_edge
from hdpfl_flower.estimators.identification import relative_errors
from hdpfl_flower.estimators.noise_level import ESTIMATORS, estimate_noise_levels, measure_noise
from hdpfl_flower.estimators.residual_mad import heavy_tailed, residual_mad
from hdpfl_flower.linalg.sums import second_moments
from hdpfl_flower.linalg.types import Vector
from tests.hdpfl_flower.estimators.signals import BEYOND, HELD_OUT, TUNING, draw, excess, judge

Rows = npt.NDArray[np.float32]


def updates(
    seed: int, n: int, d: int, signal: float, clusters: int = 1
) -> tuple[npt.NDArray[np.float32], Vector]:
    generator = np.random.default_rng(seed)
    variances = 10 ** generator.uniform(-3, 0, n)
    factors = generator.standard_normal((clusters, d))
    shared = signal * factors[np.arange(n) % clusters]
    noise = np.sqrt(variances)[:, None] * generator.standard_normal((n, d))
    return (shared + noise).astype(np.float32), variances


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("signal", "clusters", "bound"),
    # PERFORMANCE.md §1 has 1.0000, 1.0001, 1.0003 at 1M x 20; a one-round estimate cannot beat
    # 1 + 2/d, and the bounds leave a factor of ten for d = 20,000.
    [(0.0, 1, 1.001), (0.01, 1, 1.001), (1.0, 1, 1.001), (10.0, 1, 1.002), (1.0, 4, 1.005)],
)
def test_weights_as_good_as_told(seed: int, signal: float, clusters: int, bound: float) -> None:
    rows, variances = updates(seed, 20, 20_000, signal, clusters)
    assert excess(estimate_noise_levels(rows), variances) <= bound


def test_the_levels_themselves_are_right_not_only_their_ratios() -> None:
    """std of a variance estimate is σ²·√(2/d) = .01·σ²: 6 std is a false alarm in 1e-7 or so."""
    rows, variances = updates(4, 20, 20_000, 0.3)
    ratio = estimate_noise_levels(rows) / variances
    assert np.all(np.abs(ratio - 1) < 6 * np.sqrt(2 / 20_000))


def test_pure_noise_gets_no_factor() -> None:
    """With no factor the estimate is the mean square itself; the edge is passed once in 1,000."""
    for seed in range(5):
        rows, _ = updates(seed, 13, 5_000, 0.0)
        np.testing.assert_allclose(
            estimate_noise_levels(rows), np.diag(second_moments(rows)), rtol=1e-12
        )


def test_the_edge_is_passed_by_noise_about_once_in_a_thousand() -> None:
    """400 draws: more than 6 beyond the 99.9 % point has probability 1e-5 (binomial)."""
    generator = np.random.default_rng(5)
    n, d, above, above_lower = 20, 2_000, 0, 0
    for _ in range(400):
        rows = generator.standard_normal((n, d))
        largest = np.linalg.eigvalsh(rows @ rows.T / d)[-1]
        above += largest > noise_edge(n, d)
        above_lower += largest > noise_edge(n, d) * 0.97
    assert above <= 6
    assert above_lower > 6, "an edge 3 % lower would be passed far more often"


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_the_unit_does_not_matter(scale: float) -> None:
    rows, _ = updates(7, 9, 3_000, 1.0)
    scaled = estimate_noise_levels((rows * np.float32(scale)).astype(np.float32)) / scale**2
    np.testing.assert_allclose(scaled, estimate_noise_levels(rows), rtol=1e-3)


def test_zeros_and_unknown_estimators_are_refused() -> None:
    rows, _ = updates(10, 5, 100, 1.0)
    rows[2] = 0
    with pytest.raises(StrategyError, match="zeros"):
        estimate_noise_levels(rows)
    with pytest.raises(StrategyError, match="choose one of auto, factor-analysis"):
        estimate_noise_levels(rows + 1, "magic")


# Signals that no clean model covers.


def unlike(kind: str, seed: int, n: int = 20, d: int = 20_000) -> tuple[Rows, Vector]:
    """Return updates with a strong shared signal and a private part of the kind."""
    generator = np.random.default_rng(seed)
    variances = 10 ** generator.uniform(-3, 0, n)
    shared = generator.standard_normal(d)
    private = {
        "none": np.zeros((n, d)),
        "dense": 0.05 * generator.standard_normal((n, d)),
        "sparse": (generator.random((n, d)) < 0.01) * generator.standard_normal((n, d)),
        "heavy": 0.03 * generator.standard_t(2.5, (n, d)),
    }[kind]
    noise = np.sqrt(variances)[:, None] * generator.standard_normal((n, d))
    return (shared + private + noise).astype(np.float32), variances


@pytest.mark.parametrize("kind", ["none", "dense", "sparse", "heavy"])
def test_auto_is_within_a_hundredth_of_the_best_estimator(kind: str) -> None:
    rows, variances = unlike(kind, 1)
    single = [method for method in ESTIMATORS if method != "auto"]
    best = min(excess(estimate_noise_levels(rows, method), variances) for method in single)
    assert excess(estimate_noise_levels(rows, "auto"), variances) <= 1.01 * best


@pytest.mark.parametrize("kind", ["sparse", "heavy"])
def test_a_sparse_private_part_spoils_factor_analysis_and_not_the_mad(kind: str) -> None:
    rows, variances = unlike(kind, 2)
    found = measure_noise(rows)
    assert found.method == "residual-mad"
    assert "heavy-tailed" in found.why
    plain = excess(estimate_noise_levels(rows, "factor-analysis"), variances)
    assert excess(found.variances, variances) - 1 < (plain - 1) / 2


def test_normal_residuals_are_hardly_ever_called_heavy_tailed() -> None:
    """One round in 1,000: more than 4 of 200 have probability 3e-6 (binomial)."""
    assert stats.binom.sf(4, 200, 1e-3) < 3e-6
    generator, called = np.random.default_rng(3), 0
    for _ in range(200):
        rows = generator.standard_normal((10, 1_000), dtype=np.float32)
        model = factor_analysis(second_moments(rows), 1_000)
        called += heavy_tailed(residual_mad(rows, model)[1])
    assert called <= 4


def test_the_mad_reads_levels_not_only_their_ratios() -> None:
    """Var ln MAD² = 5.44/d: 6 standard errors over 20 clients are a false alarm in 4e-8."""
    rows, variances = updates(12, 20, 20_000, 0.3)
    levels = estimate_noise_levels(rows, "residual-mad")
    error = np.sqrt(5.44 / 20_000)
    assert np.all(np.abs(np.log(levels / variances)) < 6 * error)
    for wrong in (2 / 3, 1.5):
        assert not np.all(np.abs(np.log(levels * wrong**2 / variances)) < 6 * error)


# Few clients, and factors that are one client's own.


@pytest.mark.parametrize("n", [3, 4, 5])
def test_few_clients_get_good_levels_and_five_are_the_fewest_to_be_told_so(n: int) -> None:
    rows, variances = updates(13, n, 50_000, 0.1)
    found = measure_noise(rows, "factor-analysis")
    assert excess(found.variances, variances) < 1.1
    assert found.identified == (n == 5)
    assert found.identified or "fewer than 5 clients, upper bounds" in found.why
    pair = measure_noise(rows[:2], "factor-analysis")
    assert not pair.identified
    assert "upper bounds" in pair.why
    assert np.all(pair.variances > variances[:2])


# Two rounds, and parts of updates.


@pytest.mark.parametrize("method", ["factor-analysis", "residual-mad", "auto"])
def test_estimating_takes_a_tenth_of_the_updates_memory(method: str) -> None:
    rows, _ = updates(16, 20, 500_000, 1.0)
    estimate_noise_levels(rows[:, :1_000], method)  # imports
    tracemalloc.start()
    estimate_noise_levels(rows, method)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 0.1 * rows.nbytes


# --- updates that are not finite are refused; those that are flat get no weight worth having


def rows_of(seed: int, d: int = 3_000) -> Rows:
    generator = np.random.default_rng(seed)
    scale = np.sqrt(10 ** np.random.default_rng(0).uniform(-1, 0, 6))[:, None]
    shared = 0.3 * np.random.default_rng(1).standard_normal(d)
    return (shared + scale * generator.standard_normal((6, d))).astype(np.float32)


def flattened(rows: Rows, kind: str, seed: int) -> Rows:
    """Return ``rows`` with a flat one as the third."""
    generator, changed = np.random.default_rng(seed), rows.copy()
    size = 1e-3 * np.ones(rows.shape[1])
    if kind == "signs":
        size *= generator.choice([-1, 1], rows.shape[1])
    if kind == "jittered":
        size *= 1 + 0.1 * generator.standard_normal(rows.shape[1])
    changed[2] = size
    return changed


@pytest.mark.parametrize("kind", ["constant", "signs", "jittered"])
@pytest.mark.parametrize("method", ESTIMATORS)
def test_a_flat_update_is_the_noisiest_of_the_round(method: str, kind: str) -> None:
    rows = flattened(rows_of(2), kind, 3)
    found = measure_noise(rows, method)
    others = np.delete(found.variances, 2)
    assert found.variances[2] == others.max()
    assert not found.identified
    assert FLAT in found.why


def test_normal_noise_is_not_flat_nor_a_signal_in_few_coordinates() -> None:
    """400,000 draws of 16 had a kurtosis of 1.14 or more; of 3 with the best of chances here."""
    generator = np.random.default_rng(6)
    for d in (1, 4, 15, 16, 40, 5_000):
        assert not flat_updates(generator.standard_normal((500, d)).astype(np.float32)).any()
    sparse = (generator.random((20, 500)) < 0.1).astype(np.float32)
    assert not flat_updates(sparse).any()
    tiny = np.full((1, 500), 1e-30, np.float32)
    assert flat_updates(tiny).all(), "squares that underflow hide nothing"


# --- ``identified`` means what it says: where it is True, the weights are nearly as good as told


FALSE_ALARM = 1e-6
SEEDS = range(20_000, 20_200)
"""None that the benchmark tunes on or measures."""


def most_misses(said: int) -> int:
    """Return how many of ``said`` rounds may have q > 1.1, if 5 % do, by ``FALSE_ALARM``."""
    return int(stats.binom.isf(FALSE_ALARM, said, 0.05))


def test_where_it_is_said_the_weights_are_good() -> None:
    """Said of every round, as before, 36 % would miss: more than the bound allows."""
    assert not set(SEEDS) & (set(TUNING) | set(HELD_OUT))
    kinds, identified, q = judge(SEEDS)
    counted = np.array([kind != BEYOND for kind in kinds])
    said = counted & np.array(identified)
    assert said.sum() >= 0.2 * counted.sum()
    assert np.sum(q[said] > 1.1) <= most_misses(int(said.sum()))
    assert np.sum(q[counted] > 1.1) > most_misses(int(counted.sum())), "the check can fail"


def test_no_round_with_a_copy_is_called_identified() -> None:
    for seed in SEEDS:
        kind, rows, _ = draw(seed)
        if kind == "copy":
            assert not measure_noise(rows).identified


# Each guard alone: a model that all the others let pass.


def test_the_errors_are_those_of_maximum_likelihood() -> None:
    """400 draws: a sample variance lies within a factor 1 ± 6·√(2/400) but once in 10⁸."""
    generator, d, n = np.random.default_rng(3), 4_000, 8
    loadings = generator.uniform(0.5, 2, (n, 1))
    true = 10 ** generator.uniform(-1, 0, n)
    found = []
    for _ in range(400):
        rows = loadings @ generator.standard_normal((1, d))
        rows += np.sqrt(true)[:, None] * generator.standard_normal((n, d))
        found.append(factor_analysis(second_moments(rows), d).variances)
    expected = relative_errors(FactorModel(true, loadings, True), d)
    assert expected is not None
    ratio = np.var(np.array(found) / true, axis=0) / np.diag(expected)
    assert np.all(np.abs(ratio - 1) < 6 * np.sqrt(2 / 400))
    assert not np.all(np.abs(2 * ratio - 1) < 6 * np.sqrt(2 / 400))
