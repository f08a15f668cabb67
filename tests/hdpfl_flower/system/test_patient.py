"""Patience with a busy SuperLink: what is asked again, for how long, and what ends a node."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from flwr.common.constant import Status
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from hdpfl_flower.system import patient
from hdpfl_flower.system.patient import (
    ACTIVATION,
    HEARTBEAT,
    Ear,
    ask_again,
    give_up_torn_replies,
    give_up_unanswered_tasks,
    heard_ago,
)

ANSWERS = {
    ("/v1/fleet/pull-messages", 500): 503,
    ("/v1/runtime/acquire-task", 500): 503,
    ("/elsewhere", 500): 500,
    (ACTIVATION, 412): 503,
    ("/v1/fleet/deactivate-node", 412): 412,
    ("/v1/fleet/pull-messages", 403): 403,
    ("/v1/fleet/push-object", 200): 503,
    ("/v1/fleet/pull-messages", 200): 200,
}
"""(path, what the SuperLink answers, without content) → what Flower sees."""


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A client of a SuperLink that answers the status named in the query, and its content."""
    monkeypatch.setattr(httpx.Client, "send", httpx.Client.send)  # undone at the end

    def answer(request: httpx.Request) -> httpx.Response:
        query = request.url.params
        return httpx.Response(int(query["status"]), content=query.get("content", "").encode())

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://link") as client:
        yield client


@pytest.mark.parametrize(("path", "status"), ANSWERS)
def test_only_a_busy_superlink_is_asked_again(link: httpx.Client, path: str, status: int) -> None:
    ask_again()
    assert link.post(path, params={"status": status}).status_code == ANSWERS[path, status]


def test_patience_ends_and_begins_anew(link: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_again()
    path, busy = "/v1/fleet/get-run", {"status": 500}
    now = time.monotonic()
    assert link.post(path, params=busy).status_code == 503
    monkeypatch.setattr(time, "monotonic", lambda: now + patient.PATIENCE + 1)
    assert [link.post(path, params=busy).status_code for _ in range(2)] == [500, 503]


def test_an_answered_heartbeat_is_heard_once_and_a_refused_one_is_not(link: httpx.Client) -> None:
    heard: list[int] = []
    for _ in range(2):
        ask_again(lambda: heard.append(1))
    link.post(HEARTBEAT, params={"status": 500})
    link.post(HEARTBEAT, params={"status": 200})
    link.post("/v1/fleet/pull-messages", params={"status": 200})
    assert heard == [1]


def test_a_torn_reply_is_given_up_by_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InMemoryObjectStore, "get", InMemoryObjectStore.get)
    give_up_torn_replies()
    store, now = InMemoryObjectStore(verify=False), time.monotonic()
    store.preregister(1, ObjectTree(object_id="a" * 64))
    store.preregister(1, ObjectTree(object_id="b" * 64))
    assert [store.get(name * 64) for name in "abc"] == [b"", b"", None]
    store.put("a" * 64, b"there")
    assert store.get("a" * 64) == b"there"
    monkeypatch.setattr(time, "monotonic", lambda: now + patient.PATIENCE + 1)
    assert store.get("a" * 64) == b"there"
    with ThreadPoolExecutor() as pool:
        assert pool.submit(store.get, "b" * 64).result() == b""
    with pytest.raises(TimeoutError, match="incomplete"):
        store.get("b" * 64)
    assert store.get("b" * 64) == b""


@pytest.fixture
def node_state(monkeypatch: pytest.MonkeyPatch) -> InMemoryNodeState:
    """Return a SuperNode's state under patience."""
    for name in ("get_tasks", "get_messages_legacy"):
        monkeypatch.setattr(InMemoryNodeState, name, getattr(InMemoryNodeState, name))
    return InMemoryNodeState(InMemoryObjectStore(verify=False))


@pytest.mark.parametrize("state", ["pending", "starting", "finished"])
def test_a_node_ends_without_a_running_task(node_state: InMemoryNodeState, state: str) -> None:
    """As without the program that flower-superexec is to start, which then ends."""
    asked: list[int] = []
    give_up_unanswered_tasks(lambda: asked.append(1))
    task = node_state.create_task(TaskType.AGENT_APP, 1, fab_hash="x")
    assert task is not None
    node_state.get_tasks(statuses=[Status.PENDING], order_by="pending_at")
    assert asked == [1]
    if state != "pending":
        node_state.claim_task(task)
    if state == "finished":
        node_state.activate_task(task)
        assert looks_until_the_end(node_state, 2 * patient.UNANSWERED) is None
        node_state.finish_task(task, sub_status="failed", details="")
    assert looks_until_the_end(node_state, 2 * patient.UNANSWERED) == patient.UNANSWERED
    assert asked == [1]


def looks_until_the_end(state: InMemoryNodeState, most: int) -> int | None:
    """Return how often a node looks for a reply until it ends; None: more than ``most``."""
    for look in range(most):
        assert not state.get_messages_legacy(run_ids=[1], is_reply=False)
        try:
            assert not state.get_messages_legacy(is_reply=True)
        except TimeoutError:
            return look
    return None


def test_partly_pinned_paths_start_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apps").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "flwr-clientapp").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{Path(sys.executable).parent}")
    monkeypatch.setattr(sys, "argv", ["hdpfl-patient", "flower-superexec"])
    monkeypatch.setattr(patient, "entry_points", lambda **_: pytest.fail("it looks for it"))
    with pytest.raises(SystemExit, match="error: flwr-agentapp would start from "):
        patient.main()


def test_a_note_says_when_a_node_heard_and_a_new_process_forgets_it(tmp_path: Path) -> None:
    note = tmp_path / "flwr" / "heard"
    ear = Ear(note)
    assert heard_ago(note) is None
    for _ in range(2):
        ear.asked()
        ear.note()
    ago = heard_ago(note)
    assert max(ago.superlink, ago.tasks) < 5
    later = time.monotonic() + 1000
    note.write_text(f"{later}\n{later}\n\n")  # of before the machine was started
    assert heard_ago(note) is None
    Ear(note)
    assert not note.exists()


def test_a_full_disk_stops_no_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    Ear(tmp_path / "heard").note()
    ear = Ear(tmp_path / "heard")
    ear._note = tmp_path / "file" / "heard"
    ear.note()


def test_the_watchdog_of_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        Ear(tmp_path / "heard").note()
        assert systemd.recv(64) == b"WATCHDOG=1"


DEAF = """
import sys
from hdpfl_flower.system import patient
patient.DEAF, patient.LOOK_SECONDS = 0.2, 0.05
ear = patient.Ear(patient.heard_file())
ear.note()
ear.watch()
"""
ENDED = """
import os, pathlib, sys, threading, time
from hdpfl_flower.system import patient
class Program:
    name = "flower-superexec"
    def load(self):
        threading.Thread(target=time.sleep, args=[600]).start()
        return lambda: None
end = patient._end
patient.entry_points = lambda **_: [Program()]
sys.argv[1:] = ["flower-superexec"]
pathlib.Path(os.environ["FLWR_HOME"], "heard").write_text("1.0")
patient._end = lambda reason: (patient.heard_file().read_text() == "1.0") and end(reason)
patient.main()
"""


@pytest.mark.parametrize(
    ("script", "said"), [(DEAF, "nothing was heard"), (ENDED, "has ended by itself")]
)
def test_a_deaf_or_dead_node_ends(tmp_path: Path, script: str, said: str) -> None:
    """Though a thread of Flower's own would have it live on."""
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "FLWR_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == os.EX_TEMPFAIL
    assert said in done.stderr
