"""Real SuperNodes with TLS and keys: who is let in, who declines, and what a user sees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import Reservation
from hdpfl_tools.site.reports.site_series import read_refusals
from tests.e2e.engines import BIN, ROOT, SITES, Done, Federation, rounds_of, seeded_terms, to_toml

pytestmark = pytest.mark.engines

Node = subprocess.Popen[bytes]


def make_key(federation: Federation, name: str) -> Path:
    folder = federation.folder / "certs"
    command = [str(BIN / "hdpfl"), "certs", str(folder), "--site", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "sites" / name


def start_node(
    federation: Federation,
    key: Path,
    config: str,
    folder: Path,
    number: int = 1,
    host: str = "127.0.0.1",
    **more: str,
) -> Node:
    """Start a SuperNode beside the four, the ``number``-th; its log is ``folder/log``.

    It calls the SuperLink ``host``; ``more`` is added to its environment.
    """
    (folder / "node.toml").write_text(config)
    command = [
        str(BIN / "flower-supernode"), "--superlink", f"{host}:{federation.port}",
        "--root-certificates", str(federation.folder / "certs" / "ca.crt"),
        "--auth-supernode-private-key", str(key), "--host", "127.0.0.1",
        "--port", str(federation.port + SITES + number),
        "--node-config", str(folder / "node.toml"),
    ]  # fmt: skip
    environment = {
        **federation.environment,
        "HDPFL_HOME": str(folder / "home"),
        "PATH": f"{BIN}:{federation.environment['PATH']}",
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        **more,
    }
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def stop_node(node: Node) -> None:
    node.terminate()
    try:
        node.wait(20)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


def wait_for(what: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.5)


def one_error_line(done: Done, words: str) -> None:
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert words in lines[0]


def test_up_again_changes_nothing(federation: Federation) -> None:
    before = federation.call("status").stdout
    again = federation.call("up", "--pin", "--sites", federation.home / "sites")
    assert again.returncode == 0, again.stderr
    assert "starting" not in again.stdout
    assert "4 sites are online: 0, 1, 2, 3" in again.stdout
    assert federation.call("status").stdout == before
    assert before.count("runs, pid") == SITES + 1


def test_a_port_in_use_is_one_clear_line(federation: Federation, tmp_path: Path) -> None:
    other = Federation(tmp_path, federation.port)
    one_error_line(other.call("up"), "is in use; set HDPFL_FEDERATION_PORT")
    assert other.call("down").stdout == "nothing was running\n"
    assert federation.call("status").stdout.count("runs, pid") == SITES + 1


def test_without_a_federation_run_says_what_to_do(tmp_path: Path) -> None:
    one_error_line(Federation(tmp_path, 1).call("run"), "not running; start it with: make up")


def test_a_run_that_fails_ends_with_its_reason_and_another_status(federation: Federation) -> None:
    """Whether a run can be resumed is on the SuperLink's machine: the check before cannot know."""
    terms = seeded_terms().as_config() | {"resume-from": "absent"}
    done = federation.call("run", federation.write(terms))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]  # after the run's own log
    assert last.startswith("error: the run ended as finished:failed: ")
    assert "absent" in last


def test_a_key_that_no_term_has_is_named(federation: Federation) -> None:
    terms = seeded_terms().as_config() | {"roundz": 3}
    words = "'roundz' is not a known key; did you mean 'rounds'?"
    one_error_line(federation.call("run", federation.write(terms)), words)


def test_a_node_with_an_unregistered_key_is_refused(federation: Federation, tmp_path: Path) -> None:
    node = start_node(federation, make_key(federation, "unregistered"), "", tmp_path)
    try:
        assert node.wait(60) != 0
    finally:
        stop_node(node)
    assert "Exit Code: 305" in (tmp_path / "log").read_text()


