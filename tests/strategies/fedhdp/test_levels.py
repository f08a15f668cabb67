"""Levels from what sites disclose, and what each level counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.errors import TermsError
from strategies.fedhdp.levels import (
    assign_levels,
    drift_weights,
    menu_of,
    precision_weights,
    ratio_weights,
    read_menu,
)


@pytest.mark.parametrize("spec", ["0", "1,1", "one", "-3", "nan", "1,,2"])
def test_a_menu_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(TermsError, match=r"'fedhdp\.levels' is"):
        read_menu(spec)


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


def test_the_papers_two_level_weights() -> None:
    for r in (0.0, 0.01, 0.5, 1.0):
        w = ratio_weights(np.array([100.0, 1900.0]), (1.0, r))
        np.testing.assert_allclose(w, [100 / (100 + r * 1900), r * 1900 / (100 + r * 1900)])


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
