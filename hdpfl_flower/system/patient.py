"""``hdpfl-patient``: a long-lived Flower program that outlasts a busy SuperLink.

    hdpfl-patient flower-supernode OPTIONS

At one HTTP 500 of a SuperLink (its database waits five seconds for a lock) Flower 1.42 ends the
main thread of a SuperNode for good; its process lives on and listens. It waits for ever for a reply
of a ClientApp that was killed while it handed it over, and for a task that no program answers. Here
a 500 is asked again for 75 seconds, a torn reply is given up after as many, an unanswered task
after 150. ``$FLWR_HOME`` has a note of the last answered heartbeat and of the last time that
flower-superexec asked for a task. The process ends with status 75 (``EX_TEMPFAIL``) where the main
thread has ended or no heartbeat is answered any more, so that its supervisor restarts it. Each
heartbeat is also sent to systemd's watchdog. A PATH that pins only some of Flower's programs is
refused.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from hdpfl_flower.system.task_programs import path_fault, pinned_folder

PATIENCE = 75.0
"""Seconds for which a path's failures are asked again; a SuperLink gives a silent node up after 60,
and lets it in again only then."""
DEAF = 90.0
"""Seconds without an answered heartbeat after which a node is deaf; Flower sends one in 22."""
UNANSWERED = 300
"""Flower's looks for a reply, two a second, without a running task, after which it is given up. A
task that does not come to run is started again every 30 seconds."""
LOOKS, LOOK_SECONDS = 3, 5.0
"""Consecutive looks that must find a node deaf: one that was paused receives a heartbeat first."""
HEARTBEAT, ACTIVATION = "/v1/fleet/send-node-heartbeat", "/v1/fleet/activate-node"
PUSH = "/push-object"
"""Its answer is an empty message, ``stored`` false, where the database was locked."""
OK, BUSY, STILL_ONLINE, ASK_AGAIN = 200, 500, 412, 503


def ask_again(heard: Callable[[], None] = lambda: None) -> None:
    """Have this process's calls of Flower take a 500 for a 503, which Flower asks again.

    Args:
        heard: called after each answered heartbeat of a node.
    """
    import httpx

    send = httpx.Client.send
    if hasattr(send, "__wrapped__"):  # twice would only ask about the same again
        return
    failing: dict[str, float] = {}

    @functools.wraps(send)
    def patient(self: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        answer, path = send(self, request, **options), request.url.path
        again = answer.status_code == BUSY and path.startswith("/v1/")
        again |= answer.status_code == STILL_ONLINE and path == ACTIVATION
        again |= path.endswith(PUSH) and answer.status_code == OK and not answer.content
        if again and time.monotonic() - failing.setdefault(path, time.monotonic()) < PATIENCE:
            answer.status_code = ASK_AGAIN
        else:
            failing.pop(path, None)
        if path == HEARTBEAT and answer.is_success:
            heard()
        return answer

    httpx.Client.send = patient  # type: ignore[method-assign]


def give_up_torn_replies() -> None:
    """Have a SuperNode's main thread wait 75 seconds for an object of a reply, not for ever."""
    from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

    get = InMemoryObjectStore.get
    missing: dict[str, float] = {}

    @functools.wraps(get)
    def patient(self: InMemoryObjectStore, object_id: str) -> bytes | None:
        content = get(self, object_id)
        if content:
            missing.pop(object_id, None)
        elif content is not None and threading.current_thread() is threading.main_thread():
            now = time.monotonic()
            if now - missing.setdefault(object_id, now) > PATIENCE:
                del missing[object_id]
                raise TimeoutError(
                    "the reply is incomplete: its ClientApp ended while it handed the reply over"
                )
        return content

    InMemoryObjectStore.get = patient  # type: ignore[method-assign]


