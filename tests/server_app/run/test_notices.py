"""What a person is told of a run: of approvals that wait and of its end, and nothing private."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hdpfl_flower.errors import HDPFLError
from server_app.app import _notice_of, run_or_resume
from tests.federation import ScriptedGrid
from tests.server_app.run.resuming import noisy

TERMS = {
    "run-id": "r", "rounds": 1, "strategy": "fedavg", "evaluation": "none", "min-sites": 2,
}  # fmt: skip


def test_each_event_has_its_notice() -> None:
    assert _notice_of({"event": "approval", "site": "a", "status": "approved"}) == {}
    assert _notice_of({"event": "approval", "site": "a", "status": "pending"}) == {
        "notice": "request-pending", "site": "a",
    }  # fmt: skip
    assert _notice_of({"event": "round"}) == {}


@pytest.mark.parametrize(("sites", "notice"), [(3, "run-ended"), (0, "run-failed")])
def test_the_end_of_a_run_is_told(tmp_path: Path, sites: int, notice: str) -> None:
    program = tmp_path / "tell"
    program.write_text(f"#!/bin/sh\ncat >> {tmp_path}/told\n")
    program.chmod(0o700)
    own = {"runs-dir": str(tmp_path), "notify": str(program), "join-timeout": 0.1}
    grid = ScriptedGrid({str(i): noisy(i) for i in range(sites)})
    try:
        run_or_resume(grid, {**TERMS, **own})
    except HDPFLError:
        assert notice == "run-failed"
    told = (tmp_path / "told").read_text()
    assert json.loads(told) == {"notice": notice, "run": "r"}
