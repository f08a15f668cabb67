"""Rounds with shared noise at the server: sums, lost rounds, pauses, spare rounds, refusals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError, TermsError
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.monitoring.rejection import Rejection
from hdpfl_flower.shared_noise.members import PART
from hdpfl_flower.shared_noise.ring import encode
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from server_app.run.checkpointing import Checkpoints
from server_app.run.resume import open_run
from server_app.run.rounds import RunResult, ready_kernel, run
from strategies import PARTS, SERVER_STEPS, STRATEGIES
from strategies.core.round_messages import RoundReport
from strategies.core.shared_noise import Rounds
from tests.client_app.messages import SCHEMA
from tests.client_app.sharing_sites import Hospitals, make_sites, shared_terms, without_noise
from tests.federation import NEEDED

SHARED = {
    "noise": "shared",
    "rounds": 2,
    "epsilons": "1,2,3,4",
    "run-id": "run-1",
    "evaluation": "none",
}


def config_of(**more: Any) -> RunConfig:
    return RunConfig.parse({"dataset": "digits", **SHARED, **more})


def sharing(**more: Any) -> Rounds:
    return Rounds(config_of(**more).terms)


def simulated(folder: Path, **more: Any) -> RunResult:
    return run_in_process(config_of(**{"runs-dir": str(folder), **more}), 4)


def rounds_of(result: RunResult) -> list[tuple[int, list[str], bool]]:
    """Return number, asked sites and whether the model moved, of each round."""
    return [(each["round"], each["asked"], "weights" in each) for each in result.rounds]


# Sets and sums.


def test_numbers_are_those_of_the_members_or_of_partitions() -> None:
    listed = sharing(members=f"b={'0' * 32},a={'1' * 32},c={'2' * 32}")
    assert [listed.number(site) for site in ("a", "b", "x", "0", "1")] == [1, 0, -1, -1, -1]
    assert listed.text_of(["a", "c", "b"]) == "0,1,2"
    simulation = sharing()
    names = ("0", "17", "a", "", "-1", "²", "٣")
    assert [simulation.number(site) for site in names] == [0, 17, -1, -1, -1, -1, -1]


def report_of(*sites: str) -> RoundReport:
    return RoundReport(1, list(sites), len(sites))


def _answer(content: RecordDict | Error) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = Message(RecordDict(), 5, wire.TRAIN)
    message.metadata.__dict__["_message_id"] = "m"
    return Message(content, reply_to=message)


def reply_of(values: list[float]) -> Message:
    part = encode(np.array(values))
    return _answer(wire.write_payload(PART, wire.encode(part, "uint64"), "uint64"))


def test_the_step_is_the_mean_of_all_records() -> None:
    """η·C·Σ x / Σ b/z, for each site alike."""
    shared = sharing(**{"learning-rate": 0.5, "clip-norm": 2.0})
    report = report_of("0", "1")
    replies = {"0": reply_of([3.0, -1.0, 10.0]), "1": reply_of([1.0, 5.0, 30.0])}
    updates = shared.accept(replies.items(), report, 2, None)
    np.testing.assert_allclose(updates.updates, [[-0.1, -0.1], [-0.1, -0.1]], rtol=1e-6)
    assert updates.sites == ("0", "1")
    assert report.accepted == report.answered == ["0", "1"]
    assert not report.rejected


BAD: dict[str, Callable[[], Message | None]] = {
    "declined": lambda: _answer(Error(wire.DECLINED, "declined")),
    "too short": lambda: reply_of([1.0, 1.0]),
    "too long": lambda: reply_of([1.0] * 4),
    "an update": lambda: _answer(wire.write_update(wire.encode_update(np.zeros(3, np.float32)), 3)),
    "silent": lambda: None,
}


@pytest.mark.parametrize("case", BAD)
def test_a_round_with_a_missing_part_has_no_sum(case: str) -> None:
    bad = BAD[case]()
    shared, report = sharing(), report_of("0", "1")
    replies = {"0": reply_of([3.0, -1.0, 10.0])} | ({"1": bad} if bad else {})
    updates = shared.accept(replies.items(), report, 2, None)
    assert updates.sites == ()
    assert updates.updates.shape == (0, 2)
    assert list(report.rejected) == ["1"]
    assert report.accepted == []
    assert (shared.declined, shared.failures) == (set(), {"1": 1})


@pytest.mark.parametrize("weight", [0.0, -5.0, 1e-9])
def test_a_sum_with_a_lie_in_it_moves_no_model_out_of_bounds(weight: float) -> None:
    shared, report = sharing(), report_of("0", "1")
    replies = {"0": reply_of([2e6, -1.0, weight]), "1": reply_of([0.0, 0.0, 0.0])}
    updates = shared.accept(replies.items(), report, 2, None)
    assert np.isfinite(updates.updates).all()
    assert np.abs(updates.updates).sum() == 0


def test_a_site_pauses_longer_after_each_lost_round() -> None:
    shared = sharing(rounds=50)
    pauses = []
    for server_round in (1, 20, 60):
        report = RoundReport(server_round, ["0", "1", "2", "3"], 4)
        shared.accept([(s, reply_of([0.0, 1.0])) for s in "012"], report, 1, None)
        pauses.append(shared.back["3"] - server_round - 1)
    assert pauses == [5, 10, 20]
    assert shared.choose(62, ["0", "1", "2", "3"], 4) == ["0", "1", "2"]
    assert shared.choose(81, ["0", "1", "2", "3"], 4) == ["0", "1", "2", "3"]
    # Rather a site that failed once than no round.
    assert shared.choose(62, ["0", "1", "3"], 4) == ["0", "1", "3"]


def test_a_site_that_declines_twice_is_asked_no_more() -> None:
    """Once may be of a round that it answered for another set, before the server's crash."""
    shared = sharing()
    lost = {"0": Rejection.DECLINED, "1": Rejection.LATE}
    shared.note_lost(1, lost)
    assert shared.choose(50, ["0", "1", "2", "3"], 4) == ["0", "1", "2", "3"]
    shared.note_lost(50, lost)
    assert shared.choose(100, ["0", "1", "2", "3"], 4) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("more", "sites", "least"),
    [({}, 4, 3), ({"colluders": 2}, 4, 4), ({"least-members": 4}, 4, 4), ({}, 20, 8)],
)
def test_too_few_sites_are_an_error_that_names_the_keys(
    more: dict[str, int], sites: int, least: int
) -> None:
    shared, names = sharing(**more), [str(number) for number in range(sites)]
    assert shared.choose(1, names[:least], sites) == names[:least]
    with pytest.raises(StrategyError, match=rf"needs {least} sites.*'min-sites'.*'colluders'"):
        shared.choose(1, names[: least - 1], sites)


