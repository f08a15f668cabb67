"""A run that goes on ends as one that was never interrupted, under every rule and every guard."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, RecordDict

from hdpfl_flower import wire
from hdpfl_flower.config import RunTerms
from hdpfl_flower.errors import CheckpointError, StrategyError, TermsError
from hdpfl_flower.journal import Journal, read_journal
from hdpfl_flower.noise import RandomStream, ReleaseStreams
from server_app.app import run_or_resume
from server_app.checkpoint import NAME, Checkpoint, read_checkpoint, write_checkpoint
from server_app.checkpointing import Checkpoints
from server_app.commands.resume import resume
from server_app.resume import open_run, run_folder
from server_app.rounds import RunResult, run
from strategies import STRATEGIES, make_strategy
from strategies.keeping import keep_strategy, restore_strategy
from tests.federation import NEEDED, ScriptedGrid, Site

SIZE, ROUNDS = 650, 6
MEMORY, APP = Path("/dev/shm"), Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder where waiting for the disk costs nothing."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as name:
        yield Path(name)


class Killed(BaseException):
    """Ends a run where it is; what it would still write is taken away by the test."""


def liar(_: int) -> RecordDict:
    return wire.write_update(wire.encode_update(np.full(SIZE, 0.02, np.float32)), SIZE)


def noisy(seed: int) -> Site:
    def site(server_round: int) -> RecordDict | Error | None:
        if (seed + server_round) % 7 == 3:
            return Error(wire.DECLINED, "declined")
        noise = np.random.default_rng([seed, server_round]).standard_normal(SIZE)
        update = 0.01 + 0.002 * (1 + seed) * noise.astype(np.float32)
        return wire.write_update(wire.encode_update(update.astype(np.float32)), SIZE)

    return site


def federation() -> ScriptedGrid:
    sites = {str(i): noisy(i) for i in range(7)}
    facts = {
        str(i): {"declared-records": 100.0 + i, "batch-size": 10.0, "noise-std": 0.1 * (1 + i)}
        | {"epsilon": float("inf") if i > 4 else 0.5 * (1 + i)}
        for i in range(8)
    }
    return ScriptedGrid({**sites, "7": liar}, facts)


CASES: dict[str, dict[str, Any]] = {
    **{name: {"strategy": name} for name in STRATEGIES},
    "fedhdp+pfa": {"strategy": "fedhdp+pfa"},
    "trusted server": {"strategy": "fedhdp", "noise": "server", "fraction": 0.6},
    "moving clip norm": {"strategy": "dp-fedavg", "noise": "server", "clip-lr": 0.5},
    "evidence": {"strategy": "robust-hdp", "guard": "evidence"},
    "centred-clipping": {"strategy": "robust-hdp", "guard": "centred-clipping"},
    "drawn sites": {"strategy": "fedavg", "fraction": 0.4, "participations": 3},
    "who has left": {"strategy": "fedavg", "noise-multiplier": 1.0},
    "a public site": {"strategy": "weiavg", "fraction": 0.4, "require-public": True},
}


def terms_of(folder: Path, run_id: str, **more: Any) -> RunTerms:
    config = {"rounds": ROUNDS, "runs-dir": str(folder), "run-id": run_id, "evaluation": "none"}
    needed = NEEDED.get(more.get("strategy", ""), {})
    return RunTerms.parse({"min-sites": 1, "quorum": 0, **config, **needed, **more})


def go(
    terms: RunTerms, at: Checkpoint | None = None, stop: int = 0, grid: ScriptedGrid | None = None
) -> RunResult:
    """Run, or go on; with ``stop`` only as far as that round's line in the journal."""

    def on_event(event: dict[str, Any]) -> None:
        if stop and event["event"] == "round" and event["round"] == stop:
            raise Killed

    streams = ReleaseStreams.simulated(1, "server", 0, "round", (at and at.streams) or (0, 0))
    checkpoints = Checkpoints({"engine": "test"}, at, seeded=True)
    return run(
        grid or federation(), terms, on_event, picture=False, streams=streams,
        checkpoints=checkpoints,
    )  # fmt: skip


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
    result = go(at.terms, at)
    assert list(result.arrays) == list(whole.arrays)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(result.arrays[name], array)
    assert told(folder / "again") == told(folder / "whole")
    assert len(result.rounds) == len(whole.rounds)
    assert result.privacy.keys() == whole.privacy.keys()
    assert not (folder / "again" / NAME).exists()