def test_without_profile_or_budget_sites_decline(federation: Federation, tmp_path: Path) -> None:
    """Both are asked, and answer with the one constant code; the reason stays in their own logs.

    The command that follows the run is interrupted: that is not the end of the run either.
    """
    profile, nodes = spent_site(tmp_path / "spent"), []
    configs = {
        "spent": f"profile = {json.dumps(str(profile))}\n",
        "stranger": f"partition-id = 0\nnum-partitions = {SITES}\n",
    }
    before = Ledger(profile.parent / "ledger").account()
    terms = seeded_terms(rounds=1, **{"run-id": "stranger", "min-sites": SITES + 2})
    try:
        for number, (name, config) in enumerate(configs.items(), start=1):
            key, folder = make_key(federation, name), tmp_path / name
            folder.mkdir(exist_ok=True)
            words = [f"{key}.pub", "hdpfl", "--name", name, "--format", "json"]
            registered = federation.flwr("supernode", "register", *words)
            assert '"success": true' in registered.stdout, registered.stdout
            nodes.append(start_node(federation, key, config, folder, number))
        follow_and_interrupt(federation, federation.write(terms.as_config()))
        result = federation.home / "runs" / "stranger" / "result.json"
        wait_for(result.exists, 600)  # each question to Flower takes a second of the run's CPU time
        wait_for(lambda: status_of_last_run(federation).startswith("finished"), 300)
    finally:
        for node in nodes:
            stop_node(node)
    assert status_of_last_run(federation) == "finished:completed"
    (event,) = rounds_of(federation.home / "runs" / "stranger")
    assert event["rejected"] == {"spent": "declined", "stranger": "declined"}
    assert event["accepted"] == ["0", "1", "2", "3"]
    log = (tmp_path / "stranger" / "log").read_text()
    assert "declined: the node config names no 'profile', but a deployed site needs one" in log
    log = (tmp_path / "spent" / "log").read_text()
    assert "declined: budget: the run does not fit into the remaining budget" in log
    account = Ledger(profile.parent / "ledger").account()
    assert [*account.records] == ["stranger"]  # its records were prepared; nothing was charged
    assert replace(account, records=before.records) == before
    assert read_refusals(profile.parent / "ledger").counts["declined", "budget"] == 1


def spent_site(folder: Path) -> Path:
    """Make a site whose lifetime budget went into an earlier run; return its profile."""
    records = np.random.default_rng(0)
    folder.mkdir()
    np.savez(folder / "data.npz", x=records.random((40, 1, 8, 8)), y=records.integers(0, 10, 40))
    cost = {"epsilon": 1.0, "delta": 1e-5}
    profile = folder / "profile.toml"
    profile.write_text(to_toml({
        "approval": "standing",
        "budget": cost, "run": cost, "training": {"batch-size": 8, "declared-records": 40},
        "data": {"format": "npz", "path": "data.npz"}, "ledger": {"path": "ledger"},
    }))  # fmt: skip
    profile.chmod(0o600)
    ledger = Ledger.create(folder / "ledger", 1.0, 1e-5)
    taken = ledger.reserve(Request("earlier", 1, "update", "d"), ChargedPlan("{}", "{}", 1.0, 1e-5))
    assert isinstance(taken, Reservation)
    with taken:
        taken.seal(b"an update")
    return profile


def follow_and_interrupt(federation: Federation, terms: Path) -> None:
    following = subprocess.Popen(
        federation.command("run", terms), text=True,
        env={**federation.environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - as a terminal has it
    )  # fmt: skip
    try:
        assert following.stdout is not None
        assert "Ctrl-C leaves it running" in following.stdout.readline()
        assert following.stdout.readline()  # of the run's log: all is imported, the run goes on
        os.killpg(following.pid, signal.SIGINT)
        said, _ = following.communicate(timeout=60)
    finally:
        following.kill()
    assert following.returncode == 128 + signal.SIGINT, said
    assert "the run continues; to follow it:" in said
    assert "Traceback" not in said


def status_of_last_run(federation: Federation) -> str:
    listed = json.loads(federation.flwr("list", "hdpfl", "--format", "json").stdout)
    last = max(listed["runs"], key=lambda run: run["pending-at"])
    return str(last["status"])


def test_a_first_message_alone_is_a_table_and_trains_nothing(federation: Federation) -> None:
    """The four hospitals as SuperNodes; the count of all is 736, its noise about 11 at ε 8."""
    terms = seeded_terms(
        dataset="heart", partition="natural", epsilons="8", rounds=1,
        **{
            "data-dir": str(ROOT / "deploy" / "demo"), "run-id": "table",
            "first.moments.alone": True, "first.moments.content": "table",
        },
    )  # fmt: skip
    folder, done = federation.run(terms)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not rounds_of(folder)
    said = federation.hdpfl("statistics", folder, "--json")
    facts = json.loads(said.stdout)
    assert facts["answered"] == ["0", "1", "2", "3"] and facts["without"] == {}
    count = facts["groups"]["all"]["records"]
    assert abs(count["value"] - 736) < 60 and count["low"] < 736 < count["high"]
    assert (folder / "statistics.html").is_file()