def test_strangers_are_in_no_set() -> None:
    shared = sharing(members=",".join(f"{n}={i:032x}" for i, n in enumerate("abc")))
    assert shared.choose(1, ["a", "x", "b", "c"], 4) == ["a", "b", "c"]
    with pytest.raises(StrategyError, match="2 members are online"):
        shared.choose(1, ["a", "x", "c"], 3)


# Runs of deployed sites that share noise, some of them away.


def deployed(folder: Path, profiles: dict[str, Path], **more: Any) -> RunConfig:
    terms = shared_terms(profiles)
    return config_of(
        **{
            "dataset": "site",
            "schema": SCHEMA,
            "members": terms.members,
            "epsilons": "0",
            "runs-dir": str(folder / "runs"),
            "rounds": 5,
            "spare-rounds": 0.4,
            **more,
        }
    )


def test_a_lost_round_is_replaced_by_a_spare_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profiles = make_sites(tmp_path)
    grid = Hospitals(profiles, {2: {"c"}})
    with caplog.at_level(logging.WARNING):
        result = run(grid, deployed(tmp_path, profiles))
    assert rounds_of(result) == [
        (1, ["a", "b", "c", "d"], True),
        (2, ["a", "b", "c", "d"], False),
        (3, ["a", "b", "d"], True),
        (4, ["a", "b", "d"], True),
        (5, ["a", "b", "d"], True),
        (6, ["a", "b", "c", "d"], True),
    ]
    assert (
        "round 2 is lost, because site c did not take part in its sum; the site is asked again"
        in caplog.text
    )
    assert result.rounds[1]["rejected"] == {"c": "no reply in time"}


def test_spare_rounds_end_with_a_shorter_run(tmp_path: Path) -> None:
    """Two to spare and three lost: the run ends after four of its five rounds."""
    profiles = make_sites(tmp_path, ("1.2345678",) * 6)
    away = {1: {"c"}, 2: {"d"}, 4: {"e"}}
    result = run(Hospitals(profiles, away), deployed(tmp_path, profiles))
    assert [number for number, _, _ in rounds_of(result)] == [1, 2, 3, 4, 5, 6, 7]
    assert [moved for _, _, moved in rounds_of(result)] == [
        False,
        False,
        True,
        False,
        True,
        True,
        True,
    ]


