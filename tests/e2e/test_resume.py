"""A run killed with -9, under SuperNodes or under Ray, goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from tests.e2e.engines import (
    BIN,
    ROOT,
    SITES,
    Federation,
    Ray,
    command_of,
    digest,
    free_ports,
    processes,
    rounds_of,
    seeded_terms,
)
from tests.e2e.faults import wait_for_round, wait_until

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
    resumed = federation.hdpfl("resume", "again", "--app", ROOT)  # at the one connection
    told, _ = begun.communicate(timeout=PATIENCE)  # Flower notices it within a minute
    assert found, told
    assert begun.returncode != 0, told
    assert 2 <= done < 6, told
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"run again: {done} of 6 rounds are done" in resumed.stdout
    assert f"run again resumes after round {done} of 6" in resumed.stdout + resumed.stderr
    assert f"complete: 6 rounds, {folder}" in resumed.stdout
    assert digest(folder) == digest(whole)
    assert [event["round"] for event in rounds_of(folder)] == [1, 2, 3, 4, 5, 6]
    assert [event["accepted"] for event in rounds_of(folder)] == [["0", "1", "2", "3"]] * 6
    events = [event["event"] for event in read_journal(folder / "journal.jsonl")]
    assert events.count("run-started") == events.count("run-resumed") == 1
    complete = "is complete; there is nothing to resume"
    refused = federation.hdpfl("resume", "again", "hdpfl", "--app", ROOT)
    assert refused.returncode == 1
    assert complete in refused.stderr
    refused = federation.call("run", federation.write({"resume-from": "again"}))
    assert refused.returncode != 0
    assert complete in refused.stdout + refused.stderr


def test_a_killed_simulation_is_resumed(ray: Ray, tmp_path: Path) -> None:
    """Ray, the server and all sites die together; their ledgers lie in the run's folder."""
    terms = seeded_terms(**{"run-id": "again-ray", "rounds": 6})
    whole = run_in_process(terms.updated(runs_dir=str(tmp_path)), SITES).folder
    folder = ray.runs / "again-ray"
    ray.call(terms.updated(runs_dir=str(ray.runs)).as_config(), SITES)
    deadline = time.monotonic() + PATIENCE
    while not (folder / "journal.jsonl").exists() or len(rounds_of(folder)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed = ray.simulations()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    done = len(rounds_of(folder))
    assert killed
    assert 2 <= done < 6
    resumed = ray.resume(folder)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert ray.last_run()["status"] == "finished:completed"
    starts = read_journal(folder / "journal.jsonl")
    said = [event["federation-config"] for event in starts if "federation-config" in event]
    assert len(said) == 2
    assert said[0] == said[1]
    assert f"run again-ray resumes after round {done} of 6" in resumed.stdout + resumed.stderr
    assert digest(folder) == digest(whole)
    assert [event["round"] for event in rounds_of(folder)] == [1, 2, 3, 4, 5, 6]
    assert [event["accepted"] for event in rounds_of(folder)] == [["0", "1", "2", "3"]] * 6


def test_a_cluster_resumes_without_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two raylets; Flower keeps a dead node's actors, until no round has a quorum any more."""
    address = f"127.0.0.1:{free_ports(1)}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    cluster = Ray(tmp_path / "flwr", free_ports(1))
    cluster.home.mkdir()
    folder, terms = cluster.runs / "cluster", {"run-id": "cluster", "rounds": 40}

    def start(name: str, *words: str) -> None:
        command = [str(BIN / "ray"), "start", *words, "--num-cpus=2", "--block",
                   "--disable-usage-stats"]  # fmt: skip
        processes.start(name, command, tmp_path, tmp_path / "log", dict(os.environ))

    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # sockets' paths have 107 bytes
        try:
            start("head", "--head", f"--port={address[10:]}", f"--temp-dir={short}")
            wait_until(lambda: living_nodes(address) == 1, PATIENCE)
            start("worker", f"--address={address}")
            wait_until(lambda: living_nodes(address) == 2, PATIENCE)
            config = seeded_terms(**terms).updated(runs_dir=str(cluster.runs)).as_config()
            cluster.call(config, SITES)
            wait_for_round(folder, 2)
            for pid in processes._family([processes.find("worker", tmp_path) or 0]):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: cluster.last_run()["status"] == "finished:failed", PATIENCE)
            lost = [event["rejected"] for event in rounds_of(folder) if event["rejected"]]
            assert {why for sites in lost for why in sites.values()} == {"not delivered: 0"}
            wait_until(lambda: living_nodes(address) == 1, PATIENCE)
            resumed = cluster.resume(folder)
            assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        finally:
            cluster.stop()
            processes.stop(["worker", "head"], tmp_path)
    last = rounds_of(folder)[-1]
    assert (last["round"], last["accepted"]) == (40, ["0", "1", "2", "3"])


def living_nodes(address: str) -> int:
    """Return how many nodes of a Ray cluster live; ``ray status`` lists dead ones for a while."""
    code = (
        f"import ray; ray.init({address!r}, logging_level=50, log_to_driver=False); "
        "print(sum(node['Alive'] for node in ray.nodes()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else 0
