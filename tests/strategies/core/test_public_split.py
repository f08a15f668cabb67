"""Who is public: the published settings, no seed, no order, and never a stricter site."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import RoundUpdates
from hdpfl_flower.weighting.by_epsilon import CEILING
from hdpfl_tools.simulation.scenarios.budgets import draw_epsilons
from hdpfl_tools.simulation.scenarios.published_budgets import epsilons
from server_app.run.rounds import run
from strategies import make_strategy
from strategies.core.public_split import split_public, stands
from tests.federation import ScriptedGrid, sends

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


# --- who is public is one matter: whoever is asked, answers or leaves, and for whichever rule


STRICT, LOOSE = 0.5, 8.0
EPSILONS = np.array([STRICT] * 8 + [LOOSE] * 2)
SITES = tuple(map(str, range(len(EPSILONS))))


@pytest.mark.parametrize("name", ["pfa", "pfa-plus", "public-only"])
def test_in_every_round_of_a_run_the_same_sites_are_public(name: str, tmp_path: Path) -> None:
    """Of 5 sites 3 are asked: in some round the loose one is not, and nobody takes its place."""
    loose, rounds = "2", 6
    rows = np.random.default_rng(1).standard_normal((rounds + 1, 5, 650)).astype(np.float32) / 40
    grid = ScriptedGrid(
        {str(i): lambda r, i=i: sends(rows[r, i])(r) for i in range(5)},  # type: ignore[misc]
        {str(i): {"epsilon": LOOSE if str(i) == loose else STRICT} for i in range(5)},
    )
    terms = RunConfig.parse(
        {"strategy": name, "rounds": rounds, "fraction": 0.6, "evaluation": "none",
         "public-split": "gmm", "runs-dir": str(tmp_path)}
    )  # fmt: skip
    result = run(grid, terms)
    asked = [event["accepted"] for event in result.rounds]
    assert any(loose not in sites for sites in asked)
    assert any(loose in sites for sites in asked)
    for event in result.rounds:
        assert event["gauges"]["public"] == [float(site == loose) for site in event["accepted"]]


def test_a_resumed_run_has_the_public_sites_of_the_run(tmp_path: Path) -> None:
    terms = RunConfig.parse({"strategy": "pfa", "runs-dir": str(tmp_path)})
    first, second = make_strategy(terms), make_strategy(terms)
    first.sampler.draw(1, list(SITES), dict(zip(SITES, EPSILONS.tolist(), strict=True)))
    second.sampler.state = first.sampler.state
    assert second.sampler.public_sites({}) == first.sampler.public_sites({}) == {"8", "9"}


@pytest.mark.parametrize("dist", range(1, 10))
def test_whoever_leaves_moves_nobody_across_under_auto(dist: int) -> None:
    """A site leaves: those that are left are split as before, or not at all."""
    drawn = np.array(epsilons(dist, 20))
    public = split_public(drawn, "auto")
    assert public.any() == stands(drawn, split_public(drawn, "gmm"))
    for i in range(len(drawn)):
        if public.any() and not (public[i] and public.sum() == 1):
            left = split_public(np.delete(drawn, i), "auto")
            assert not left.any() or np.array_equal(left, np.delete(public, i))


def test_without_a_split_all_are_private_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    drawn = np.array(epsilons(6, 20))
    rule = make_strategy(RunConfig.parse({"strategy": "pfa"}))
    rows = np.random.default_rng(0).standard_normal((20, 40)).astype(np.float32)
    names = tuple(map(str, range(20)))
    updates = RoundUpdates(1, names, rows, {"epsilon": drawn})
    outcome = rule.combine(rule.initial_state(), updates, RandomStream(bytes(32)))[1]
    assert not np.any(outcome.gauges["public"])
    assert outcome.gauges["subspace_rank"] == 0
    assert "no public site; nothing is projected ('public-split' = 'auto')" in caplog.text