def test_the_terms_that_sites_froze_stay_whoever_is_online_then(folder: Path) -> None:
    """Proposed anew without the strictest site, they would be declined by all the others."""
    sites = {name: noisy(seed) for seed, name in enumerate("abcd")}
    facts = {name: {"epsilon": 1.0 + seed} for seed, name in enumerate("abcd")}
    terms = terms_of(folder, "r", strategy="minimum")
    with pytest.raises(Killed):
        go(terms, stop=2, grid=ScriptedGrid(sites, facts))
    at = open_run(folder / "r")
    del sites["a"]
    result = go(at.terms, at, grid=ScriptedGrid(sites, facts))
    assert result.sent is not None
    assert result.sent.epsilon_cap == 1.0
    assert result.rounds[-1]["asked"] == ["b", "c", "d"]


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
    if case == "evidence":  # as after many rounds of suspicion; what is taken back goes by order
        strategy.guard.given = {s: np.full(SIZE, int(s), np.float32) for s in ("4", "1")}
    other = make_strategy(terms_of(folder, "r", **CASES[case]))
    kept = keep_strategy(strategy)
    facts = json.loads(json.dumps(kept.facts))
    restore_strategy(other, type(kept)(facts, {n: a.copy() for n, a in kept.arrays.items()}))
    strategy.sampler.heard(strategy.report.declined)
    of_a_round = {
        "_like", "_exchange", "report", "prepared", "streams", "_placed", "_lines", "_public",
        "_asked", "_numbers", "_trained", "_held", "_common", "_mean", "_record", "_models",
    }  # fmt: skip
    compare(strategy, other, of_a_round)
    compare(strategy.sampler, other.sampler, {"used_up"})
    compare(strategy.guard, other.guard, {"_gauges", "refused", "_settings"})
    assert strategy.roster.disclosed == other.roster.disclosed
    if hasattr(strategy, "_rule"):
        compare(strategy._rule, other._rule, {*of_a_round, "state"})  # type: ignore[attr-defined]


def in_order(value: object) -> str:
    """Return the text of a value; a set has another order in each of Python's processes."""
    return repr(sorted(value) if isinstance(value, set | frozenset) else value)


def compare(one: object, other: object, but: set[str]) -> None:
    parts = ("roster", "sampler", "guard", "_rule")
    for name in (vars(one).keys() | vars(other).keys()) - but - set(parts):
        assert in_order(vars(one)[name]) == in_order(vars(other)[name]), name
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


# --- the file ---------------------------------------------------------------------------------


def interrupted(runs: Path, **more: Any) -> Path:
    with pytest.raises(Killed):
        go(terms_of(runs, "r", strategy="robust-hdp", **more), stop=2)
    return runs / "r"


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
    assert back.kept.facts == at.kept.facts
    assert (own / NAME).stat().st_mode & 0o777 == 0o600
    assert not list(own.glob("*.part"))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.97])
def test_one_changed_bit_is_damage(folder: Path, share: float) -> None:
    path = interrupted(folder) / NAME
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_file_cut_short_is_damage(folder: Path, share: float) -> None:
    path = interrupted(folder) / NAME
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match="damaged"):
        open_run(path.parent)


def test_another_version_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = interrupted(folder)
    monkeypatch.setattr("server_app.checkpoint.VERSION", "9.9.9")
    with pytest.raises(
        CheckpointError, match=r"written by hdpfl-flower 0\.1\.0 .* this is 9\.9\.9"
    ):
        open_run(own)


# --- who may go on ----------------------------------------------------------------------------


def test_a_complete_run_is_refused(folder: Path) -> None:
    go(terms_of(folder, "r", strategy="fedavg"))
    with pytest.raises(CheckpointError, match="complete"):
        open_run(folder / "r")


def test_a_run_killed_between_its_last_line_and_its_checkpoints_end_is_complete(
    folder: Path,
) -> None:
    own = interrupted(folder)
    checkpoint = (own / NAME).read_bytes()
    at = open_run(own)
    go(at.terms, at)
    (own / NAME).write_bytes(checkpoint)
    with pytest.raises(CheckpointError, match="complete"):
        open_run(own)


