"""Who is public is one matter: whoever is asked, answers or leaves, and for whichever rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.scenarios.published_budgets import epsilons
from hdpfl_flower.updates import RoundUpdates
from server_app.run.rounds import run
from strategies import make_strategy
from strategies.core.public_split import split_public, stands
from tests.federation import ScriptedGrid, sends

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
