"""A run that goes on ends as one that was never interrupted, under every rule and every guard."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower import wire
from hdpfl_flower.errors import CheckpointError
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.privacy.noise import RandomStream
from server_app.run.checkpoint import NAME, Checkpoint, read_checkpoint, write_checkpoint
from server_app.run.checkpointing import Checkpoints
from server_app.run.resume import open_run
from server_app.run.rounds import run
from tests.cases import sampled
from tests.federation import ScriptedGrid
from tests.server_app.run.resuming import (
    CASES,
    QUICK,
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


@pytest.mark.parametrize("case", sampled(CASES, QUICK))
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


@pytest.mark.parametrize("case", sampled(CASES, ("drawn sites", "starts of some")))
def test_a_run_killed_at_its_end_repeats_the_message(folder: Path, case: str) -> None:
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
    assert result.sent.epsilon_cap == 2.0
    assert result.rounds[-1]["asked"] == ["a", "b", "c", "d"]


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
    assert back.memory.facts == at.memory.facts
    assert (own / NAME).stat().st_mode & 0o777 == 0o600
    assert not list(own.glob("*.part"))


# --- what cannot go on is refused: a damaged checkpoint, a run that is complete, moved or at work


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.97])
def test_one_changed_bit_is_damage(folder: Path, share: float) -> None:
    path = interrupted(folder) / NAME
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path)


def test_another_version_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = interrupted(folder)
    monkeypatch.setattr("server_app.run.checkpoint.__version__", "9.9.9")
    with pytest.raises(CheckpointError, match=r"hdpfl-flower 0\.1\.0 .* wrote .* this is 9\.9\.9"):
        open_run(own)


def test_an_old_checkpoint_does_not_release_a_round_again(folder: Path) -> None:
    terms = terms_of(folder, "r", strategy="dp-fedavg", noise="server")
    with pytest.raises(Killed):
        go(terms, stop=2)
    old = (folder / "r" / NAME).read_bytes()
    at = open_run(folder / "r")
    with pytest.raises(Killed):
        go(at.config, at, stop=4)
    (folder / "r" / NAME).write_bytes(old)
    with pytest.raises(CheckpointError, match="of round 2, and the journal is of round 4"):
        open_run(folder / "r")


def test_a_journal_cut_short_is_refused(folder: Path) -> None:
    own = interrupted(folder)
    lines = (own / "journal.jsonl").read_text().splitlines(keepends=True)
    (own / "journal.jsonl").write_text("".join(lines[:2]))
    with pytest.raises(CheckpointError, match="shorter"):
        open_run(own)


def test_a_new_run_does_not_begin_over_one_that_can_go_on(folder: Path) -> None:
    own = interrupted(folder)
    before = (own / "journal.jsonl").read_text()
    with pytest.raises(CheckpointError, match="can be resumed with: hdpfl resume"):
        go(terms_of(folder, "r", strategy="robust-hdp"))
    assert (own / "journal.jsonl").read_text() == before


def test_two_processes_do_not_work_on_one_run(folder: Path) -> None:
    own = interrupted(folder)
    at = open_run(own)

    def meanwhile(event: dict[str, Any]) -> None:
        if event["event"] == "run-resumed":
            with pytest.raises(CheckpointError, match="another process works on run 'r'"):
                go(at.config, at)

    run(federation(), at.config, meanwhile, checkpoints=Checkpoints({}, at))