def test_an_old_checkpoint_does_not_release_a_round_again(folder: Path) -> None:
    terms = terms_of(folder, "r", strategy="dp-fedavg", noise="server")
    with pytest.raises(Killed):
        go(terms, stop=2)
    old = (folder / "r" / NAME).read_bytes()
    at = open_run(folder / "r")
    with pytest.raises(Killed):
        go(at.terms, at, stop=4)
    (folder / "r" / NAME).write_bytes(old)
    with pytest.raises(CheckpointError, match="of round 2, and its journal of round 4"):
        open_run(folder / "r")


def test_a_journal_cut_short_is_refused(folder: Path) -> None:
    own = interrupted(folder)
    lines = (own / "journal.jsonl").read_text().splitlines(keepends=True)
    (own / "journal.jsonl").write_text("".join(lines[:2]))
    with pytest.raises(CheckpointError, match="shorter"):
        open_run(own)


def test_a_run_that_was_moved_is_refused(folder: Path) -> None:
    own = interrupted(folder)
    own.rename(folder / "elsewhere")
    with pytest.raises(CheckpointError, match="runs-dir"):
        open_run(folder / "elsewhere")


def test_no_run_and_no_checkpoint_are_said(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no run 'x'"):
        run_folder("x", str(folder))
    own = interrupted(folder)
    (own / NAME).unlink()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        open_run(own)


def test_a_new_run_does_not_begin_over_one_that_can_go_on(folder: Path) -> None:
    own = interrupted(folder)
    before = (own / "journal.jsonl").read_text()
    with pytest.raises(CheckpointError, match="can go on: hdpfl resume"):
        go(terms_of(folder, "r", strategy="robust-hdp"))
    assert (own / "journal.jsonl").read_text() == before


def test_two_processes_do_not_work_on_one_run(folder: Path) -> None:
    own = interrupted(folder)
    at = open_run(own)

    def meanwhile(event: dict[str, Any]) -> None:
        if event["event"] == "run-resumed":
            with pytest.raises(CheckpointError, match="at work in another process"):
                go(at.terms, at)

    run(federation(), at.terms, meanwhile, picture=False,
        checkpoints=Checkpoints({}, at))  # fmt: skip


def test_ctrl_c_says_how_to_go_on(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = interrupted(folder)
    assert f"the run can go on: hdpfl resume {own}" in caplog.text


# --- hdpfl resume RUN SUPERLINK: tests/e2e/test_resume.py runs it to its good end -----------------


def test_without_the_app_it_says_how_to_name_it(folder: Path) -> None:
    own = interrupted(folder)
    with pytest.raises(CheckpointError, match=f"no app in {folder}; .*--app"):
        resume(str(own), "consortium", folder)


def test_a_run_that_was_not_submitted_is_no_failed_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own = interrupted(folder)
    before = (own / "journal.jsonl").read_text()
    monkeypatch.setenv("FLWR_HOME", str(folder / "flwr"))
    with pytest.raises(CheckpointError, match="was not submitted; flwr run says why, above"):
        resume(str(own), "consortium", APP)
    assert "consortium" in "".join(capfd.readouterr())
    assert (own / "journal.jsonl").read_text() == before


def test_a_run_that_goes_on_without_its_log_is_not_called_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = interrupted(folder)
    command = importlib.import_module("server_app.commands.resume")
    monkeypatch.setattr(command, "flower_command", lambda *_: ["true"])
    journal = Journal(own / "journal.jsonl")
    assert journal.hold()
    with pytest.raises(CheckpointError, match="the log broke off; the run goes on"):
        resume(str(own), "consortium", APP)
    journal.close()
    with pytest.raises(CheckpointError, match="has not come to its end"):
        resume(str(own), "consortium", APP)


def test_a_run_of_another_user_is_said(folder: Path) -> None:
    own, root = interrupted(folder), os.geteuid() == 0
    folder.chmod(0o700 if root else 0)
    try:
        if root:
            os.seteuid(65534)
        with pytest.raises(CheckpointError, match="cannot be read by this user"):
            run_folder(str(own))
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)


# --- flwr run -c "resume-from=…" ----------------------------------------------------------------


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.rounds.plot_run", lambda *_: None)


def config_of(folder: Path, **more: Any) -> dict[str, Any]:
    terms = {"strategy": "fedavg", "rounds": 4, "min-sites": 1, "evaluation": "none"}
    return {**RunTerms().as_config(), **terms, "runs-dir": str(folder), "run-id": "f", **more}


class StopsIn(ScriptedGrid):
    """A grid that dies when it is to send a round."""

    at = 3

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        if messages and wire.read_instructions(messages[0].content).server_round == self.at:
            raise Killed
        return super().send_and_receive(messages, timeout=timeout)


@pytest.mark.usefixtures("no_picture")
def test_resume_from_is_the_servers_own_and_needs_no_other_key(folder: Path) -> None:
    """Terms that are not said are the run's; no site hears of the key, and the run id stays."""
    sites = {str(i): noisy(i) for i in range(4)}
    with pytest.raises(Killed):
        run_or_resume(StopsIn(sites), {**config_of(folder), "resume-from": ""})
    seen: set[str] = set()

    class Listens(ScriptedGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            messages = list(messages)
            seen.update(wire.read_instructions(m.content).terms.to_json() for m in messages)
            return super().send_and_receive(messages, timeout=timeout)

    defaults = RunTerms().as_config()
    result = run_or_resume(Listens(sites), {**defaults, "resume-from": str(folder / "f")})
    assert [event["round"] for event in result.rounds] == [1, 2, 3, 4]
    assert result.run_id == "f"
    (text,) = seen
    assert "resume" not in text
    events = [event["event"] for event in read_journal(folder / "f" / "journal.jsonl")]
    assert events.count("run-started") == events.count("run-resumed") == 1
    again = {**defaults, "runs-dir": str(folder), "resume-from": "f"}
    with pytest.raises(CheckpointError, match="complete"):
        run_or_resume(Listens(sites), again)


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize(
    ("key", "value"), [("rounds", 40), ("clip-norm", 3.0), ("run-id", "g"), ("quorum", 1)]
)
def test_a_term_that_differs_is_refused_by_name(folder: Path, key: str, value: Any) -> None:
    sites = {str(i): noisy(i) for i in range(4)}
    with pytest.raises(Killed):
        run_or_resume(StopsIn(sites), config_of(folder))
    with pytest.raises(CheckpointError, match=f"'{key}' is not what run 'f' began with"):
        run_or_resume(
            ScriptedGrid(sites),
            config_of(folder, **{key: value, "resume-from": str(folder / "f")}),
        )


def test_resume_from_is_a_text(folder: Path) -> None:
    with pytest.raises(TermsError, match="'resume-from' must be a text"):
        run_or_resume(ScriptedGrid({}), {"resume-from": 3})


# --- rounds without a quorum --------------------------------------------------------------------


def test_who_goes_on_after_three_rounds_without_a_quorum_gets_three_more(folder: Path) -> None:
    down = ScriptedGrid({"a": noisy(1), "b": lambda _: None, "c": lambda _: None})
    terms = terms_of(folder, "r", strategy="fedavg", rounds=9)
    with pytest.raises(StrategyError, match="3 rounds in a row"):
        go(terms, grid=down)
    at = open_run(folder / "r")
    assert (at.server_round, at.missed) == (3, 3)
    with pytest.raises(StrategyError, match="3 rounds in a row"):
        go(at.terms, at, grid=down)
    at = open_run(folder / "r")
    assert at.server_round == 6
    assert len(go(at.terms, at, grid=ScriptedGrid({n: noisy(8) for n in "a"})).rounds) == 9


def test_a_short_run_that_learned_nothing_is_not_completed_by_resuming(folder: Path) -> None:
    down = ScriptedGrid({"a": noisy(1), "b": lambda _: None, "c": lambda _: None})
    with pytest.raises(StrategyError, match="1 round without"):
        go(terms_of(folder, "r", strategy="fedavg", rounds=1), grid=down)
    at = open_run(folder / "r")
    with pytest.raises(StrategyError, match="1 round without"):
        go(at.terms, at, grid=down)