def test_without_spare_rounds_a_lost_one_is_lost(tmp_path: Path) -> None:
    profiles = make_sites(tmp_path)
    config = deployed(tmp_path, profiles, **{"spare-rounds": 0.0})
    result = run(Hospitals(profiles, {2: {"c"}}), config)
    assert [moved for _, _, moved in rounds_of(result)] == [True, False, True, True, True]


def test_three_lost_rounds_in_a_row_end_a_run(tmp_path: Path) -> None:
    profiles = make_sites(tmp_path)
    away = {server_round: {"b", "c"} for server_round in range(1, 9)}
    with pytest.raises(StrategyError, match="3 rounds in a row without a quorum"):
        run(Hospitals(profiles, away), deployed(tmp_path, profiles))


def test_the_journal_names_no_norm_of_a_single_site(tmp_path: Path) -> None:
    profiles = make_sites(tmp_path)
    result = run(Hospitals(profiles), deployed(tmp_path, profiles))
    for event in read_journal(result.folder / "journal.jsonl"):
        assert "norms" not in event


def test_a_run_without_noise_is_the_mean_of_scaled_sums(tmp_path: Path) -> None:
    """Sites of equal z and blurs that cancel: the step is that of all records together."""
    profiles = make_sites(tmp_path, ("1.2345678",) * 4)
    with without_noise():
        result = run(Hospitals(profiles), deployed(tmp_path, profiles, rounds=1))
    (line,) = result.rounds
    assert len(line["accepted"]) == 4
    moved = np.concatenate([array.ravel() for array in result.arrays.values()])
    assert np.isfinite(moved).all()
    assert np.abs(moved).max() > 0


class Killed(BaseException):
    """Ends a run where it is."""


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_a_resumed_run_goes_on_with_the_spare_rounds_that_are_left(
    tmp_path: Path, stop: int
) -> None:
    """Killed after each round, of which the second is lost: five rounds move the model."""
    profiles = make_sites(tmp_path)
    config = deployed(tmp_path, profiles)

    def note(event: dict[str, Any]) -> None:
        if event["event"] == "round" and event["round"] == stop:
            raise Killed

    away = {2: {"c"}}
    with pytest.raises(Killed):
        run(Hospitals(profiles, away), config, note, checkpoints=Checkpoints({"engine": "test"}))
    checkpoint = open_run(tmp_path / "runs" / "run-1", config)
    assert checkpoint.server_round == stop
    grid = Hospitals(profiles, away)
    result = run(grid, checkpoint.config, checkpoints=Checkpoints({"engine": "test"}, checkpoint))
    assert [each["round"] for each in result.rounds] == [1, 2, 3, 4, 5, 6]
    assert [moved for _, _, moved in rounds_of(result)] == [True, False, True, True, True, True]
    assert all(server_round > stop for server_round, _ in grid.asked)


