"""What a simulation draws: published lists, named distributions, and refusals that help."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from hdpfl_flower.errors import TermsError
from hdpfl_tools.simulation.scenarios import published_budgets as published
from hdpfl_tools.simulation.scenarios.budgets import FLOOR, draw_batch_sizes, draw_epsilons

FALSE_ALARM = 1e-6
"""Chance that one statistical test below fails on right code (its seed is fixed all the same)."""

# Noise multipliers of the 20 published clients under Dist 1 … 9, computed once from ε and batch
# size with an RDP accountant (N = 2400, 200 epochs, δ = 1e-4, orders 2 to 64), to two decimals.
NOISE_MULTIPLIERS = """
2.78 6.19 3.07 5.05 2.29 6.02 1.99 4.58 3.51 5.6 2.85 10.53 2.92 8.17 2.18 7.15 3.93 6.67 2.69 2.41
1.62 10.22 4.51 39.84 1.41 1.33 5.25 39.84 6.91 10.97 7.25 51.74 25.88 11.46 5.76 8.78 7.54 11.44
4.96 6.09
3.45 3.07 28.18 4.5 5.69 7.92 4.74 4.03 3.6 3.89 3.44 3.19 4.4 3.63 15.18 3.24 3.45 3.78 5.88 4.51
12.52 15.32 11.97 2.07 1.79 11.18 9.18 3 4.11 15.79 44.15 4.5 14.74 32.27 10.71 20.13 12.74 19.74
7.47 31.22
7.61 6.93 28.18 9.7 10.94 13.56 9.35 8.78 7.94 8.78 7.61 7.25 8.87 8.3 20.3 7.35 7.61 8.51 11.18
9.02
14.24 21.85 12.87 16.15 25.88 13.93 31.22 13.97 6.5 56.34 14.53 62.44 31.22 79.67 28.18 71.07 11.72
211.82 13.21 9.52
27.41 12.39 9.18 9.22 5.25 8.04 8.43 27.41 17.31 16.82 9.7 12.11 10.08 57.37 11.69 10.97 19.16 18
5.46 24.06
39.84 56.34 31.22 16.15 25.88 31.22 31.22 13.97 11.53 56.34 39.84 62.44 31.22 79.67 28.18 71.07
11.72 84.69 13.21 9.52
15.8 40.57 24.06 22.83 17.88 13.93 17.25 24.39 31.93 37.16 14.82 35.74 11.97 30.89 11.43 38.75 28.69
51.74 25.88 19.39
"""

# The distributions once more, as scipy writes them: (weight, mean, std) or (low, high).
NORMALS: dict[str, list[tuple[float, float, float]]] = {
    "dist1": [(1, 2, 1)],
    "dist2": [(0.2, 0.2, 0.01), (0.6, 1, 0.1), (0.2, 5, 1)],
    "dist4": [(0.2, 0.2, 0.01), (0.6, 0.5, 0.1), (0.2, 2, 1)],
    "dist6": [(0.3, 0.2, 0.01), (0.5, 0.5, 0.1), (0.2, 1, 0.1)],
    "dist8": [(0.6, 0.2, 0.01), (0.4, 0.5, 0.1)],
    "mixgauss1": [(0.9, 0.1, 0.01), (0.1, 10, 0.1)],
    "mixgauss2": [(0.9, 0.5, 0.01), (0.1, 10, 0.1)],
    "mixgauss3": [(0.9, 1, 0.1), (0.1, 10, 0.1)],
    "mixgauss4": [(0.5, 0.1, 0.01), (0.4, 1, 0.1), (0.1, 10, 1)],
    "normal:3:1": [(1, 3, 1)],
}
UNIFORMS = {
    "dist3": (0.2, 5),
    "dist5": (0.2, 2),
    "dist7": (0.2, 1),
    "dist9": (0.2, 0.5),
    "uniform:0.3:8": (0.3, 8),
}
Cdf = Callable[[np.ndarray], np.ndarray]


def mixture_cdf(parts: Sequence[tuple[float, float, float]]) -> Cdf:
    def plain(x: float | np.ndarray) -> np.ndarray:
        return np.sum([w * stats.norm.cdf(x, mean, std) for w, mean, std in parts], axis=0)

    return lambda x: (plain(x) - plain(FLOOR)) / (1 - plain(FLOOR))


def p_value(sample: np.ndarray, cdf: Cdf) -> float:
    return float(stats.kstest(sample, cdf).pvalue)


@pytest.mark.parametrize("dist", range(1, 10))
def test_published_lists_order_the_noise_as_an_accountant_does(dist: int) -> None:
    """Of two clients with one batch size, less ε means more noise; and a larger batch, more."""
    epsilon = np.array(published.epsilons(dist, 20))
    batch = np.array(published.batch_sizes(20))
    noise = np.array(NOISE_MULTIPLIERS.split(), dtype=float).reshape(9, 20)[dist - 1]
    for i in range(20):
        same_batch = batch == batch[i]
        np.testing.assert_array_equal(
            np.sign(epsilon[same_batch] - epsilon[i]), np.sign(noise[i] - noise[same_batch])
        )
        larger_batch = (epsilon == epsilon[i]) & (batch > batch[i])
        assert (noise[larger_batch] > noise[i]).all()


def test_published_lists_have_the_lengths_prefixes_and_sums_of_the_source() -> None:
    for dist in range(1, 10):
        lists = {sites: draw_epsilons(f"dist{dist}-published", sites, 1) for sites in (20, 40, 60)}
        assert [len(values) for values in lists.values()] == [20, 40, 60]
        np.testing.assert_array_equal(lists[40], lists[60][:40])
        assert np.array_equal(lists[20], lists[60][:20]) == (dist in (1, 2, 6, 8))
    # Sums, and sums weighted by the place in the list, taken from the authors' file itself.
    lists_of_60 = np.array([published.epsilons(dist, 60) for dist in range(1, 10)])
    np.testing.assert_allclose(
        lists_of_60.sum(axis=1),
        [116.88, 74.94, 142.66, 33.41, 60.97, 23.95, 33.77, 16.7, 20.17],
        atol=1e-6,
    )
    np.testing.assert_allclose(
        lists_of_60 @ np.arange(1, 61),
        [3641.68, 1998.86, 4637.05, 998.45, 1967.28, 733.22, 1077.68, 507.02, 632.68],
        atol=1e-6,
    )
    assert draw_epsilons("dist6-published", 20, 1)[17] == 0.15
    batches = draw_batch_sizes("published", 60, 1)
    assert batches.dtype == np.int64
    np.testing.assert_array_equal(np.bincount(batches)[[16, 32, 64, 128]], [19, 15, 14, 12])
    np.testing.assert_array_equal(draw_batch_sizes("published", 40, 1), batches[:40])


@pytest.mark.parametrize("spec", NORMALS)
def test_normals_follow_their_law_and_no_wider_one(spec: str) -> None:
    sample = draw_epsilons(spec, 6000, seed=11)
    assert sample.min() >= FLOOR
    parts = NORMALS[spec]
    assert p_value(sample, mixture_cdf(parts)) > FALSE_ALARM
    # Rejected: another scale, and the second number read as a variance.
    assert p_value(sample * 1.1, mixture_cdf(parts)) < FALSE_ALARM
    if any(std != 1 for _, _, std in parts):
        variances = [(weight, mean, std**0.5) for weight, mean, std in parts]
        assert p_value(sample, mixture_cdf(variances)) < FALSE_ALARM


@pytest.mark.parametrize("spec", UNIFORMS)
def test_uniforms_follow_their_law_and_no_wider_one(spec: str) -> None:
    low, high = UNIFORMS[spec]
    law = stats.uniform(low, high - low)
    sample = draw_epsilons(spec, 6000, seed=12)
    assert p_value(sample, law.cdf) > FALSE_ALARM
    assert p_value(sample * 1.1, law.cdf) < FALSE_ALARM


def test_pareto_follows_its_law_and_no_wider_one() -> None:
    law = stats.pareto(1.5, scale=0.5)
    sample = draw_epsilons("pareto:0.5:1.5", 6000, seed=13)
    assert p_value(sample, law.cdf) > FALSE_ALARM
    assert p_value(sample * 1.1, law.cdf) < FALSE_ALARM


def test_published_lists_decide_that_the_second_number_is_a_standard_deviation() -> None:
    """Of Dist2's list: near 0.2 the chi-square test keeps std 0.01 and rejects variance 0.01."""
    values = np.array(published.epsilons(2, 60))
    near = values[values < 0.3]
    assert len(near) == 13
    for std, kept in ((0.01, True), (0.1, False)):
        statistic = ((near - 0.2) ** 2).sum() / std**2
        tail = min(stats.chi2.cdf(statistic, 13), stats.chi2.sf(statistic, 13))
        assert (2 * tail > FALSE_ALARM) == kept


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ("", "dist1…dist9"),
        ("dist10", "dist1…dist9"),
        ("dist1:2", "dist1…dist9"),
        ("dist1-published:2", "dist1…dist9"),
        ("mixgauss1-published", "mixgauss1…4"),
        ("nan", "above 0"),
        ("0", "above 0"),
        ("-1,2,3", "above 0"),
        ("1,,2", "above 0"),
        ("1,2", "one ε per site"),
        ("uniform:8:0.3", "0 < A ≤ B"),
        ("uniform:0:1", "0 < A ≤ B"),
        ("uniform:1", "uniform:A:B"),
        ("uniform:1:2:3", "uniform:A:B"),
        ("uniform:1:inf", "uniform:A:B"),
        ("uniform", "uniform:A:B"),
        ("normal:0.01:1", "MEAN ≥ 0.05"),
        ("normal:1:-1", "STD ≥ 0"),
        ("normal:one:1", "normal:MEAN:STD"),
        ("pareto:0:1", "above 0"),
        ("file:", "absolute path"),
        ("file:/nowhere/at/all", "absolute path"),
    ],
)
def test_wrong_epsilons_name_the_key_and_the_remedy(spec: str, remedy: str) -> None:
    with pytest.raises(TermsError, match="'epsilons'") as caught:
        draw_epsilons(spec, 3, 1)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_batch_sizes_are_drawn_evenly_from_the_list() -> None:
    drawn = draw_batch_sizes("16, 32,64,128", 8000, seed=3)
    values, counts = np.unique(drawn, return_counts=True)
    np.testing.assert_array_equal(values, [16, 32, 64, 128])
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    assert stats.chisquare(counts, np.array([0.3, 0.25, 0.25, 0.2]) * 8000).pvalue < FALSE_ALARM
    np.testing.assert_array_equal(draw_batch_sizes("16, 32,64,128", 8000, seed=3), drawn)
    assert not np.array_equal(draw_batch_sizes("16,32,64,128", 8000, seed=4), drawn)
    np.testing.assert_array_equal(draw_batch_sizes("64", 3, seed=1), [64, 64, 64])


def test_a_share_of_the_sites_opts_out_whatever_the_rest_has() -> None:
    plain = draw_epsilons("uniform:1:2", 200, 3)
    some = draw_epsilons("uniform:1:2+opt-out:0.05", 200, 3)
    assert np.isinf(some).sum() == 10
    np.testing.assert_array_equal(some[np.isfinite(some)], plain[np.isfinite(some)])
    assert not np.isinf(draw_epsilons("1+opt-out:0", 5, 1)).any()
    assert np.isinf(draw_epsilons("1+opt-out:1", 5, 1)).all()
    with pytest.raises(TermsError, match="a share from 0 to 1"):
        draw_epsilons("1+opt-out:1.5", 5, 1)
