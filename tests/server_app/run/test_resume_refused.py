"""What cannot go on is refused: a damaged checkpoint, a run that is complete, moved or at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.errors import CheckpointError
from server_app.run.checkpoint import NAME, read_checkpoint
from server_app.run.checkpointing import Checkpoints
from server_app.run.resume import open_run
from server_app.run.rounds import run
from tests.server_app.run.resuming import (
    Killed,
    federation,
    go,
    interrupted,
    memory_folder,  # noqa: F401
    terms_of,
)


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
    with pytest.raises(
        CheckpointError, match=r"written by hdpfl-flower 0\.1\.0 .* this is 9\.9\.9"
    ):
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
    with pytest.raises(CheckpointError, match="of round 2, and its journal of round 4"):
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
    with pytest.raises(CheckpointError, match="can be resumed: hdpfl resume"):
        go(terms_of(folder, "r", strategy="robust-hdp"))
    assert (own / "journal.jsonl").read_text() == before


def test_two_processes_do_not_work_on_one_run(folder: Path) -> None:
    own = interrupted(folder)
    at = open_run(own)

    def meanwhile(event: dict[str, Any]) -> None:
        if event["event"] == "run-resumed":
            with pytest.raises(CheckpointError, match="at work in another process"):
                go(at.config, at)

    run(federation(), at.config, meanwhile, checkpoints=Checkpoints({}, at))
