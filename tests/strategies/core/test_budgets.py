"""Budgets over the rounds of a run in process: who is asked, who has left, and how a run ends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.models.networks import arrays_of, build_model
from strategies import make_strategy
from strategies.core.round_report import RoundReport
from tests.federation import ScriptedGrid, Site, sends

SIZE = 650  # logistic regression on the digits
DECLINES = Error(wire.DECLINED, "declined")


def noisy(seed: int) -> Site:
    """Return a site that sends an update of its own every round."""
    return lambda server_round: sends(
        np.random.default_rng([seed, server_round]).standard_normal(SIZE).astype(np.float32)
    )(server_round)


def until(last: int) -> Site:
    """Return a site whose budget lasts for so many rounds."""
    return lambda server_round: noisy(last)(server_round) if server_round <= last else DECLINES


def play(grid: ScriptedGrid, **config: Any) -> tuple[list[RoundReport], Any]:
    """Play the rounds of a run as Flower would; stop where the rule says that it is at its end."""
    terms = RunConfig.parse({"strategy": "fedavg", **config})
    rule, reports = make_strategy(terms), []
    record = wire.write_model(arrays_of(build_model(terms.terms.model, task_for(terms.terms), 1)))
    for server_round in range(1, terms.terms.rounds + 1):
        messages = rule.configure_train(server_round, record, ConfigRecord(), grid)
        if rule.sampler.used_up:
            assert not list(messages)
            break
        new, _ = rule.aggregate_train(server_round, grid.send_and_receive(messages))
        record = new or record
        reports.append(rule.report)
    return reports, rule


def test_the_server_asks_nobody_beyond_the_participations() -> None:
    grid = ScriptedGrid({str(i): noisy(i) for i in range(6)})
    reports, rule = play(grid, participations=2, fraction=0.5, rounds=20)
    asked = Counter(name for name, kind, _ in grid.asked if kind == wire.TRAIN)
    assert set(asked.values()) == {2}
    assert len(reports) == 4
    assert all(report.outcome is not None for report in reports)
    assert rule.sampler.used_up == "the sites' budgets are used up"


def test_sites_that_leave_early_are_not_asked_again() -> None:
    """Site i declines from round i + 1 on; with fewer left the quorum is smaller."""
    grid = ScriptedGrid({str(i): until(i) for i in range(1, 7)})
    reports, rule = play(grid, rounds=20, **{"noise-multiplier": 1.0})
    asked = [report.asked for report in reports]
    assert asked[:3] == [list("123456"), list("123456"), list("23456")]
    assert asked[-1] == ["6"]
    assert rule.sampler.used_up == "the sites' budgets are used up"
    assert len(reports) == 7


@pytest.mark.parametrize("strategy", ["fedavg", "weiavg", "robust-hdp", "pfa"])
def test_a_public_site_is_required_whatever_the_strategy(strategy: str) -> None:
    names = [str(i) for i in range(8)]
    facts = {name: {"epsilon": 9.0 if name == "5" else 0.5} for name in names}
    grid = ScriptedGrid({name: noisy(int(name)) for name in names}, facts)
    config = {"strategy": strategy, "fraction": 0.25, "rounds": 8, "require-public": True}
    reports, _ = play(grid, **config)
    assert all("5" in report.asked and len(report.asked) == 2 for report in reports)
    assert len({tuple(report.asked) for report in reports}) > 1
