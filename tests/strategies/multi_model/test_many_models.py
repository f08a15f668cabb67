"""Rules with several models: who is sent what, what is remembered, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError, TermsError
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import RoundUpdates
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from server_app.run.rounds import RunResult, run
from strategies import make_strategy
from strategies.core.interface import SiteRequest, State
from strategies.multi_model.base import MultiModel
from tests.federation import Answer, ScriptedGrid, Site, sends

SIZE = 650
SITES = tuple(f"site-{i}" for i in range(6))
TRUE = np.array([0, 0, 0, 1, 1, 1])


def rule_of(**more: Any) -> MultiModel:
    config = {"strategy": "r-dpcfl", "rounds": 20, "choice": {"kind": "gaussian", "times": 3}}
    rule = make_strategy(RunConfig.parse({**config, "r-dpcfl.clusters": 2, **more}))
    assert isinstance(rule, MultiModel)
    return rule


def first_updates(apart: float = 1.0, noise: float = 0.05) -> RoundUpdates:
    generator = np.random.default_rng(5)
    centres = apart * generator.standard_normal((2, SIZE))
    rows = centres[TRUE] + noise * generator.standard_normal((6, SIZE))
    return RoundUpdates(1, SITES, rows.astype(np.float32))


def begun(rule: MultiModel, updates: RoundUpdates | None = None) -> tuple[State, dict[str, Any]]:
    """Return the state after round 1, and its gauges."""
    stream = RandomStream(bytes(32))
    state, outcome = rule.combine(rule.initial_state(), updates or first_updates(), stream)
    return state, dict(outcome.gauges)


def later(
    rule: MultiModel, state: State, group: list[int], chose: bool, sites: tuple[str, ...] = SITES
) -> State:
    """Return the state after one more round, in which sites trained ``group``."""
    rows = np.random.default_rng(1).standard_normal((len(sites), SIZE)).astype(np.float32)
    updates = RoundUpdates(2, sites, rows, group=np.array(group), chose=np.full(len(sites), chose))
    return rule.combine(state, updates, RandomStream(bytes(32)))[0]


# --- R-DPCFL ---------------------------------------------------------------------------------


def test_clusters_are_found_told_and_trained() -> None:
    rule = rule_of()
    state, gauges = begun(rule)
    found = gauges["cluster"]
    assert len(set(found[TRUE == 0])) == len(set(found[TRUE == 1])) == 1
    assert found[0] != found[5]
    assert gauges["clusters"] == state.models == 2
    assert gauges["clusters_mss"] > 2
    assert gauges["clusters_separated"] == 1
    assert gauges["last_soft_round"] == 10
    assert gauges["cluster_confidence"].min() > 0.9
    assert [rule.request(state, 5, s) for s in SITES] == [SiteRequest(int(c)) for c in found]


def test_a_site_is_drawn_by_its_shares_while_they_are_soft() -> None:
    """Sites of shares (0.3, 0.7): 1,000 draws lie within the bounds of a false alarm of 1e-6."""
    from scipy import stats

    rule = rule_of(rounds=2500)
    state, _ = begun(rule)
    shares = {**state.shares, "site-0": np.array([0.3, 0.7])}
    state = replace(state, shares=shares, last_soft_round=1100)
    draws = [rule.request(state, t, "site-0").model for t in range(2, 1002)]
    low, high = stats.binom.interval(1 - 1e-6, 1000, 0.7)
    assert low <= sum(draws) <= high
    assert not low <= 500 <= high  # an even coin would be found out
    assert draws == [rule.request(state, t, "site-0").model for t in range(2, 1002)]


def test_after_the_soft_rounds_sites_choose_as_often_as_is_paid_for_and_keep_their_votes() -> None:
    rule = rule_of()
    state, gauges = begun(rule)
    mine, other = int(gauges["cluster"][0]), 1 - int(gauges["cluster"][0])
    assert rule.request(state, 11, "site-0") == SiteRequest(mine, wire.CHOOSE)
    for choice in (other, mine, mine):
        assert rule.request(state, 11, "site-0").use == wire.CHOOSE
        state = later(rule, state, [choice] * 6, chose=True)
    assert state.choices_of("site-0") == 3
    assert rule.request(state, 14, "site-0") == SiteRequest(mine)  # 1 vote against 2 + 3
    state = later(rule, state, [other] * 6, chose=False)
    assert rule.request(state, 15, "site-0") == SiteRequest(mine)


def test_a_newcomer_and_one_that_missed_round_1_choose_at_once() -> None:
    rule = rule_of()
    present = RoundUpdates(1, SITES[1:], first_updates().updates[1:])
    state, _ = begun(rule, present)
    for site in ("site-0", "new"):
        assert state.group_of(site) == -1
        assert rule.request(state, 2, site).use == wire.CHOOSE
    state = later(rule, state, [1], chose=True, sites=("new",))
    assert rule.model_of_site(state, "new") == 1
    without = rule_of(**{"choice": {"kind": "none"}})
    state, gauges = begun(without, RoundUpdates(1, SITES[:5], first_updates().updates[:5]))
    assert without.request(state, 5, "new") == SiteRequest(int(gauges["cluster"][0]))  # 3 of 5


# --- whole runs ------------------------------------------------------------------------------


def scripted(sites: dict[str, Site], folder: Path, **more: Any) -> tuple[RunResult, ScriptedGrid]:
    config = {"strategy": "r-dpcfl", "rounds": 6, "runs-dir": str(folder), "run-id": "r",
              "min-sites": 1, "choice": {"kind": "gaussian", "times": 2}, **more}  # fmt: skip
    if config["strategy"] in ("r-dpcfl", "ifca"):
        config = {f"{config['strategy']}.clusters": 2, **config}
    grid = ScriptedGrid(sites)
    return run(grid, RunConfig.parse(config)), grid


def moving(row: np.ndarray, seed: int) -> Site:
    """Return a site that sends next to the same every round: to repeat itself would refuse it."""

    def site(server_round: int) -> Answer:
        noise = np.random.default_rng([seed, server_round]).standard_normal(SIZE)
        return sends(row + 1e-3 * noise.astype(np.float32))(server_round)

    return site


def two_groups() -> dict[str, Site]:
    rows = first_updates().updates
    return {name: moving(row, i) for i, (name, row) in enumerate(zip(SITES, rows, strict=True))}


def test_a_model_a_cluster_moves_with_its_own_sites_alone(tmp_path: Path) -> None:
    result, _ = scripted(two_groups(), tmp_path, **{"choice": {"kind": "none"}})
    rows = first_updates().updates
    models = wire.unpack_models(server_wire.write_model(result.arrays))
    assert len(models) == 2
    assert len({result.models[s] for s in SITES[:3]}) == 1
    moved = [np.concatenate([a.numpy().ravel() for a in m.values()]) for m in models]
    apart = moved[result.models["site-0"]] - moved[result.models["site-5"]]
    np.testing.assert_allclose(apart, 6 * (rows[:3].mean(0) - rows[3:].mean(0)), atol=0.02)


@pytest.mark.parametrize("choice", [None, 2, -1, 1.0], ids=str)
def test_a_choice_that_is_none_is_dropped(tmp_path: Path, choice: Any) -> None:
    class Odd(ScriptedGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            for reply in replies:
                name = self.names[reply.metadata.src_node_id]
                if name == "site-0" and "choice" in reply.content:
                    del reply.content["choice"]
                    if choice is not None:
                        reply.content["choice"] = ConfigRecord({"choice": choice})
            return replies

    config = {"strategy": "r-dpcfl", "rounds": 6, "r-dpcfl.clusters": 2, "runs-dir": str(tmp_path),
              "run-id": "r", "min-sites": 1,
              "choice": {"kind": "gaussian", "times": 2}}  # fmt: skip
    result = run(Odd(two_groups()), RunConfig.parse(config))
    refused = [event["rejected"].get("site-0", "") for event in result.rounds]
    assert refused[:3] == ["", "", ""]
    assert all("choice" in words or "keys" in words for words in refused[3:])


def test_ifca_tosses_first_and_chooses_then(tmp_path: Path) -> None:
    result, _ = scripted(two_groups(), tmp_path, strategy="ifca", rounds=5)
    chose = [sum(event["gauges"].get("chose", [0])) for event in result.rounds]
    assert chose == [0, 6, 6, 0, 0]


def simulated(folder: Path, strategy: str, **more: Any) -> RunResult:
    config = {"strategy": strategy, "rounds": 5, "epsilons": "inf", "partition": "iid",
              "groups": "label-shift:3:3", "learning-rate": 0.5, "runs-dir": str(folder),
              "run-id": f"{strategy}-{len(list(folder.iterdir()))}", **more}  # fmt: skip
    return run_in_process(RunConfig.parse(config), 6)


def test_clusters_beat_one_model_where_groups_differ(tmp_path: Path) -> None:
    """Without noise the groups are found, and each cluster's model is for its group."""
    for strategy, more in {"r-dpcfl": {"r-dpcfl.clusters": 2}, "oracle-clusters": {}}.items():
        result = simulated(tmp_path, strategy, **more)
        assert result.rounds[-1]["metrics"]["accuracy"] > 0.68, strategy
        groups = [result.models[str(i)] for i in range(6)]
        assert groups == [groups[0]] * 3 + [1 - groups[0]] * 3
        assert (result.folder / "result.json").read_text().count('"models"') == 1
    assert simulated(tmp_path, "global").rounds[-1]["metrics"]["accuracy"] < 0.6


