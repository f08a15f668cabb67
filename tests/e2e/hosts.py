"""Hosts of their own on one machine: network namespaces with an address each, on one bridge."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.engines import BIN, Done, processes

NETWORK = "10.77.0"
TOOL = "ip"
CLOCK = Path(__file__).parent / "clock"
"""On the path of each host's processes: a clock that can be set."""


class NoNamespacesError(Exception):
    """This machine does not let us make network namespaces."""


@dataclass(frozen=True)
class Network:
    """A switch and the hosts on it; nothing of it lies in the machine's own namespace.

    Attributes:
        prefix: what the names of the namespaces begin with.
        hosts: the names of the hosts; the n-th has the address ``NETWORK.n``, counted from 1.
    """

    prefix: str
    hosts: tuple[str, ...]

    def address(self, host: str) -> str:
        return f"{NETWORK}.{self.hosts.index(host) + 1}"

    def on(self, host: str, *words: str | Path) -> list[str]:
        """Return the command that runs ``words`` on a host; it keeps its process id."""
        return [TOOL, "netns", "exec", self._space(host), *map(str, words)]

    def cut(self, host: str) -> None:
        """Pull the cable of a host out of the switch."""
        _ip("-n", self._switch, "link", "set", self._port(host), "down")

    def heal(self, host: str) -> None:
        """Put it in again."""
        _ip("-n", self._switch, "link", "set", self._port(host), "up")

    def move(self, host: str) -> None:
        """Give a host another address, as a router that was started again does."""
        space, address = self._space(host), f"{NETWORK}.{101 + self.hosts.index(host)}/24"
        _ip("-n", space, "address", "flush", "dev", "eth0")
        _ip("-n", space, "address", "add", address, "dev", "eth0")

    def make(self) -> None:
        """Make the switch, the hosts and their cables.

        Raises:
            NoNamespacesError: with what the system says.
        """
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for host in self.hosts:
            space, port = self._space(host), self._port(host)
            _ip("netns", "add", space)
            pair = ["type", "veth", "peer", "name", "eth0", "netns", space]
            _ip("-n", self._switch, "link", "add", port, *pair)
            _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
            _ip("-n", space, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def remove(self) -> None:
        """Remove whatever there is of it."""
        for space in (*map(self._space, self.hosts), self._switch):
            with contextlib.suppress(NoNamespacesError):
                _ip("netns", "delete", space)

    @property
    def _switch(self) -> str:
        return f"{self.prefix}-switch"

    def _space(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def _port(self, host: str) -> str:
        return f"port{self.hosts.index(host)}"


@contextlib.contextmanager
def network(*hosts: str) -> Iterator[Network]:
    """Yield a network of ``hosts``; skips the test where this machine can make none."""
    made = Network(f"hdpfl-{secrets.token_hex(3)}", hosts)
    try:
        try:
            made.make()
        except NoNamespacesError as problem:
            pytest.skip(f"this machine makes no network namespaces: {problem}")
        yield made
    finally:
        made.remove()


def _ip(*words: str) -> None:
    if shutil.which(TOOL) is None:
        raise NoNamespacesError("there is no command 'ip' (iproute2)")
    done = subprocess.run([TOOL, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespacesError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Host:
    """A machine with a home of its own, and what it runs."""

    network: Network
    name: str
    folder: Path

    def call(self, command: str, *words: str | Path) -> Done:
        """Run one of our environment's commands here, to its end."""
        return subprocess.run(
            self.network.on(self.name, BIN / command, *words), env=self.environment,
            cwd=self.folder, capture_output=True, text=True, check=False, timeout=400,
        )  # fmt: skip

    def start(self, name: str, command: str, *words: str | Path) -> None:
        """Start a command that stays; its log is ``log``."""
        started = self.network.on(self.name, BIN / command, *words)
        processes.start(name, started, self.folder, self.log, self.environment)

    def set_clock(self, ahead: int) -> None:
        """Set this host's clock so many seconds ahead of the machine's, for what runs, too."""
        (self.folder / "offset").write_text(f"{ahead}")

    def kill(self, name: str) -> None:
        """End what :meth:`start` started, and all that it started, as a loss of power does."""
        pid = processes.find(name, self.folder)
        for each in processes._family([pid] if pid else []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    def stop(self) -> None:
        """Stop all that runs here."""
        self.folder.mkdir(exist_ok=True)
        processes.stop(processes.names(self.folder), self.folder)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def environment(self) -> dict[str, str]:
        shut = ("FLWR_", "HDPFL_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(shut)}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CLOCK), kept.get("PYTHONPATH")])),
            "CLOCK_FILE": str(self.folder / "offset"),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "HDPFL_HOME": str(self.folder / "home"),
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        }

    def json_of(self, command: str, *words: str | Path) -> dict[str, object]:
        """Return the JSON that a command prints here."""
        done = self.call(command, *words)
        assert "{" in done.stdout, done.stdout + done.stderr
        told: dict[str, object] = json.loads(done.stdout[done.stdout.index("{") :])
        return told
