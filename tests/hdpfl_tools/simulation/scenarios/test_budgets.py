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
LAWS = {
    **{spec: stats.uniform(0.2, high - 0.2) for spec, high in
       {"dist3": 5, "dist5": 2, "dist7": 1, "dist9": 0.5, "uniform:0.2:8": 8}.items()},
    "pareto:0.5:1.5": stats.pareto(1.5, scale=0.5),
}  # fmt: skip
Cdf = Callable[[np.ndarray], np.ndarray]


def mixture_cdf(parts: Sequence[tuple[float, float, float]]) -> Cdf:
    def plain(x: float | np.ndarray) -> np.ndarray:
        return np.sum([w * stats.norm.cdf(x, mean, std) for w, mean, std in parts], axis=0)

    return lambda x: (plain(x) - plain(FLOOR)) / (1 - plain(FLOOR))


def p_value(sample: np.ndarray, cdf: Cdf) -> float:
    return float(stats.kstest(sample, cdf).pvalue)


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


@pytest.mark.parametrize("spec", LAWS)
def test_others_follow_their_law_and_no_wider_one(spec: str) -> None:
    sample = draw_epsilons(spec, 6000, seed=12)
    assert p_value(sample, LAWS[spec].cdf) > FALSE_ALARM
    assert p_value(sample * 1.1, LAWS[spec].cdf) < FALSE_ALARM


WRONG = {
    "dist1…dist9": ["", "dist10", "dist1:2", "dist1-published:2"],
    "mixgauss1…4": ["mixgauss1-published"],
    "above 0": ["nan", "0", "-1,2,3", "1,,2", "pareto:0:1"],
    "one ε per site": ["1,2"],
    "0 < A ≤ B": ["uniform:8:0.3", "uniform:0:1"],
    "uniform:A:B": ["uniform:1", "uniform:1:2:3", "uniform:1:inf", "uniform"],
    "MEAN ≥ 0.05": ["normal:0.01:1"],
    "STD ≥ 0": ["normal:1:-1"],
    "normal:MEAN:STD": ["normal:one:1"],
    "absolute path": ["file:", "file:/nowhere/at/all"],
}
"""Remedy that an error names → values that it is for."""


@pytest.mark.parametrize(
    ("spec", "remedy"), [(spec, remedy) for remedy in WRONG for spec in WRONG[remedy]]
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
    with pytest.raises(TermsError, match="a number from 0 to 1"):
        draw_epsilons("1+opt-out:1.5", 5, 1)