def test_each_baseline_changes_what_it_claims(tmp_path: Path) -> None:
    ends = {
        name: simulated(tmp_path, strategy, **more)
        for name, strategy, more in [
            ("local", "local", {}),
            ("mr-mtl 0", "mr-mtl", {"work": {"pull": 0}}),
            ("mr-mtl auto", "mr-mtl", {}),
            ("mr-mtl 1", "mr-mtl", {"work": {"pull": 1}}),
            ("ditto", "ditto", {}),
        ]
    }
    spread = {}
    for name in ("local", "mr-mtl 0", "mr-mtl auto", "mr-mtl 1"):
        models = wire.unpack_models(server_wire.write_model(ends[name].arrays))
        flat = [np.concatenate([a.numpy().ravel() for a in m.values()]) for m in models]
        spread[name] = float(np.std(flat, axis=0).mean())
    assert spread["mr-mtl 0"] == spread["local"]
    assert spread["mr-mtl auto"] < 0.97 * spread["local"]
    assert spread["mr-mtl 1"] < 0.5 * spread["local"]
    metrics = ends["ditto"].rounds[-1]["metrics"]
    assert metrics["personal-accuracy"] > metrics["accuracy"] + 0.2
    assert "personal-accuracy-minority" in metrics


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"r-dpcfl.clusters": 7}, "'r-dpcfl.clusters' = 7, and 6 sites take part"),
        ({"r-dpcfl.clusters": 1}, "'r-dpcfl.clusters' = 1, and 6 sites"),
        ({"strategy": "ifca", "ifca.clusters": 0}, "set 'ifca.clusters' to 2"),
        ({"strategy": "ifca", "choice": {"kind": "none"}}, "'choice.kind' to a kind other"),
        ({"strategy": "oracle-clusters", "choice": {}}, "needs 'groups'"),
        ({"strategy": "fedavg"}, "'choice.kind' needs .* 'fedavg' asks for no choices"),
        ({"strategy": "oracle-clusters"}, "'choice.kind' needs .* 'oracle-clusters' asks for no"),
        ({"noise-multiplier": 1.0}, "cannot be combined with 'noise-multiplier'"),
        (
            {"participations": 2},
            "'choice.kind' = 'gaussian' cannot be combined with 'participations'",
        ),
        ({"noise": "client"}, "'noise' .* needs one model, and 'r-dpcfl' has several"),
        ({"second": {"kind": "kept", "pull": 0.1}}, "'second' needs one model"),
    ],
    ids=str,
)
def test_bad_terms_are_refused_first(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises((StrategyError, TermsError), match=words):
        scripted(two_groups(), tmp_path, **more)
    journal = tmp_path / "r" / "journal.jsonl"
    assert not journal.exists() or not [
        event for event in read_journal(journal) if event["event"] == "round"
    ]
