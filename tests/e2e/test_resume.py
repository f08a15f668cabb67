"""A ServerApp killed with -9 under real SuperNodes: the run goes on, as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from hdpfl_flower.journal import read_journal
from tests.e2e.engines import (
    ROOT,
    Federation,
    command_of,
    digest,
    processes,
    rounds_of,
    seeded_terms,
)

pytestmark = [pytest.mark.engines, pytest.mark.wards]

PATIENCE = 240


def server_app(federation: Federation) -> list[int]:
    """Return the process of the ServerApp that this federation's SuperLink started."""
    link = processes.find("superlink", federation.folder / "pids")
    family = processes._family([link] if link else [])
    return [pid for pid in family if "flwr-serverapp" in command_of(pid)]


def test_a_killed_server_app_goes_on_and_nobody_pays_twice(federation: Federation) -> None:
    whole, ended = federation.run(seeded_terms(**{"run-id": "whole", "rounds": 6}))
    assert ended.returncode == 0, ended.stderr
    terms = seeded_terms(**{"run-id": "again", "rounds": 6})
    folder = federation.home / "runs" / "again"
    begun = subprocess.Popen(
        federation.command("run", federation.write(terms.as_config())),
        env=federation.environment, cwd=federation.home,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while not (folder / "journal.jsonl").exists() or len(rounds_of(folder)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found = server_app(federation)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    done = len(rounds_of(folder))
    resumed = federation.hdpfl("resume", "again", "hdpfl", "--app", ROOT)
    told, _ = begun.communicate(timeout=PATIENCE)  # Flower notices it within a minute
    assert found, told
    assert begun.returncode != 0, told
    assert 2 <= done < 6, told
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"run again: {done} of 6 rounds are done" in resumed.stdout
    assert f"run again goes on after round {done} of 6" in resumed.stdout + resumed.stderr
    assert f"complete: 6 rounds, {folder}" in resumed.stdout
    assert digest(folder) == digest(whole)
    assert [event["round"] for event in rounds_of(folder)] == [1, 2, 3, 4, 5, 6]
    assert [event["accepted"] for event in rounds_of(folder)] == [["0", "1", "2", "3"]] * 6
    events = [event["event"] for event in read_journal(folder / "journal.jsonl")]
    assert events.count("run-started") == events.count("run-resumed") == 1
    complete = "is complete; there is nothing to go on with"
    refused = federation.hdpfl("resume", "again", "hdpfl", "--app", ROOT)
    assert refused.returncode == 1
    assert complete in refused.stderr
    refused = federation.call("run", federation.write({"resume-from": "again"}))
    assert refused.returncode != 0
    assert complete in refused.stdout + refused.stderr
