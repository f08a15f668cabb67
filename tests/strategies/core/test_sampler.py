"""Who is asked: as the seed says, never beyond a site's participations, with a public site."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.models.networks import arrays_of, build_model
from strategies import make_kernel
from strategies.core.round_messages import RoundReport
from strategies.core.sampler import Sampler
from tests.federation import ScriptedGrid, Site, sends

SITES = [str(i) for i in range(10)]
EPSILONS = {site: 10.0 if site == "3" else 0.1 + 0.01 * int(site) for site in SITES}


def sampler(**terms: Any) -> Sampler:
    return Sampler(RunConfig.parse({k.replace("_", "-"): v for k, v in terms.items()}))


def draws(rule: Sampler, rounds: int, sites: list[str] = SITES) -> list[list[str]]:
    return [rule.draw(r, sites, EPSILONS) for r in range(1, rounds + 1)]


def as_before(seed: int, server_round: int, count: int) -> list[str]:
    """The draw as it was before there were participations, from NumPy alone."""
    generator = np.random.default_rng([seed, server_round])
    return [SITES[i] for i in sorted(generator.choice(len(SITES), count, replace=False))]


def test_a_draw_follows_the_seed_and_the_round_alone() -> None:
    drawn = draws(sampler(fraction=0.3, seed=4), 9)
    assert drawn == [as_before(4, r, 3) for r in range(1, 10)]
    assert len(set(map(tuple, drawn))) > 1
    assert draws(sampler(), 3) == [SITES] * 3


@pytest.mark.parametrize(("fraction", "most"), [(0.3, 2), (0.5, 3), (1.0, 2), (0.01, 1)])
def test_no_site_is_asked_more_often_than_it_takes_part(fraction: float, most: int) -> None:
    """Until nobody is left: every participation is used, and the run is at its end."""
    rule, size = sampler(fraction=fraction, participations=most), max(1, round(10 * fraction))
    asked: Counter[str] = Counter()
    for server_round in range(1, 100):
        drawn = rule.draw(server_round, SITES, EPSILONS)
        left = [site for site in SITES if asked[site] < most]
        assert len(drawn) == min(size, len(left))
        assert set(drawn) <= set(left)
        assert drawn == sorted(drawn, key=int)
        asked.update(drawn)
        if not drawn:
            break
    assert set(asked.values()) == {most}
    assert rule.used_up == "the sites' budgets are used up"


def test_a_site_that_declines_a_common_noise_has_left() -> None:
    rule = sampler(noise_multiplier=1.0)
    rule.note_declined(["2", "5"])
    assert rule.draw(1, SITES, EPSILONS) == [s for s in SITES if s not in "25"]
    rule.note_declined(SITES)
    assert rule.draw(2, SITES, EPSILONS) == []
    assert rule.used_up == "the sites' budgets are used up"
    own = sampler()
    own.note_declined(["2"])
    assert own.draw(1, SITES, EPSILONS) == SITES, "its own noise lasts for all rounds"


def test_a_round_without_a_public_site_is_drawn_again() -> None:
    """Site 3 alone is public; where the first draw holds it, it is the draw of any run."""
    plain = draws(sampler(fraction=0.3, seed=1), 40)
    public = draws(sampler(fraction=0.3, seed=1, require_public=True), 40)
    assert all("3" in drawn and len(drawn) == 3 for drawn in public)
    assert not all("3" in drawn for drawn in plain)
    for one, other in zip(plain, public, strict=True):
        assert (one == other) == ("3" in one)
    others = Counter(site for drawn in public for site in drawn if site != "3")
    assert set(others) == set(SITES) - {"3"}, "the others come as they come"
    assert public == draws(sampler(fraction=0.3, seed=1, require_public=True), 40)


def test_who_is_public_is_decided_among_all_and_not_among_those_drawn() -> None:
    for drawn in draws(sampler(fraction=0.2, require_public=True, public_split="top:0.1"), 20):
        assert "3" in drawn


def test_no_public_site_at_all_is_one_clear_line() -> None:
    rule = sampler(require_public=True, public_split="threshold:50")
    with pytest.raises(
        StrategyError, match="'threshold:50' calls no site public; loosen 'public-split'"
    ):
        rule.draw(1, SITES, EPSILONS)
    assert sampler(public_split="threshold:50").draw(1, SITES, EPSILONS) == SITES


# --- budgets over the rounds of a run in process: who is asked, who has left, and how a run ends


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
    rule, reports = make_kernel(terms), []
    record = server_wire.write_model(
        arrays_of(build_model(terms.terms.model, task_for(terms.terms), 1))
    )
    for server_round in range(1, terms.terms.rounds + 1):
        messages = rule.configure_train(server_round, record, ConfigRecord(), grid)
        if rule.sampler.used_up:
            assert not list(messages)
            break
        new, _ = rule.aggregate_train(server_round, grid.send_and_receive(messages))
        record = new or record
        reports.append(rule.report)
    return reports, rule


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
