"""A run that goes on ends as one that was never interrupted, under every rule and every guard."""

from __future__ import annotations

import dataclasses
import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from hdpfl_flower import wire
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.privacy.noise import RandomStream, ReleaseStreams
from server_app.run.checkpoint import NAME, Checkpoint, read_checkpoint, write_checkpoint
from server_app.run.resume import open_run
from strategies import make_strategy
from strategies.core.strategy_state import keep_strategy, restore_strategy, save_state
from tests.federation import ScriptedGrid
from tests.server_app.run.resuming import (
    CASES,
    SIZE,
    Killed,
    federation,
    go,
    interrupted,
    memory_folder,  # noqa: F401
    noisy,
    terms_of,
)


def told(folder: Path) -> list[dict[str, Any]]:
    """Return the journal's rounds, without the times."""
    rounds = [e for e in read_journal(folder / "journal.jsonl") if e["event"] == "round"]
    return [{k: v for k, v in e.items() if k not in ("at", "seconds", "phases")} for e in rounds]


@pytest.mark.parametrize("case", CASES)
def test_every_rule_goes_on_as_if_nothing_had_happened(folder: Path, case: str) -> None:
    whole = go(terms_of(folder, "whole", **CASES[case]))
    terms = terms_of(folder, "again", **CASES[case])
    with pytest.raises(Killed):
        go(terms, stop=3)
    at = open_run(folder / "again", terms)
    assert at.server_round == 3
    result = go(at.config, at)
    assert list(result.arrays) == list(whole.arrays)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(result.arrays[name], array)
    assert told(folder / "again") == told(folder / "whole")
    assert len(result.rounds) == len(whole.rounds)
    assert result.privacy.keys() == whole.privacy.keys()
    assert not (folder / "again" / NAME).exists()


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_was_killed_over_its_end_ends_with_the_same_message(
    folder: Path, case: str
) -> None:
    """A site that has kept the final model of a run declines another one."""
    ends: list[list[str]] = []

    class Ends(ScriptedGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            asked = list(messages)
            if asked and asked[0].metadata.message_type == wire.FINISH:
                read = [wire.read_instructions(message.content) for message in asked]
                assert all(1 <= one.server_round <= one.terms.rounds for one in read)
                ends.append([one.digest for one in read])
                if len(ends) == 1:
                    raise Killed
            return super().send_and_receive(asked, timeout=timeout)

    usual = federation()
    terms = terms_of(folder, "r", **CASES[case])
    with pytest.raises(Killed):
        go(terms, grid=Ends(usual.sites, usual.facts))
    at = open_run(folder / "r", terms)
    go(at.config, at, grid=Ends(usual.sites, usual.facts))
    assert ends[0] == ends[1]


def test_the_terms_that_sites_froze_stay_whoever_is_online_then(folder: Path) -> None:
    """Proposed anew with a stricter site that came later, they would be declined by all others."""
    sites = {name: noisy(seed) for seed, name in enumerate("abcd")}
    facts = {name: {"epsilon": 1.0 + seed} for seed, name in enumerate("abcd")}
    terms = terms_of(folder, "r", strategy="minimum")
    strictest = sites.pop("a")
    with pytest.raises(Killed):
        go(terms, stop=2, grid=ScriptedGrid(sites, facts))
    at = open_run(folder / "r")
    result = go(at.config, at, grid=ScriptedGrid({"a": strictest, **sites}, facts))
    assert result.sent is not None
    assert result.sent.epsilon_cap == 2.0
    assert result.rounds[-1]["asked"] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("case", CASES)
def test_nothing_that_a_rule_remembers_is_forgotten(folder: Path, case: str) -> None:
    """Every attribute of a rule is kept, made anew each round, or named here."""
    strategy = make_strategy(terms_of(folder, "r", **CASES[case]))
    grid, record = federation(), ArrayRecord()
    strategy.streams = ReleaseStreams.simulated(1, "server", 0, "round")
    record = wire.write_model({"w": np.zeros(SIZE, np.float32)})
    for number in (1, 2, 3):
        replies = grid.send_and_receive(
            strategy.configure_train(number, record, ConfigRecord(), grid)
        )
        new, _ = strategy.aggregate_train(number, replies)
        record = new or record
    if case == "content":  # as after many rounds of suspicion; what is taken back goes by order
        given = {s: np.full(SIZE, int(s), np.float32) for s in ("4", "1")}
        strategy.guard.state = dataclasses.replace(strategy.guard.state, given=given)
    other = make_strategy(terms_of(folder, "r", **CASES[case]))
    kept = keep_strategy(strategy)
    facts = json.loads(json.dumps(kept.facts))
    restore_strategy(other, type(kept)(facts, {n: a.copy() for n, a in kept.arrays.items()}))
    strategy.sampler.note_declined(strategy.report.declined)
    of_a_round = {
        "messages", "_record", "report", "prepared", "streams", "_lines", "_split",
        "step", "reported",
    }  # fmt: skip
    compare(strategy, other, of_a_round)
    compare(strategy.sampler, other.sampler, {"used_up"})
    compare(strategy.guard, other.guard, {"_gauges", "refused", "_floor", "_public"})
    assert saved(strategy.reported.state) == saved(other.reported.state)
    assert strategy.report.answered == other.report.answered
    assert strategy.roster.disclosed == other.roster.disclosed
    if hasattr(strategy, "_weighting"):
        compare(strategy._weighting, other._weighting, {*of_a_round, "state"})


def in_order(value: object) -> str:
    """Return the text of a value; a set has another order in each of Python's processes."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return repr([(each.name, in_order(getattr(value, each.name))) for each in fields])
    return repr(sorted(value) if isinstance(value, set | frozenset) else value)


def saved(state: object) -> tuple[str, dict[str, tuple[str, bytes]]]:
    """Return what a checkpoint stores of ``state``: its facts in their order, and every bit."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    facts = json.dumps(save_state(state, arrays))
    return facts, {name: (str(a.dtype), a.tobytes()) for name, a in arrays.items()}


def compare(one: object, other: object, but: set[str]) -> None:
    parts = ("roster", "sampler", "guard", "_weighting")
    for name in (vars(one).keys() | vars(other).keys()) - but - set(parts):
        assert in_order(vars(one)[name]) == in_order(vars(other)[name]), name
        if name in ("state", "step_state"):
            assert saved(vars(one)[name]) == saved(vars(other)[name])
        if isinstance(vars(one)[name], dict):
            assert list(vars(one)[name]) == list(vars(other)[name]), f"{name}: the order"
            for key, value in vars(one)[name].items():
                np.testing.assert_array_equal(vars(other)[name][key], value)


def test_a_stream_goes_on_where_it_was() -> None:
    key = bytes(range(32))
    for taken in (0, 1, 15, 16, 17, 4096, 10_001):
        first = RandomStream(key)
        first.bytes(taken)
        assert first.position == taken
        second = RandomStream(key, taken)
        assert second.position == taken
        assert second.bytes(100) == first.bytes(100)
        assert second.position == taken + 100


def test_arrays_come_back_by_name_and_in_order_whatever_they_are(folder: Path) -> None:
    """Several models of one run, empty arrays and single numbers too."""
    own = interrupted(folder)
    at = read_checkpoint(own / NAME)
    model = {
        "1/z": np.float32([[1, 2], [3, 4]]),
        "0/z": np.zeros((0, 3), np.float32),
        "1/a": np.array(7.0, np.float32),
        "0/a": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    }
    changed = Checkpoint(**{**vars(at), "model": model})
    write_checkpoint(own / NAME, changed)
    back = read_checkpoint(own / NAME)
    assert list(back.model) == list(model)
    for name, array in model.items():
        assert back.model[name].shape == array.shape
        assert back.model[name].dtype == array.dtype
        np.testing.assert_array_equal(back.model[name], array)
    size, before = resource.getrlimit(resource.RLIMIT_FSIZE), (own / NAME).read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, size[1]))
    try:
        with pytest.raises(OSError):  # as of a full disk: the operator reads what the system says
            write_checkpoint(own / NAME, at)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, size)
    assert (own / NAME).read_bytes() == before
    assert not list(own.glob("*.part"))
    assert back.kept.facts == at.kept.facts
    assert (own / NAME).stat().st_mode & 0o777 == 0o600
    assert not list(own.glob("*.part"))


def test_who_goes_on_after_three_rounds_without_a_quorum_gets_three_more(folder: Path) -> None:
    down = ScriptedGrid({"a": noisy(1), "b": lambda _: None, "c": lambda _: None})
    terms = terms_of(folder, "r", strategy="fedavg", rounds=9)
    with pytest.raises(StrategyError, match="3 rounds in a row"):
        go(terms, grid=down)
    at = open_run(folder / "r")
    assert (at.server_round, at.missed) == (3, 3)
    with pytest.raises(StrategyError, match="3 rounds in a row"):
        go(at.config, at, grid=down)
    at = open_run(folder / "r")
    assert at.server_round == 6
    assert len(go(at.config, at, grid=ScriptedGrid({n: noisy(8) for n in "a"})).rounds) == 9


def test_a_short_run_that_learned_nothing_is_not_completed_by_resuming(folder: Path) -> None:
    down = ScriptedGrid({"a": noisy(1), "b": lambda _: None, "c": lambda _: None})
    with pytest.raises(StrategyError, match="1 round without"):
        go(terms_of(folder, "r", strategy="fedavg", rounds=1), grid=down)
    at = open_run(folder / "r")
    with pytest.raises(StrategyError, match="1 round without"):
        go(at.config, at, grid=down)
