"""What no site could follow is refused by name before any is asked; what sites follow passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.config.feasibility import check_up_front
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import Declined, HDPFLError, TermsError
from hdpfl_flower.privacy.policy import check_policy
from server_app.app import run_or_resume
from server_app.run.rounds import ready_strategy
from tests.federation import ScriptedGrid
from tests.hdpfl_flower.ledger.plans import profile

BEYOND = [
    ({"prox-lambda": 20.0, "learning-rate": 0.1}, "'prox-lambda' is 20 and 'learning-rate' 0.1"),
    ({"strategy": "mr-mtl", "learning-rate": 11.0}, "'prox-lambda' is 0.1 and 'learning-rate' 11"),
    ({"personal-lambda": 50}, "'personal-lambda' is '50' and 'learning-rate' 0.1"),
    ({"personal-lambda": "0.1,50"}, "'personal-lambda' is '0.1,50' and 'learning-rate' 0.1"),
    ({"strategy": "ditto", "learning-rate": 11.0}, "'personal-lambda' is '0.1' and"),
    ({"strategy": "ditto+pfa", "learning-rate": 11.0}, "'personal-lambda' is '0.1' and"),
]
UNLIKE = [
    ({"first-batch": "full", "noise-multiplier": 1.0}, "'first-batch'", "'noise-multiplier'"),
    ({"first-batch": "full", "participations": 2}, "'first-batch'", "'participations'"),
    ({"first-batch": "full", "noise": "client"}, "'first-batch'", "'noise'"),
    ({"strategy": "ditto", "calibration": "pfa"}, "'personal-noise'", "'calibration'"),
    ({"strategy": "ditto", "noise-multiplier": 1.0}, "'personal-noise'", "'noise-multiplier'"),
]


@pytest.mark.parametrize(("config", "words"), BEYOND, ids=str)
def test_a_step_beyond_the_anchor_is_refused_before_any_site_is_asked(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    """By the ServerApp; before, each site failed alone and the run had no quorum."""
    grid = ScriptedGrid({"a": lambda _: None, "b": lambda _: None})
    with pytest.raises(HDPFLError) as error:
        run_or_resume(grid, {**config, "run-id": "r", "runs-dir": str(tmp_path)})
    assert words in str(error.value)
    assert "a step would go beyond" in str(error.value)
    assert "lower one of them" in str(error.value)
    assert grid.asked == []
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "config",
    [
        {"prox-lambda": 10.0, "learning-rate": 0.1},
        {"strategy": "mr-mtl", "prox-lambda": 0, "learning-rate": 50.0},
        {"strategy": "ditto", "personal-lambda": 0, "learning-rate": 50.0},
        {"learning-rate": 50.0},
    ],
    ids=str,
)
def test_a_step_that_ends_at_the_anchor_or_before_passes(config: dict[str, Any]) -> None:
    ready_strategy(RunConfig.parse(config))


@pytest.mark.parametrize(("config", "asked", "reason"), UNLIKE, ids=str)
def test_rounds_that_no_site_can_plan_for_are_refused_with_both_keys(
    config: dict[str, Any], asked: str, reason: str
) -> None:
    with pytest.raises(TermsError) as error:
        ready_strategy(RunConfig.parse(config))
    assert asked in str(error.value)
    assert reason in str(error.value)


@pytest.mark.parametrize(("config", "asked", "reason"), UNLIKE, ids=str)
def test_sites_decline_the_same(config: dict[str, Any], asked: str, reason: str) -> None:
    """Sites trust no server: what is refused up front is what each would have declined."""
    del asked, reason
    terms = RunConfig.parse(config).terms
    if terms.strategy == "ditto":
        terms = terms.updated(personal_lambda="0.1", personal_noise="records")
    site = profile(policy={"client-noise": True})
    with pytest.raises(Declined, match="go with noise = 'records'"):
        check_policy(site, terms)
    with pytest.raises(TermsError):
        check_up_front(terms)


def test_an_explicit_personal_noise_stays_under_ditto() -> None:
    """'none' became 'records' before, and each round was charged twice."""
    for said, meant in (("auto", "records"), ("records", "records"), ("none", "none")):
        rule = ready_strategy(RunConfig.parse({"strategy": "ditto", "personal-noise": said}))
        assert (rule.terms.personal_noise, rule.terms.personal_lambda) == (meant, "0.1")
    rule = ready_strategy(RunConfig.parse({"strategy": "ditto", "personal-lambda": 0}))
    assert rule.terms.personal_lambda == "0"
    plain = ready_strategy(RunConfig.parse({"personal-lambda": "0.1"})).terms
    assert (plain.personal_noise, plain.prox_lambda) == ("none", 0)


def test_mr_mtl_pulls_where_the_terms_leave_it_open_alone() -> None:
    """An explicit 0 became .1 before."""
    for said, meant in (("auto", 0.1), (0, 0.0), (0.0, 0.0), (2.0, 2.0)):
        rule = ready_strategy(RunConfig.parse({"strategy": "mr-mtl", "prox-lambda": said}))
        assert rule.terms.pull == meant
        assert rule.terms.prox_lambda == meant


@pytest.mark.parametrize(("cap", "meant"), [(0.0, 0.5), (0.2, 0.2), (3.0, 0.5)])
def test_the_strictest_epsilon_does_not_raise_a_cap_that_is_stricter(
    cap: float, meant: float
) -> None:
    """'No site spends more than this ε': .2 became .5 before, under ``minimum``."""
    disclosed = {"a": {"epsilon": 2.0}, "b": {"epsilon": 0.5}}
    for name in ("minimum", "minimum+pfa"):
        rule = ready_strategy(RunConfig.parse({"strategy": name, "epsilon-cap": cap}))
        assert rule.propose(rule.terms, disclosed).epsilon_cap == meant
