"""Importer: keeps the approved app imported, forks per message.

Flower starts a process for each message, whose imports take two seconds and whose work takes a
tenth. After the first message the launcher (``launcher.py``) starts one importer; from then on it
passes its command line and its streams to a child of the importer, and waits for that child's end.
``hdpfl-site approve`` copies this file to ``lib`` of the folder of approved apps. Linux; on other
systems, and wherever something fails before a child has the command line, the launcher answers by
itself.

Guarantees:
    * The importer holds what importing makes, and nothing else: a child reads its command line
      after the fork, so that no two messages share what depends on one of them. Generators of
      random numbers are seeded anew after the fork.
    * Only processes of the same user reach it: a socket in a folder of mode 0700, and both ends
      verify the other's user.
    * No thread exists when it forks.
    * A child is killed when its launcher ends before it, and when the importer ends.
    * It ends with the process that started the launcher (flower-superexec), when another app is
      approved or its own withdrawn, and after an hour without a message.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import hashlib
import json
import os
import random
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple, NoReturn

MODULE = "hdpfl_importer"
"""Name of this file as the launcher's import; the app's differs."""
HOLD = "--hold-imports"
"""The launcher's option that makes it an importer."""
ERRORS = "errors.txt"
"""Output of an importer besides its socket: its launcher's streams may be read to their end."""
IDLE = 3600.0
"""Seconds without a message after which an importer ends."""
PATIENCE = 20.0
"""Seconds of waiting for the imports before the launcher answers itself; Flower gives up a task
that has not begun after 30."""
MORE_MEMORY = 128 * 2**20
"""Most bytes of an importer beyond its imports; children are unlimited."""
_CHECK = 30.0
"""Seconds between checks that the app is still approved."""
_FORKED = b"+"
_STATUS = struct.Struct("!i")
_MAX_REQUEST = 65_536
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1
wanted: bool | None = None
"""Last argument of :func:`want`."""


class Place(NamedTuple):
    """Where a launcher finds its importer.

    Attributes:
        folder: descriptor of the folder of the sockets.
        name: of the socket: a digest of all that an importer and its launcher must agree on.
        parent: process id of what started the launcher.
        born: when that process started, as the system counts; another one may get its id.
    """

    folder: int
    name: str
    parent: int
    born: str

    @property
    def socket(self) -> str:
        """Socket path through the descriptor: its folder cannot be replaced."""
        return f"/proc/self/fd/{self.folder}/{self.name}"


def find_place(home: str, approved: str) -> Place | None:
    """Return the importer's socket place; None if none is possible.

    Args:
        home: folder that belongs to this user, e.g. Flower's.
        approved: what the importer depends on, as text: another text is another importer.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        parent = os.getppid()
        born = _born(parent)
        folder = _own_folder(os.path.join(home, "importer"))  # noqa: PTH118 - pathlib is slow
    except OSError:
        return None
    parts = [parent, born, approved, sorted(os.environ.items()), sys.executable]
    return Place(folder, hashlib.sha256(json.dumps(parts).encode()).hexdigest(), parent, born)


def _born(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123 - as above
        return file.read().rpartition(")")[2].split()[19]


def _own_folder(path: str) -> int:
    """Return a descriptor of this user's private folder; raises ``OSError``."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)  # noqa: PTH102 - as above
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(folder)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
        os.close(folder)
        raise PermissionError(path)
    return folder


def _is_same_user(peer: socket.socket) -> bool:
    size = struct.calcsize("3i")
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return bool(struct.unpack("3i", found)[1] == os.geteuid())


# ---- the launcher's side -------------------------------------------------------------------------


