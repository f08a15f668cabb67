"""The demo's compose file, started for real under a name of its own, and taken down altogether."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILES = (ROOT / "docker" / "compose.yml", Path(__file__).with_name("override.yml"))
BASE = Path(__file__).with_name("base.sh")
SITES = ("cleveland", "hungarian", "switzerland", "va")
ROLES = ("node", "tasks", "exporter", "prometheus", "grafana")
PORTS = (3000, 8000, 8099, 9090, 9094, 28290, 28291)
"""All ports at which a container of ours may listen."""
PATIENCE, QUIET = 3600, 300.0
"""Seconds of a command of Docker at most; seconds without any progress that end a wait."""
Done = subprocess.CompletedProcess[str]


def compose_command() -> list[str]:
    """Return how Compose is called here: the plugin if there is one; else the old program."""
    if shutil.which("docker") and quietly("docker", "compose", "version").returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else []


def missing() -> str:
    """Return what of this machine lacks; empty if it can run the containers."""
    if not shutil.which("docker") or quietly("docker", "info").returncode:
        return "a running Docker"
    if not compose_command():
        return "docker compose, or docker-compose 1.29"
    if os.environ.get("HDPFL_BASE"):
        return ""
    if not shutil.which("debootstrap") or os.geteuid():
        return "debootstrap, run by root (or HDPFL_BASE, the name of a base image)"
    return ""


def base_image() -> str:
    """Return the name of the base image; make it where its recipe is new."""
    if named := os.environ.get("HDPFL_BASE"):
        return named
    name = f"hdpfl-test-base:{hashlib.sha256(BASE.read_bytes()).hexdigest()[:12]}"
    if quietly("docker", "image", "inspect", name).returncode:
        made = quietly(str(BASE), name)
        assert made.returncode == 0, made.stderr[-2000:]
    return name


@dataclass(frozen=True)
class Stack:
    """The containers of one project."""

    project: str
    base: str
    environment: dict[str, str] = field(default_factory=dict)

    def compose(self, *words: str, more: tuple[Path, ...] = ()) -> Done:
        """Run a command of Compose; ``more`` are further files that override the others."""
        files = [word for file in (*FILES, *more) for word in ("-f", str(file))]
        return subprocess.run(
            [*compose_command(), "-p", self.project, *files, *words],
            env={**os.environ, "HDPFL_BASE": self.base, **self.environment},
            capture_output=True, text=True, check=False, timeout=PATIENCE, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def do(self, *words: str, more: tuple[Path, ...] = ()) -> str:
        """Run a command of Compose that must work; return what it printed."""
        done = self.compose(*words, more=more)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def execute(self, service: str, *words: str) -> Done:
        """Run a program in the container of ``service``."""
        return quietly("docker", "exec", self.container(service), *words)

    def python(self, service: str, code: str) -> str:
        """Return what ``code`` prints in the container of ``service``."""
        program = "python3" if service.endswith(("prometheus", "grafana")) else PYTHON
        done = self.execute(service, program, "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def container(self, service: str) -> str:
        """Return the id of the container of ``service``, running or not."""
        filters = [f"label=com.docker.compose.{key}" for key in (
            f"project={self.project}", f"service={service}", "oneoff=False")]  # fmt: skip
        words = [word for text in filters for word in ("--filter", text)]
        (found,) = quietly("docker", "ps", "-a", "-q", *words).stdout.split()
        return found

    def inspect(self, service: str) -> dict[str, Any]:
        """Return what Docker knows of the container of ``service``."""
        (found,) = json.loads(quietly("docker", "inspect", self.container(service)).stdout)
        return dict(found)

    def logs(self, service: str) -> list[str]:
        """Return the lines that the operator reads."""
        done = quietly("docker", "logs", self.container(service))
        return (done.stdout + done.stderr).splitlines()

    def wait(self, service: str, what: Callable[[], Any]) -> Any:
        """Return what ``what()`` finds, once it does; given up when the container stands still.

        A loaded machine is slow and goes on: its log grows, its state changes, health is asked.
        """
        seen, end = "", time.monotonic() + QUIET
        while not (found := what()):
            state = self.inspect(service)
            now = json.dumps([state["State"], state["RestartCount"], len(self.logs(service))])
            if now != seen:
                seen, end = now, time.monotonic() + QUIET
            streak = state["State"].get("Health", {}).get("FailingStreak", 0)
            standing = time.monotonic() > end or streak > FAILING
            assert not standing, (service, state["State"], self.logs(service)[-20:])
            time.sleep(1)
        return found

    def wait_for_line(self, service: str, text: str) -> str:
        """Return the first line with ``text`` in a log, as soon as it is there."""
        return str(self.wait(service, lambda: [x for x in self.logs(service) if text in x])[0])

    def wait_until_healthy(self, service: str, restarts: int = 0) -> None:
        """Wait until Docker finds the container healthy, after so many restarts."""

        def healthy() -> bool:
            found = self.inspect(service)
            return (
                found["RestartCount"] >= restarts
                and found["State"]["Health"]["Status"] == "healthy"
            )

        self.wait(service, healthy)

    def ask(self, place: str, expr: str) -> list[dict[str, Any]]:
        """Return what the Prometheus of a place finds; it is asked from within its container."""
        query = urllib.parse.urlencode({"query": expr})
        url = f"http://127.0.0.1:9090/api/v1/query?{query}"
        answer = json.loads(self.python(prometheus_of(place), fetching(url)))
        assert answer["status"] == "success"
        return list(answer["data"]["result"])

    def wait_for(self, place: str, expr: str) -> float:
        """Return the only value of ``expr`` as soon as the Prometheus of a place has it."""
        (sample,) = self.wait(prometheus_of(place), lambda: self.ask(place, expr))
        return float(sample["value"][1])

    def metrics(self, place: str) -> str:
        """Return what the exporter of a place shows to its Prometheus."""
        port = 28291 if place in SITES else 28290
        return self.python(prometheus_of(place), fetching(f"http://exporter:{port}/metrics"))


FAILING = 40
"""Checks of health in a row that fail, until nothing is hoped for."""
PYTHON = "/srv/hdpfl/venv/bin/python"


def prometheus_of(place: str) -> str:
    """Return the service that asks the exporter of a site, or of the coordinator."""
    return f"{place}-prometheus" if place in SITES else "prometheus"


def fetching(url: str) -> str:
    """Return code that prints what is at ``url``."""
    return f"import urllib.request as r; print(r.urlopen({url!r}, timeout=20).read().decode())"


@contextmanager
def started(project: str, authority: Path | None) -> Iterator[Stack]:
    """Build the images where they changed, start the containers; take all down at the end."""
    own_ports = {f"HDPFL_GRAFANA{place}": "0" for place in ("", *(f"_{s.upper()}" for s in SITES))}
    stack = Stack(project, base_image(), {"HDPFL_VERSION": "test", **own_ports})
    with extra_authority(authority):
        stack.do("build")
    try:
        stack.do("up", "-d")
        yield stack
    finally:
        stack.compose("--profile", "run", "down", "--volumes", "--remove-orphans", "-t", "5")
        filters = f"label=com.docker.compose.project={project}"
        left = quietly("docker", "volume", "ls", "-q", "--filter", filters).stdout.split()
        if left:  # of files that a test added
            quietly("docker", "volume", "rm", *left)


@contextmanager
def extra_authority(file: Path | None) -> Iterator[None]:
    """Put the CA of the network that the image is built in where the Dockerfile looks for it."""
    if file is None:
        yield
        return
    there = ROOT / "docker" / "ca" / "test-docker.crt"
    shutil.copyfile(file, there)
    try:
        yield
    finally:
        there.unlink()


def quietly(*words: str) -> Done:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
