"""A folder that was used before: the same terms again, other terms in one clear line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hdpfl_tools.coordinator.commands import main

WORDS = ["--strategies", "fedavg", "--clients", "3", "--seeds", "1", "--jobs", "1"]
KEYS = {
    "rounds": "2", "epsilons": "1", "calibration": "robust-hdp", "batch-sizes": "32",
    "learning-rate": "0.1",
}  # fmt: skip


def compare(
    monkeypatch: pytest.MonkeyPatch, out: Path, *words: str, **more: object
) -> int | str | None:
    """Return the exit status of a small comparison."""
    settings = {**KEYS, **{key.replace("_", "-"): value for key, value in more.items()}}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    monkeypatch.setattr(sys, "argv", ["hdpfl", "compare", *WORDS, *words, "--out", str(out), *sets])
    try:
        main()
    except SystemExit as end:
        return end.code
    return 0


def accuracies(out: Path) -> Any:
    return json.loads((out / "comparison.json").read_text())["results"]["fedavg"]["accuracy"]


def test_other_terms_in_the_same_folder_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before: 'rounds without a quorum', after a round whose refusals sites' logs alone explain."""
    assert compare(monkeypatch, tmp_path) == 0
    first = accuracies(tmp_path)
    before = (tmp_path / "fedavg-seed1" / "journal.jsonl").read_bytes()
    capsys.readouterr()
    # The second strategy's folder is the one in the way; the first one, new, is not begun.
    words = ("--strategies", "maximum,fedavg")
    assert compare(monkeypatch, tmp_path, *words, clip_norm=2, learning_rate=0.2) == 1
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert "'clip-norm' is 2.0, and the run in" in error
    assert "fedavg-seed1 began with 1.0 (and 'learning-rate')" in error
    assert "name another --out" in error
    assert not (tmp_path / "maximum-seed1").exists()
    assert (tmp_path / "fedavg-seed1" / "journal.jsonl").read_bytes() == before
    assert compare(monkeypatch, tmp_path, **{"second.kind": "kept"}) == 1
    error = capsys.readouterr().err
    assert "'second.kind' is \"kept\", and the run in" in error
    assert "began with nothing (and 'second.pull', 'second.opted-out')" in error
    assert compare(monkeypatch, tmp_path, "--clients", "4") == 1
    assert "--clients is 4, and run fedavg-seed1 in" in capsys.readouterr().err
    assert compare(monkeypatch, tmp_path) == 0, "the same terms again"
    assert accuracies(tmp_path) == first
    assert compare(monkeypatch, tmp_path / "other", learning_rate=0.2) == 0
    assert accuracies(tmp_path / "other") != first
