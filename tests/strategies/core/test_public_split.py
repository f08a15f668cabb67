"""Who is public: the published settings, no seed, no order, and never a stricter site."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.scenarios.budgets import draw_epsilons
from strategies.core.public_split import CEILING, split_public

METHODS = ("gmm", "kmeans", "top:0.3", "threshold:1")
MIXTURES = ("mixgauss1", "mixgauss2", "mixgauss3", "mixgauss4")


@pytest.mark.parametrize("method", ["gmm", "kmeans"])
@pytest.mark.parametrize("spec", MIXTURES)
@pytest.mark.parametrize("seed", range(5))
def test_sites_around_ten_are_public_in_mixtures(spec: str, method: str, seed: int) -> None:
    """The components lie at most at 1 and at least at 10 (PFA, section 6): 5 is between them."""
    drawn = draw_epsilons(spec, 50, seed)
    assert (drawn > 5).any()
    np.testing.assert_array_equal(split_public(drawn, method), drawn > 5)


def test_kmeans_is_the_best_of_all_splits_in_two() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        values = generator.pareto(1.0, 8) + 0.1
        values = np.minimum(values, CEILING)
        public = split_public(values, "kmeans")
        least = min(squares(values, np.array(mask)) for mask in product([False, True], repeat=8))
        assert squares(values, public) == pytest.approx(least, rel=1e-9)


def squares(values: np.ndarray, mask: np.ndarray) -> float:
    parts = [part for part in (values[mask], values[~mask]) if len(part)]
    return sum(float(((part - part.mean()) ** 2).sum()) for part in parts)


def seeded_gmm(values: np.ndarray, seed: int) -> np.ndarray:
    """The split of Robust-HDP's PFA baseline: scaled to [0, 1], from a random start."""
    from sklearn.mixture import GaussianMixture

    scaled = ((values - values.min()) / np.ptp(values))[:, None]
    model = GaussianMixture(2, random_state=seed).fit(scaled)
    return model.predict(scaled) == np.argmax(model.means_[:, 0])


@pytest.mark.parametrize("method", METHODS)
@given(st.lists(st.floats(0.01, 1e3) | st.just(np.inf), min_size=1, max_size=12))
def test_private_sites_have_the_stricter_epsilon(method: str, values: list[float]) -> None:
    given_, public = np.array(values), split_public(np.array(values), method)
    assert public.any() or method.startswith("threshold")
    if public.any() and not public.all():
        assert given_[~public].max() <= given_[public].min()


def test_the_widest_component_does_not_make_the_strictest_site_public() -> None:
    """A normal around 5 with a long reach explains 0.01 better than a narrow one around 1 does."""
    values = np.array([0.01, *np.linspace(0.99, 1.01, 12), 3.0, 5.0, 9.0])
    assert seeded_gmm(values, 1)[0]  # the plain mixture calls it public
    np.testing.assert_array_equal(split_public(values, "gmm"), values > 2)


def test_a_threshold_may_leave_nobody() -> None:
    values = np.array([1.0, 3.0, np.inf])
    assert split_public(values, "threshold:3").tolist() == [False, True, True]
    assert split_public(values, "threshold:30").tolist() == [False, False, True]
    assert not split_public(values[:2], "threshold:30").any()