def give_up_unanswered_tasks(asked: Callable[[], None] = lambda: None) -> None:
    """Have a SuperNode's main thread end where its message's task does not come to run.

    Args:
        asked: called each time that flower-superexec asks for a task.
    """
    from flwr.common.constant import Status
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState as State

    get_tasks, get_messages = State.get_tasks, State.get_messages_legacy
    looks = 0

    @functools.wraps(get_tasks)
    def noted(self: State, **options: Any) -> Any:
        if options.get("statuses") == [Status.PENDING]:
            asked()
        return get_tasks(self, **options)

    @functools.wraps(get_messages)
    def patient(self: State, **options: Any) -> Any:
        nonlocal looks
        messages = get_messages(self, **options)
        if options.get("is_reply"):
            # The look also ends tasks without a heartbeat, which Flower then answers.
            running = get_tasks(self, statuses=[Status.RUNNING])
            looks = 0 if messages or running else looks + 1
            if looks > UNANSWERED:
                raise TimeoutError("no program answers this node's task; see flower-superexec")
        return messages

    State.get_tasks = noted  # type: ignore[method-assign, assignment]
    State.get_messages_legacy = patient  # type: ignore[method-assign]


class Heard(NamedTuple):
    """Seconds since a node's signs of life.

    Attributes:
        superlink: since the last answered heartbeat.
        tasks: since flower-superexec asked for a task; before the first time, since the node's
            start.
        pinned: folder of the launcher under which the node started, or empty.
    """

    superlink: float
    tasks: float
    pinned: str


def heard_file(flwr_home: Path | None = None) -> Path:
    """Return the note of a node's signs of life, in its Flower home."""
    return (flwr_home or Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser()) / "heard"


def heard_ago(note: Path) -> Heard | None:
    """Return a node's signs of life from its ``note``; None: none since the machine's start."""
    try:
        superlink, tasks, pinned = note.read_text().split("\n")[:3]
        ago = [time.monotonic() - float(moment) for moment in (superlink, tasks)]
    except (OSError, ValueError):
        return None
    # A note of before the machine's start lies ahead.
    return Heard(max(ago[0], 0.0), max(ago[1], 0.0), pinned) if ago[0] > -1 else None


class Ear:
    """Memory of a node's signs of life."""

    def __init__(self, note: Path) -> None:
        """Forget an earlier process's ``note``."""
        self._note, self._heard = note, 0.0
        self._asked = time.monotonic()
        self._pinned = str(pinned_folder() or "")
        note.unlink(missing_ok=True)

    def asked(self) -> None:
        """Remember that flower-superexec asked for a task; the next heartbeat writes it."""
        self._asked = time.monotonic()

    def note(self) -> None:
        """Note an answered heartbeat by the machine's clock that is never set; tell systemd."""
        self._heard = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk is no reason to stop the heart
            self._note.parent.mkdir(parents=True, exist_ok=True)
            note = os.open(self._note, os.O_CREAT | os.O_WRONLY, 0o600)
            moments = f"{self._heard:020.3f}\n{self._asked:020.3f}\n{self._pinned}\n"
            os.pwrite(note, moments.encode(), 0)
            os.close(note)
            if address := os.environ.get("NOTIFY_SOCKET"):
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
                    systemd.sendto(b"WATCHDOG=1", address.replace("@", "\0", 1))

    def watch(self) -> None:
        """End the process when nothing is heard any more, once anything was."""
        deaf = 0
        while deaf < LOOKS:
            time.sleep(LOOK_SECONDS)
            silent = self._heard and time.monotonic() - self._heard > DEAF
            deaf = deaf + 1 if silent else 0
        _end(f"nothing was heard from the SuperLink for {DEAF:.0f} s")


def main() -> None:
    """Run the Flower program that the first argument names, unless its PATH pins it in part."""
    del sys.argv[0]
    if fault := path_fault():
        sys.exit(f"error: {fault}")
    program = next(iter(entry_points(group="console_scripts", name=Path(sys.argv[0]).name)))
    if program.name == "flower-supernode":  # alone: its tasks may share its Flower home
        ear = Ear(heard_file())
        ask_again(ear.note)
        give_up_torn_replies()
        give_up_unanswered_tasks(ear.asked)
        threading.Thread(target=ear.watch, daemon=True).start()
    else:
        ask_again()
    try:
        program.load()()
    except Exception as error:  # Flower's own, whatever it is
        print(f"error: {error}", file=sys.stderr, flush=True)
    _end(f"{program.name} has ended by itself")


def _end(reason: str) -> None:
    print(f"error: {reason}; to be started again", file=sys.stderr, flush=True)
    os._exit(os.EX_TEMPFAIL)  # sys.exit would wait for Flower's threads


if __name__ == "__main__":
    main()
