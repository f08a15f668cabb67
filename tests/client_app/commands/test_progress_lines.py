"""Progress of long work where stderr is no terminal: lines, and none of short work."""

from __future__ import annotations

import pytest

from client_app.commands import worth


def test_a_log_gets_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(worth, "monotonic", lambda: float(next(clock)))
    with worth.shown_progress("home model", 20) as tick:
        for _ in range(20):
            tick()
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert said.out == ""
    assert 4 <= len(lines) <= 10
    assert all(line.startswith("home model: ") and line.endswith(" of 20") for line in lines)


def test_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with worth.shown_progress("home model", 3) as tick:
        for _ in range(3):
            tick()
    assert capsys.readouterr().err == ""
