"""Sites whose operators have not approved the run: waited for, left out, let in later."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Error

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import Event, read_journal
from hdpfl_flower.monitoring.rejection import Rejection, rejections_in
from server_app.run.rounds import RunResult, run
from strategies.core import roster
from tests.federation import Answer, ScriptedGrid, sends

SIZE = 650
PENDING, REFUSED = (Error(code, "…") for code in (wire.PENDING, wire.REFUSED))
Answers = Callable[[int], Answer]
"""What a site answers the n-th time that it is asked to join, from 0."""


def update_of(name: str) -> Answers:
    """Return a site that sends an update of its own each round."""

    def answer(server_round: int) -> Answer:
        draws = np.random.default_rng([ord(name), server_round])
        return sends(0.1 * draws.standard_normal(SIZE, np.float32))(server_round)

    return answer


class Operators(ScriptedGrid):
    """A deployment whose sites join as their operators decide."""

    engine = "deployment"

    def __init__(self, joins: dict[str, Answers], **trains: Answers) -> None:
        super().__init__({name: trains.get(name, update_of(name)) for name in joins})
        self.joins, self.times = joins, {name: itertools.count() for name in joins}

    def send_and_receive(self, messages, *, timeout=None):  # type: ignore[no-untyped-def]
        for message in list(messages):
            name = self.names[message.metadata.dst_node_id]
            if message.metadata.message_type == wire.JOIN:
                self.facts = {**self.facts, name: self.answer(name)}
        return super().send_and_receive(messages, timeout=timeout)

    def answer(self, name: str) -> dict[str, float] | Error:
        given = self.joins[name](next(self.times[name]))
        return given if isinstance(given, Error) else {}

    def rounds_of(self, name: str) -> list[int]:
        return [number for site, kind, number in self.asked if (site, kind) == (name, wire.TRAIN)]

    def joins_of(self, name: str) -> int:
        return sum(each[:2] == (name, wire.JOIN) for each in self.asked)


def after(number: int) -> Answers:
    """Return a site whose operator approves before it is asked for the ``number``-th time."""
    return lambda time: PENDING if time < number else None


def approves(_: int) -> Answer:
    return None


def waits(_: int) -> Answer:
    return PENDING


def refuses(_: int) -> Answer:
    return REFUSED


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A clock that nothing but waiting moves."""
    now = [0.0]
    monkeypatch.setattr(roster.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(roster.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    yield now


def run_of(grid: Operators, folder: Path, **more: object) -> tuple[RunResult, list[Event]]:
    config = RunConfig.parse({
        "run-id": "r", "runs-dir": str(folder), "rounds": 2, "strategy": "fedavg",
        "evaluation": "none", "min-sites": 2, "join-timeout": 100.0, **more,
    })  # fmt: skip
    result = run(grid, config)
    return result, read_journal(folder / "r" / "journal.jsonl")


def decisions(events: list[Event]) -> list[tuple[str, str]]:
    return [(e["site"], e["status"]) for e in events if e["event"] == "approval"]


def test_the_run_waits_for_operators_and_asks_no_site_before_it_approved(tmp_path: Path) -> None:
    grid = Operators({"a": after(4), "b": approves})
    result, events = run_of(grid, tmp_path)
    assert decisions(events) == [("a", "pending"), ("a", "approved")]
    assert [each["accepted"] for each in result.rounds] == [["a", "b"]] * 2
    first = next(i for i, asked in enumerate(grid.asked) if asked[1] == wire.TRAIN)
    assert [asked[1] for asked in grid.asked[:first]] == [wire.JOIN] * first


def test_after_the_timeout_unapproved_sites_are_left(tmp_path: Path, clock: list[float]) -> None:
    grid = Operators({"a": approves, "b": waits, "c": approves, "d": refuses})
    result, events = run_of(grid, tmp_path)
    assert clock[0] == pytest.approx(101, abs=1)
    assert set(decisions(events)) == {("b", "pending"), ("d", "refused")}
    assert [each["asked"] for each in result.rounds] == [["a", "c"]] * 2
    assert grid.rounds_of("b") == grid.rounds_of("d") == []
    # The final model goes to those who took part.
    assert {name for name, kind, _ in grid.asked if kind == wire.FINISH} == {"a", "c"}


def test_a_refusing_site_is_not_asked_again(tmp_path: Path, clock: list[float]) -> None:
    grid = Operators({"a": approves, "b": refuses, "c": approves})
    run_of(grid, tmp_path)
    assert clock[0] == 0 and grid.joins_of("b") == 1


def test_a_site_that_approves_later_joins_in_a_later_round(
    tmp_path: Path, clock: list[float]
) -> None:
    def slow(server_round: int) -> Answer:
        clock[0] += 50
        return update_of("a")(server_round)

    def decides(_: int) -> Answer:
        return PENDING if clock[0] < 140 else None

    grid = Operators({"a": approves, "b": decides, "c": approves}, a=slow)
    result, events = run_of(grid, tmp_path, rounds=4)
    assert decisions(events) == [("b", "pending"), ("b", "approved")]
    assert result.rounds[0]["asked"] == ["a", "c"]
    assert result.rounds[-1]["accepted"] == ["a", "b", "c"]


def test_a_site_that_withdraws_is_asked_to_join_and_no_more_to_train(tmp_path: Path) -> None:
    grid = Operators(
        {name: approves for name in "abc"},
        b=lambda number: update_of("b")(number) if number == 1 else REFUSED,
    )
    result, events = run_of(grid, tmp_path, rounds=4)
    assert rejections_in(result.rounds[1]) == {"b": Rejection.REFUSED}
    assert decisions(events) == [("b", "refused")]
    assert grid.rounds_of("b") == [1, 2]


def test_a_pending_site_that_does_not_answer_stays_pending(tmp_path: Path) -> None:
    grid = Operators({"a": approves, "b": lambda n: PENDING if n == 0 else Error(3, "gone"),
                      "c": approves})  # fmt: skip
    _, events = run_of(grid, tmp_path)
    assert decisions(events) == [("b", "pending")]
    assert grid.rounds_of("b") == []


class Comes(Operators):
    """A deployment with a site that is offline while it is asked for the second to fifth time."""

    looks = 0

    def get_nodes(self):  # type: ignore[no-untyped-def]
        self.looks += 1
        away = "b" if 3 <= self.looks <= 5 else ""
        return [node for node in super().get_nodes() if node.name != away]


def test_a_returning_site_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = Comes({"a": approves, "b": approves, "c": approves})
    _, events = run_of(grid, tmp_path, rounds=6)
    said = [(e["site"], e["status"]) for e in events if e["event"] == "presence"]
    assert said == [("b", "offline"), ("b", "online")]
    assert "site b is offline: the SuperLink does not hear its node" in caplog.text
    asked = {number for number in range(1, 7) if number in grid.rounds_of("b")}
    assert 0 < len(asked) < 6
    assert max(asked) == 6
