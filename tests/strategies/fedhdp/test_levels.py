"""Levels from what sites disclose, and what each level counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.errors import TermsError
from strategies.fedhdp import span as level_span
from strategies.fedhdp.fedhdp import FedHDPSettings
from strategies.fedhdp.level_gaps import observe_gaps, observed_gaps, spread, sure_gaps
from strategies.fedhdp.levels import (
    assign_levels,
    drift_weights,
    menu_of,
    precision_weights,
)
from strategies.fedhdp.span import KEPT, Span, keep_span


@pytest.mark.parametrize("spec", ["0", "1,1", "one", "-3", "nan", "1,,2"])
def test_a_menu_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(TermsError, match=r"'fedhdp\.levels' must list each ε once"):
        FedHDPSettings.parse({"levels": spec}, "fedhdp.")


def test_nobody_is_put_into_a_looser_level_than_it_asked_for() -> None:
    epsilons = np.array([0.9, 1.0, 3.6, 100.0, np.inf])
    menu = (math.inf, 3.6, 1.0)
    levels = assign_levels(epsilons, menu)
    assert levels.tolist() == [-1, 2, 1, 1, 0]
    assert all(menu[j] <= e for j, e in zip(levels, epsilons, strict=True) if j >= 0)


def test_without_a_menu_the_strictest_satisfies_everybody() -> None:
    epsilons = np.array([0.9, 2.0, np.inf])
    menu = menu_of("", epsilons)
    assert menu == (math.inf, 0.9)
    assert assign_levels(epsilons, menu).tolist() == [1, 1, 0]
    assert menu_of("", np.array([2.0, 1.0])) == (1.0,)


def test_ordinary_opt_outs_take_the_weight_and_skewed_ones_their_share() -> None:
    """The case that plain precision weights fail: opted-out clients that are all alike."""
    alike = np.array([1e-6, 1.0])  # V₁, V₂
    shares = np.array([0.05, 0.95])
    near, far = (np.array([[0, d], [d, 0.0]]) for d in (0.0, 0.5))
    assert precision_weights(alike)[0] > 0.999
    assert drift_weights(alike, near, shares, 300)[0] > 0.999
    assert drift_weights(alike, far, shares, 300)[0] < 0.06


@given(
    st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(0, 1e4), st.floats(0, 1),
    st.integers(1, 1000),
)  # fmt: skip
def test_two_levels_have_the_closed_form(
    v1: float, v2: float, d2: float, rho: float, rounds: int
) -> None:
    gaps = np.array([[0.0, d2], [d2, 0.0]])
    w = drift_weights(np.array([v1, v2]), gaps, np.array([rho, 1 - rho]), rounds)
    expected = (rho * rounds * d2 + v2) / (rounds * d2 + v1 + v2)
    assert w[0] == pytest.approx(expected, abs=1e-6)
    assert w.sum() == pytest.approx(1)


# --- what is learned of spread and gaps: unbiased, cautious, and forgotten in time


def test_spread_is_the_unbiased_variance() -> None:
    rows = np.random.default_rng(2).normal(0, 2, (500, 30)).astype(np.float32)
    assert spread(rows, rows.mean(0).astype(np.float64)) == pytest.approx(4 * 30, rel=0.05)
    assert math.isnan(spread(rows[:1], rows[0].astype(np.float64)))


def test_the_gap_is_free_of_noise_on_average_and_noise_alone_is_no_gap() -> None:
    generator, size = np.random.default_rng(3), 2000
    true = np.zeros((2, size))
    true[1, 0] = 1.0
    variances = np.array([0.5, 2.0])
    std = np.sqrt(variances / size)[:, None]
    state: dict[str, np.ndarray] = {}
    empty: dict[str, np.ndarray] = {}
    both = np.ones((2, 2), bool)
    for _ in range(60):
        noise = std * generator.standard_normal((2, size))
        state = dict(observe_gaps(state, "gap", observed_gaps(true + noise, variances), both))
        empty = dict(observe_gaps(empty, "gap", observed_gaps(noise, variances), both))
    assert 0.8 < sure_gaps(state, "gap", 2)[0, 1] < 1.2
    assert sure_gaps(empty, "gap", 2)[0, 1] < 0.05
    raw = ((true[0] - true[1]) ** 2).sum() + variances.sum()
    assert raw > 3  # what a gap would be with the noise left in


# --- the span of earlier updates: a projection, of bounded memory, and of the newest


D = 200


def drawn(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (count, D)).astype(np.float32)


def test_what_is_kept_lies_inside_and_what_is_orthogonal_does_not() -> None:
    rows = drawn(1, 5)
    span = Span(keep_span(None, rows), D)
    assert span.rank == 5
    np.testing.assert_allclose(span.lift(span.inside(rows)), rows, atol=1e-4)
    other = drawn(2, 1)
    rest = other - span.lift(span.inside(other))
    np.testing.assert_allclose(rest @ rows.T, 0, atol=1e-3)
    inside, all_of_it = (float(np.square(x).sum()) for x in (span.inside(other), other))
    assert inside + float(np.square(rest).sum()) == pytest.approx(all_of_it, rel=1e-5)


def test_the_oldest_go_first_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = drawn(4, KEPT), drawn(5, KEPT - 1)
    span = Span(keep_span(keep_span(None, old), new), D)
    assert span.rank == KEPT
    lengths = np.linalg.norm(span.inside(old), axis=1) / np.linalg.norm(old, axis=1)
    assert lengths[-1] == pytest.approx(1, abs=1e-5)
    assert lengths[0] < 0.9
    monkeypatch.setattr(level_span, "MEMORY", 3 * 8 * D)
    assert len(keep_span(None, old)) == 3