def answer(place: Place) -> int | None:
    """Answer this process's message by an importer's child; return exit status.

    Returns:
        None where no child took the command line, so that the caller is free to answer itself.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        try:
            peer.settimeout(PATIENCE)  # the imports may be under way
            peer.connect(place.socket)
            if not _is_same_user(peer) or peer.recv(1) != _FORKED:
                return None
            request = json.dumps({"argv": sys.argv, "folder": os.getcwd()})  # noqa: PTH109
            for stop in _STOPS:  # a half-closed connection stops the child, as the signal would
                signal.signal(stop, lambda *_: peer.shutdown(socket.SHUT_WR))
            socket.send_fds(peer, [request.encode()], [0, 1, 2])
            peer.settimeout(None)
        except OSError:
            return None
        try:
            status = int(_STATUS.unpack(peer.recv(_STATUS.size))[0])
        except (OSError, struct.error):  # the importer ended, and its child with it
            return 1
    return status if status >= 0 else 128 - status


def after_message(place: Place | None) -> None:
    """Start a requested importer at ``place``; call after a message is answered.

    Args:
        place: None: there can be none.

    The socket listens at once: launchers that connect before the imports are done wait for them.
    """
    if place is None or not wanted:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
        if _has_failed(place) or not _listen(own, place):
            return
        how = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC
        errors = os.open(ERRORS, how, 0o600, dir_fd=place.folder)
        os.write(errors, f"{place.name}\n".encode())
        words = [place.name, str(place.parent), place.born, str(place.folder), str(own.fileno())]
        subprocess.Popen(
            [sys.executable, "-I", sys.argv[0], HOLD, *words], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            pass_fds=[place.folder, own.fileno()],
        )  # fmt: skip
        os.close(errors)


def _has_failed(place: Place) -> bool:
    """Return whether the last importer at ``place`` failed, as would the next."""
    try:
        with open(f"/proc/self/fd/{place.folder}/{ERRORS}", encoding="utf-8") as file:  # noqa: PTH123
            return file.readline() == f"{place.name}\n" and "Traceback" in file.read()
    except OSError:
        return False


def _listen(own: socket.socket, place: Place) -> bool:
    """Let ``own`` listen at ``place``; False if an importer already does."""
    fcntl.flock(place.folder, fcntl.LOCK_EX)  # of launchers at once, one
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            if other.connect_ex(place.socket) == 0:
                return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place.socket)  # noqa: PTH108 - of an importer that was killed
        own.bind(place.socket)
        own.listen()
        return True
    finally:
        fcntl.flock(place.folder, fcntl.LOCK_UN)


# ---- the importer --------------------------------------------------------------------------------


class Child(NamedTuple):
    """Forked process, with its descriptors."""

    process: int
    descriptor: int
    peer: socket.socket


class Importer:
    """Server that forks for each launcher, in one thread.

    Args:
        words: what :func:`after_message` passes after ``HOLD``.
        still_approved: whether the app whose imports are held may still run.

    Raises:
        ProcessLookupError: the process that it would end with has ended.
    """

    def __init__(self, words: list[str], still_approved: Callable[[], bool]) -> None:
        name, parent, born, folder, listener = words
        self.place = Place(int(folder), name, int(parent), born)
        self.still_approved = still_approved
        self.listener: socket.socket | None = socket.socket(fileno=int(listener))
        self.children: dict[int, Child] = {}
        self.process = os.getpid()
        self.limits = resource.getrlimit(resource.RLIMIT_DATA)
        self.parent = os.pidfd_open(self.place.parent)
        if _born(self.place.parent) != born:
            raise ProcessLookupError(parent)
        os.set_inheritable(self.place.folder, False)
        self.wake, self.woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.events = select.epoll()
        for source in (self.parent, self.wake, self.listener.fileno()):
            self.events.register(source, select.EPOLLIN)

    def serve(self) -> bool:
        """Serve launchers until the end; return True in a child, False in the importer.

        Raises:
            RuntimeError: there is a thread beside this one, which a fork would not copy.
        """
        if len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208
            raise RuntimeError("the imports started a thread")
        gc.collect()
        gc.freeze()  # a collection in a child would copy all that it scans
        self._limit_memory()
        signal.set_wakeup_fd(self.woken)
        for stop in _STOPS:
            signal.signal(stop, lambda *_: None)  # the loop is woken, and ends
        last = time.monotonic()
        while self.listener is not None or self.children:
            for source, event in self.events.poll(_CHECK):
                if source in (self.parent, self.wake):
                    self.events.unregister(source)
                    self._stop_listening()
                elif source in self.children:
                    self._look_at(self.children[source], source, event)
                elif self.listener is not None and source == self.listener.fileno():
                    last = time.monotonic()
                    if self._accept(self.listener):
                        return True
            if time.monotonic() - last > IDLE or not self.still_approved():
                self._stop_listening()
        return False

    def _limit_memory(self) -> None:
        with open("/proc/self/status", encoding="utf-8") as file:  # noqa: PTH123
            held = next(int(line.split()[1]) for line in file if line.startswith("VmData:"))
        soft, hard = held * 1024 + MORE_MEMORY, self.limits[1]
        if self.limits[0] == resource.RLIM_INFINITY or soft < self.limits[0]:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def _stop_listening(self) -> None:
        if self.listener is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.place.socket)  # noqa: PTH108
            self.events.unregister(self.listener.fileno())
            self.listener.close()
            self.listener = None

    def _accept(self, listener: socket.socket) -> bool:
        """Fork for the waiting launcher; return True in the child."""
        peer, _ = listener.accept()
        if not _is_same_user(peer) or not self.still_approved():
            peer.close()
            return False
        try:
            process = os.fork()
        except OSError:  # the launcher answers by itself
            peer.close()
            return False
        if process == 0:
            self._become_child(peer)
            return True
        descriptor = os.pidfd_open(process)
        child = Child(process, descriptor, peer)
        self.children |= {descriptor: child, peer.fileno(): child}
        self.events.register(descriptor, select.EPOLLIN)
        self.events.register(peer.fileno(), select.EPOLLRDHUP)  # a hang-up is always reported
        with contextlib.suppress(OSError):
            peer.send(_FORKED)
        return False

    def _look_at(self, child: Child, source: int, event: int) -> None:
        """Reap ended children; stop those of ended or asking launchers."""
        if source == child.descriptor:
            _, status = os.waitpid(child.process, 0)
            with contextlib.suppress(OSError):
                child.peer.send(_STATUS.pack(os.waitstatus_to_exitcode(status)))
            del self.children[child.descriptor]
            self.children.pop(child.peer.fileno(), None)
            os.close(child.descriptor)
            child.peer.close()
            return
        gone = event & (select.EPOLLHUP | select.EPOLLERR)
        signal.pidfd_send_signal(child.descriptor, signal.SIGKILL if gone else signal.SIGTERM)
        if gone:
            self.events.unregister(source)
            del self.children[source]
        else:
            self.events.modify(source, 0)

    def _become_child(self, peer: socket.socket) -> None:
        """Make this fork a process like its launcher."""
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for stop in _STOPS:
            signal.signal(stop, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_DATA, self.limits)
        self._close()
        request, streams, _, _ = socket.recv_fds(peer, _MAX_REQUEST, 3)
        peer.close()
        # The importer may have ended before the call that has this process end with it.
        if len(streams) != 3 or os.getppid() != self.process:
            os._exit(1)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        asked = json.loads(request)
        sys.argv = asked["argv"]
        os.chdir(asked["folder"])
        seed_generators()

    def _close(self) -> None:
        """Close the importer's descriptors in a child."""
        self.events.close()
        if self.listener is not None:
            self.listener.close()
        for key, child in self.children.items():
            if key == child.descriptor:
                os.close(child.descriptor)
                child.peer.close()
        for descriptor in (self.place.folder, self.parent, self.wake, self.woken):
            os.close(descriptor)


def want(keep: bool | None) -> None:
    """Request that the launcher keep (or end) an importer; None: neither.

    The app calls it with what the site's profile says.
    """
    if (launchers := sys.modules.get(MODULE)) is not None:
        vars(launchers)["wanted"] = keep


def run_and_exit(work: Callable[[], None]) -> NoReturn:
    """Run a child's ``work`` and exit with its status.

    Unlike Python at its end, it frees nothing, since what the importer made would be copied first
    (a quarter of a second), and waits for no thread: Flower has stopped its own by then.
    """
    status = 1
    try:
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # as Python does with an uncaught error
        traceback.print_exc()
    finally:
        if wanted is False:
            os.kill(os.getppid(), signal.SIGTERM)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def seed_generators() -> None:
    """Seed copied generators in a fork, from the operating system."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(int.from_bytes(os.urandom(4)))
    if torch := sys.modules.get("torch"):
        torch.seed()
