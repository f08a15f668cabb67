"""The round runner: it survives every bad reply, records it, and keeps the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, RecordDict

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.monitoring.influence import Decides, warn_of
from hdpfl_flower.monitoring.journal import read_journal
from server_app.app import _notice_of
from server_app.run.rounds import RunResult, finalize_terms, run
from strategies import STRATEGIES, make_kernel
from tests.cases import sampled
from tests.federation import NEEDED, ScriptedGrid, Site

SIZE = 650
HONEST = np.full(SIZE, 0.01, np.float32)
FACTS = {"declared-records": 100.0, "epsilon": 1.0, "noise-std": 0.1}


def terms_of(tmp_path: Path, **more: Any) -> RunConfig:
    config = {"strategy": "fedavg", "rounds": 3, "run-id": "r", "min-sites": 1}
    return RunConfig.parse({**config, "runs-dir": str(tmp_path), **more})


def noisy(seed: int) -> Site:
    def site(server_round: int) -> RecordDict:
        noise = np.random.default_rng([seed, server_round]).standard_normal(SIZE)
        update = HONEST + 0.01 * noise.astype(np.float32)
        return wire.write_update(wire.encode_update(update), SIZE)

    return site


def federation(odd: Site, honest: int = 5, **more: Site) -> ScriptedGrid:
    sites = {f"site-{i}": noisy(i) for i in range(honest)}
    sites = {**sites, "odd": odd, **more}
    return ScriptedGrid(sites, {name: FACTS for name in sites})


def rounds_of(tmp_path: Path) -> list[dict[str, Any]]:
    return [e for e in read_journal(tmp_path / "r" / "journal.jsonl") if e["event"] == "round"]


def answer(values: Any) -> Site:
    return lambda _: RecordDict({"update": ArrayRecord({"update": Array(np.asarray(values))})})


def lying_header(_: int) -> RecordDict:
    data = Array(HONEST).data.replace(b"(650,), }      ", b"(650000000,), }")
    return RecordDict(
        {"update": ArrayRecord({"update": Array("float32", (SIZE,), "numpy.ndarray", data)})}
    )


FAULTS: dict[str, tuple[Site, str]] = {
    "NaN": (answer(np.full(SIZE, np.nan, np.float32)), "not finite"),
    "Inf": (answer(np.full(SIZE, np.inf, np.float32)), "not finite"),
    "1e30": (answer(np.full(SIZE, 1e30, np.float32)), "norm"),
    "wrong shape": (answer(np.zeros(SIZE + 1, np.float32)), "shape"),
    "broadcastable shape": (answer(np.zeros(1, np.float32)), "shape"),
    "wrong dtype": (answer(np.zeros(SIZE)), "type"),
    "extra key": (lambda _: RecordDict({**answer(HONEST)(1), "x": ArrayRecord()}), "keys"),  # type: ignore[dict-item]
    "missing key": (lambda _: RecordDict(), "keys"),
    "header of 2 GiB": (lying_header, "header"),
    "declined": (lambda _: Error(wire.DECLINED, "declined"), "declined"),
    "failed": (lambda _: Error(wire.FAILED, "failed"), "failed"),
    "an exception's text": (lambda _: Error(2, "Traceback: PATIENT-123"), "not delivered: 2"),
    "too late": (lambda _: Error(3, "Message unavailable"), "no reply in time"),
    "killed": (lambda _: Error(8, "ClientApp stopped responding."), "its work ended early"),
    "gone": (lambda _: Error(5, "Node unavailable"), "no reply in time"),
    "dead": (lambda _: None, "no reply in time"),
}


@pytest.fixture(scope="module")
def without_it(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Arrays]:
    """Strategy → the model of the honest sites alone, trained once for all faults."""

    @cache
    def train(strategy: str) -> Arrays:
        folder = tmp_path_factory.mktemp("without")
        sites = [f"site-{i}" for i in range(5)]
        grid = ScriptedGrid(
            {site: noisy(i) for i, site in enumerate(sites)}, {site: FACTS for site in sites}
        )
        return run(grid, terms_of(folder, strategy=strategy, **NEEDED.get(strategy, {}))).arrays

    return train


@pytest.mark.parametrize(
    "strategy", sampled(STRATEGIES, ("mmse", "pfa", "fedhdp", "ifca", "splitting"))
)
def test_no_fault_changes_anything_under_any_strategy(
    tmp_path: Path, strategy: str, without_it: Callable[[str], Arrays]
) -> None:
    """All faults in every round: what one of them changes, nothing takes back."""
    bad = {f"bad {fault}": site for fault, (site, _) in FAULTS.items()}
    words = {f"bad {fault}": said for fault, (_, said) in FAULTS.items()}
    sites = {f"site-{i}": noisy(i) for i in range(5)} | bad
    grid = ScriptedGrid(sites, {name: FACTS for name in sites})
    with_it = run(grid, terms_of(tmp_path, strategy=strategy, quorum=5, **NEEDED.get(strategy, {})))
    for name, array in without_it(strategy).items():
        np.testing.assert_array_equal(with_it.arrays[name], array)
    assert len(rounds_of(tmp_path)) == 3
    for event in rounds_of(tmp_path):
        assert event["rejected"].keys() == words.keys()
        assert all(word in event["rejected"][site] for site, word in words.items())
        assert event["accepted"] == [f"site-{i}" for i in range(5)]
        assert "PATIENT" not in json.dumps(event)


def test_a_second_reply_of_a_site_is_ignored(tmp_path: Path) -> None:
    grid = federation(noisy(9))
    once = run(grid, terms_of(tmp_path))
    grid.duplicated = {"odd"}
    twice = run(grid, terms_of(tmp_path, **{"run-id": "twice"}))
    for name, array in once.arrays.items():
        np.testing.assert_array_equal(twice.arrays[name], array)


def test_without_a_quorum_the_model_stays_and_three_in_a_row_end_the_run(tmp_path: Path) -> None:
    failed: Site = lambda _: Error(wire.FAILED, "failed")  # noqa: E731
    grid = ScriptedGrid({"a": noisy(1), "b": failed, "c": failed})
    with pytest.raises(StrategyError, match="3 rounds in a row without a quorum"):
        run(grid, terms_of(tmp_path, rounds=10))
    events = rounds_of(tmp_path)
    assert len(events) == 3
    assert all("weights" not in event for event in events)
    assert json.loads((tmp_path / "r" / "result.json").read_text())["rounds"] == 3


def test_a_round_lost_is_not_a_run_lost(tmp_path: Path) -> None:
    def now_and_then(seed: int) -> Site:
        return lambda t: None if t == 2 else noisy(seed)(t)

    grid = ScriptedGrid({"a": noisy(1), "b": now_and_then(7), "c": now_and_then(8)})
    result = run(grid, terms_of(tmp_path))
    assert [len(event["accepted"]) for event in result.rounds] == [3, 1, 3]
    assert "weights" not in result.rounds[1]


def test_participants_are_not_logged_under_server_noise(caplog: pytest.LogCaptureFixture) -> None:
    for named in (False, True):
        warn_of(2, Decides("model", 0, "secret-site", 0.75), named=named)
        assert ("secret-site" in caplog.text) is named


def test_a_run_leaves_its_files_and_no_profile_value(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    seen: list[str] = []
    result = run(
        federation(noisy(1)), terms_of(tmp_path), lambda event: seen.append(event["event"])
    )
    start, end = ["run-started", "privacy"], ["measures", "run-finished"]
    assert seen == [*start, "round", "round", "round", *end]
    folder = tmp_path / "r"
    written = {path.name for path in folder.iterdir()}
    assert written == {"journal.jsonl", "model.safetensors", "result.json"}
    saved = load_file(folder / "model.safetensors")
    for name, array in result.arrays.items():
        np.testing.assert_array_equal(saved[name], array)
    content = json.loads((folder / "result.json").read_text())
    assert content["run-id"] == "r"
    assert 0 <= content["metrics"]["accuracy"] <= 1


def test_flowers_own_start_runs_the_same_rule(tmp_path: Path) -> None:
    """Any ServerApp can run a strategy with Flower's Strategy.start."""
    terms = finalize_terms(terms_of(tmp_path))
    ours: RunResult = run(federation(noisy(8)), terms)
    from hdpfl_flower.data.run_task import task_for
    from hdpfl_flower.models.networks import arrays_of, build_model

    initial = arrays_of(
        build_model(terms.terms.model, task_for(terms.terms), terms.simulation.seed)
    )
    theirs = make_kernel(terms).start(
        federation(noisy(8)), server_wire.write_model(initial), num_rounds=3
    )
    for name, array in ours.arrays.items():
        np.testing.assert_array_equal(theirs.arrays[name].numpy(), array)


# --- what a person is told of a run: of approvals that wait and of its end, and nothing private


def test_each_event_has_its_notice() -> None:
    assert _notice_of({"event": "approval", "site": "a", "status": "approved"}) == {}
    pending = {"event": "approval", "site": "a", "status": "pending"}
    assert _notice_of(pending) == {"notice": "request-pending", "site": "a"}
    assert _notice_of({"event": "round"}) == {}
