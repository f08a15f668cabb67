"""What no site could follow is refused by name before any is asked; what sites follow passes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import Declined, HDPFLError, TermsError
from hdpfl_flower.privacy.policy import check_policy
from hdpfl_flower.releases.feasibility import check_up_front
from server_app.app import run_or_resume
from server_app.run.rounds import ready_kernel
from tests.federation import ScriptedGrid
from tests.hdpfl_flower.ledger.plans import profile

BEYOND = [
    ({"work": {"pull": 20}}, "'work.pull' is 20 and 'learning-rate' is 0.1"),
    ({"strategy": "mr-mtl", "learning-rate": 11.0}, "'work.pull' is 0.1 and"),
    ({"second": {"kind": "kept", "pull": 50}}, "'second.pull' or 'second.opted-out'"),
    ({"second": {"kind": "kept", "opted-out": 50}}, "times 'learning-rate' = 0.1"),
    ({"strategy": "ditto", "learning-rate": 11.0}, "'second.pull' or 'second.opted-out'"),
    ({"strategy": "ditto+pfa", "learning-rate": 11.0}, "times 'learning-rate' = 11"),
]
FULL = {"work": {"kind": "plain", "first-batch": "full"}}
UNLIKE = [
    ({**FULL, "noise-multiplier": 1.0}, "'work.first-batch' = 'full'", "'noise-multiplier'"),
    ({**FULL, "participations": 2}, "'work.first-batch' = 'full'", "'participations'"),
    ({**FULL, "noise": "client"}, "'work.first-batch' = 'full'", "'noise'"),
    ({"strategy": "ditto", "calibration": "pfa"}, "'second.kind' = 'private'", "'calibration'"),
    ({"spend": {"kind": "late"}, "noise": "client"}, "'spend.kind' = 'late'", "'noise'"),
    (
        {"spend": {"kind": "late", "ratio": 2}, "participations": 2},
        "'spend.kind' = 'late'",
        "'participations'",
    ),
    (
        {"strategy": "ditto", "noise-multiplier": 1.0},
        "'second.kind' = 'private'",
        "'noise-multiplier'",
    ),
]


@pytest.mark.parametrize(("config", "words"), BEYOND, ids=str)
def test_steps_beyond_the_anchor_fail(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    """By the ServerApp; before, each site failed alone and the run had no quorum."""
    grid = ScriptedGrid({"a": lambda _: None, "b": lambda _: None})
    with pytest.raises(HDPFLError) as error:
        run_or_resume(grid, {**config, "run-id": "r", "runs-dir": str(tmp_path)})
    assert words in str(error.value)
    assert "a step would go beyond" in str(error.value)
    assert "lower one of them" in str(error.value)
    assert grid.asked == []
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(("config", "asked", "reason"), UNLIKE, ids=str)
def test_unplannable_rounds_are_refused(config: dict[str, Any], asked: str, reason: str) -> None:
    with pytest.raises(TermsError) as error:
        ready_kernel(RunConfig.parse(config))
    assert asked in str(error.value)
    assert reason in str(error.value)


@pytest.mark.parametrize(("config", "asked", "reason"), UNLIKE, ids=str)
def test_sites_decline_the_same(config: dict[str, Any], asked: str, reason: str) -> None:
    """Sites trust no server: what is refused up front is what each would have declined."""
    del asked, reason
    terms = RunConfig.parse(config).terms
    if terms.strategy == "ditto":
        terms = terms.updated(second={"kind": "private"})
    site = profile(policy={"client-noise": True})
    with pytest.raises(Declined, match="only for equal rounds"):
        check_policy(site, terms)
    with pytest.raises(TermsError):
        check_up_front(terms)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "secret"}, "is of no known kind; write as 'second.kind' one of private, kept"),
        ({"kind": "privat", "pull": 1}, "did you mean 'private'?"),
        ({"pull": 1}, "is of no known kind; write as 'second.kind' one of private, kept"),
        (
            {"kind": "kept", "pul": 1},
            "'kept': 'second.pul' is not a known key; did you mean 'second.pull'?",
        ),
        ({"kind": "kept", "pull": -1}, "'second.pull' must be greater than or equal to 0"),
        ({"kind": "kept", "pull": math.inf}, "'second.pull' must be a finite number"),
        ({"kind": "kept", "share": 0.5}, "'second.share' is not a known key"),
        ({"kind": 3}, "is of no known kind"),
        (True, "is a table: write [second]"),
        ("kept pull=0.1", "is a table: write [second]"),
    ],
)
def test_a_second_model_is_a_kind_and_its_settings(table: object, words: str) -> None:
    with pytest.raises(TermsError) as error:
        RunConfig.parse({"second": table})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_mr_mtl_pulls_where_the_terms_leave_it_open_alone() -> None:
    """An explicit 0 became .1 before."""
    for said, meant in (("auto", 0.1), (0, 0.0), (0.0, 0.0), (2, 2.0)):
        rule = ready_kernel(RunConfig.parse({"strategy": "mr-mtl", "work": {"pull": said}}))
        assert rule.terms.work.pull_factor == meant


@pytest.mark.parametrize(("cap", "meant"), [(0.0, 0.5), (0.2, 0.2), (3.0, 0.5)])
def test_the_strictest_epsilon_raises_no_stricter_cap(cap: float, meant: float) -> None:
    """'No site spends more than this ε': .2 became .5 before, under ``minimum``."""
    disclosed = {"a": {"epsilon": 2.0}, "b": {"epsilon": 0.5}}
    for name in ("minimum", "minimum+pfa"):
        kernel = ready_kernel(RunConfig.parse({"strategy": name, "epsilon-cap": cap}))
        assert kernel.strategy.propose(kernel.terms, disclosed).epsilon_cap == meant