class Crashing(Hospitals):
    """Sites whose server ends in round 3: they have answered, and nothing of it is stored."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        replies = super().send_and_receive(messages, timeout=timeout)
        if self.asked and self.asked[-1][0] == 3:
            raise Killed
        return replies


def resumed_after_a_crash(
    folder: Path, profiles: dict[str, Path], away: dict[int, set[str]], *gone: str
) -> RunResult:
    """Return a run whose server crashed in round 3, and went on without sites that are gone."""
    config = deployed(folder, profiles)
    with pytest.raises(Killed):
        run(Crashing(profiles, away), config, checkpoints=Checkpoints({"engine": "test"}))
    checkpoint = open_run(folder / "runs" / "run-1", config)
    assert checkpoint.server_round == 2
    there = {name: path for name, path in profiles.items() if name not in gone}
    checkpoints = Checkpoints({"engine": "test"}, checkpoint)
    return run(Hospitals(there, away), checkpoint.config, checkpoints=checkpoints)


def test_a_round_that_was_asked_before_a_crash_has_the_same_set_after_it(tmp_path: Path) -> None:
    """Sites answer a round for one set: another would lose it, and the next ones."""
    result = resumed_after_a_crash(tmp_path, make_sites(tmp_path), {2: {"c"}})
    assert [moved for _, _, moved in rounds_of(result)] == [True, False, True, True, True, True]
    assert rounds_of(result)[2][1] == ["a", "b", "d"]


def test_sites_that_decline_another_set_once_are_asked_again(tmp_path: Path) -> None:
    """One site is gone after the crash: the others decline the smaller set, for that round."""
    result = resumed_after_a_crash(tmp_path, make_sites(tmp_path), {}, "d")
    assert result.rounds[2]["rejected"] == dict.fromkeys("abc", "declined")
    assert [moved for _, _, moved in rounds_of(result)] == [True, True, False, True, True, True]


# What runs on the sum, and what is refused.

WORKS: dict[str, dict[str, Any]] = {
    "the default": {},
    **{f"fedavg+{step}": {"strategy": f"fedavg+{step}"} for step in SERVER_STEPS},
    "found rate": {"server-learning-rate": "found"},
    "open rate": {"learning-rate": "auto"},
    "schedule": {"server-learning-rate": 0.5, "server-schedule": "sqrt"},
    **{f"average {kind}": {"average": kind} for kind in ("tail", "ema", "ergodic")},
    "noise that falls": {"spend": {"kind": "late", "ratio": 3}},
    "prior": {"after.prior.share": 0.1},
    "tuning": {"after.tuning.steps": 3, "model": "mlp:10"},
    "second": {"second": {"kind": "kept", "pull": 0.1}},
    "private second": {"second": {"kind": "private", "pull": 0.1}},
    "ditto": {"strategy": "ditto"},
    "minimum": {"strategy": "minimum"},
    "all the rounds that noise affords": {"noise-multiplier": 30.0},
    "no privacy at one site": {"epsilons": "1,2,3,inf"},
    "tests at sites": {"evaluation": "sites"},
    "Poisson batches": {"batch-sizes": "32"},
    "three sites of four": {"fraction": 0.75},
}


@pytest.mark.parametrize("case", WORKS)
def test_what_needs_the_sum_alone_runs(tmp_path: Path, case: str) -> None:
    result = simulated(tmp_path, **WORKS[case])
    assert [len(each["accepted"]) for each in result.rounds] == [
        3 if case == "three sites of four" else 4
    ] * 2
    assert all(np.isfinite(array).all() for array in result.arrays.values())


REFUSED: dict[str, dict[str, Any]] = {
    "'guard' needs single updates": {"guard": "cap"},
    "'guard' needs single": {"guard": "content"},
    "'quorum' needs single updates.*'least-members'": {"quorum": 2},
    "'after.shrink'": {"after.shrink.scale": 0.05},
    "'local-steps'.*noise = 'records'": {"local-steps": 2},
    "'local-epochs'": {"local-epochs": 2},
    "'work'": {"work": {"first-batch": "full", "kind": "plain"}},
    "'choice.kind'": {"choice": {"kind": "gaussian", "times": 1}},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_needs_more_is_refused_by_name(words: str) -> None:
    with pytest.raises(TermsError, match=words) as refused:
        ready_kernel(config_of(**REFUSED[words]))
    assert "\n" not in str(refused.value)


def outcome_of(folder: Path, **more: Any) -> str:
    """Return the line that refuses a run, or nothing where two rounds of all sites pass."""
    try:
        result = simulated(folder, **more)
    except TermsError as error:
        return str(error)
    assert [(len(each["accepted"]), each["rejected"]) for each in result.rounds] == [(4, {})] * 2
    return ""


RUN = {
    "fedavg",
    "minimum",
    "maximum",
    "global",
    "ditto",
    "fedper",
    "fedbabu",
    "dp-fedavg-fb",
}
"""Strategies that may run on the sum; every other one is refused before any site is asked."""


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_runs_on_the_sum_or_is_refused_by_name(tmp_path: Path, name: str) -> None:
    needed = {"groups": "label-shift:2:2"} if name == "oracle-clusters" else NEEDED.get(name, {})
    line = outcome_of(tmp_path, strategy=name, **needed)
    assert name in RUN or line
    assert "\n" not in line
    if line:
        assert "'noise' = 'shared' needs" in line or "noise = 'shared' sums" in line
        assert "take 'fedavg'" in line or "take noise = 'records'" in line


@pytest.mark.parametrize(
    "part", sorted({name for table in PARTS for name in table} - {*SERVER_STEPS})
)
def test_every_part_beside_the_mean_is_refused(part: str) -> None:
    needed = {f"{part}.clusters": 2} if part in ("ifca", "r-dpcfl") else {}
    with pytest.raises(TermsError, match=r"'fedavg'|noise = 'records'"):
        ready_kernel(config_of(strategy=f"fedavg+{part}", **needed))


def test_a_run_whose_sites_have_all_taken_part_ends(tmp_path: Path) -> None:
    result = simulated(tmp_path, participations=1, rounds=5)
    assert [len(each["accepted"]) for each in result.rounds] == [4]
