"""Non-training cost of a SuperNode round: client processes and coordinator.

Flower starts a process for each message, so most of it is imports. A federation of the demo's four
hospitals runs on loopback; a task's CPU time is the system's count at its end, including training
of a few milliseconds, so that the figure is too high. It runs twice: with Flower's launcher, and
with sites that pin their code, whose messages an importer's forks answer
(``client_app/approval/importer.py``). Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from client_app.approval.importer import HOLD

from benchmarks.timing import interleaved, show
from hdpfl_flower.monitoring.journal import read_journal

ROOT = Path(__file__).resolve().parents[1]
FEDERATION = [sys.executable, str(ROOT / "deploy" / "federation.py")]
SITES = ("cleveland", "hungarian", "switzerland", "va")
WARM, RUN, PORT = "warm", "deployed", "28700"
TASK = "import flwr.supernode.runtime.run_clientapp"
IMPORTS = {
    "Flower's client process": TASK,
    "… that imports torch": f"{TASK}, torch",
    "… that imports our ClientApp": f"{TASK}, client_app.app",
}
CLIENT_BAR, FORK_BAR, COORDINATOR_BAR = 3.0, 0.25, 0.5


def main() -> None:
    """Print CPU seconds of imports, messages, and coordinator rounds."""
    imports = interleaved({name: lambda c=code: _import(c) for name, code in IMPORTS.items()},
                          repeats=5, clock=_cpu_of_children)  # fmt: skip
    tasks, rounds = _run()
    forks, _ = _run("--pin")
    rows = [[name, f"{seconds:.2f}", ""] for name, seconds in imports.items()]
    rows += [
        ["a message to a client, its whole process", f"{tasks:.2f}", f"≤ {CLIENT_BAR:.0f}"],
        ["… at sites that pin their code", f"{forks:.2f}", f"≤ {FORK_BAR}"],
        ["the coordinator's own, first round", f"{rounds[0]:.2f}", f"≤ {COORDINATOR_BAR}"],
        ["the coordinator's own, each later one", f"{statistics.median(rounds[1:]):.2f}",
         f"≤ {COORDINATOR_BAR}"],
    ]  # fmt: skip
    show("A round of Heart over four SuperNodes", ["", "seconds", "bar"], rows)


def _import(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(*words: str) -> tuple[float, list[float]]:
    """Run the demo; return CPU seconds per message and per round.

    The round's are the coordinator's.

    A run of one round is first: one-time work of a run or a federation is not a message's.
    """
    with tempfile.TemporaryDirectory() as home:
        own = {"HDPFL_HOME": home, "HDPFL_FEDERATION_PORT": PORT, "OMP_NUM_THREADS": "1"}
        environment, folder = {**os.environ, **own}, Path(home) / "federation"
        demo = tomllib.loads((ROOT / "deploy" / "demo" / "run.toml").read_text())

        def write(run: str, rounds: int) -> Path:
            terms = {**demo, "after": "", "run-id": run, "rounds": rounds}
            path = Path(home) / f"{run}.toml"
            path.write_text(
                "".join(f"{key} = {json.dumps(value)}\n" for key, value in terms.items())
            )
            return path

        def call(*words: str | Path) -> None:
            command = [*FEDERATION, *map(str, words)]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

        try:
            call("up", *words)
            call("run", write(WARM, 1))
            before, asked = _cpu_of_tasks(folder), _messages(folder)
            call("run", write(RUN, demo["rounds"]))
            used, answered = _cpu_of_tasks(folder) - before, _messages(folder) - asked
        finally:
            call("down")
        events = read_journal(Path(home) / "runs" / RUN / "journal.jsonl")
        phases = [event["phases"] for event in events if event["event"] == "round"]
    own_work = [sum(phase.values()) - phase["exchange"] for phase in phases]
    return used / answered, own_work


def _messages(folder: Path) -> int:
    logs = [(folder / "logs" / f"{site}.log").read_text(errors="replace") for site in SITES]
    return sum(log.count("Receiving: ") for log in logs)


def _cpu_of_tasks(folder: Path) -> float:
    """Return the CPU seconds of all ended tasks and their importers."""
    nodes = {json.loads((folder / "pids" / f"{site}.json").read_text())["pid"] for site in SITES}
    importers = set(_importers(bytes(folder)))
    ticks = os.sysconf("SC_CLK_TCK")
    return sum(_waited_for(nodes | importers, importers)) / ticks


def _importers(folder: bytes) -> Iterable[int]:
    """Yield the importers of ``folder``'s sites, which no site's process parents."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if HOLD.encode() in words.split(b"\0") and folder in words:  # of its launcher's path
                yield int(process.name)


def _waited_for(nodes: set[int], own: set[int]) -> Iterable[int]:
    """Yield the ticks of the awaited children of ``nodes`` and their children.

    For ``own``, also their own ticks.
    """
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent, *numbers = path.read_text().rpartition(")")[2].split()[1:]
        except OSError:  # ended meanwhile
            continue
        if int(parent) in nodes or int(path.parent.name) in nodes:
            yield int(numbers[11]) + int(numbers[12])
        if int(path.parent.name) in own:
            yield int(numbers[9]) + int(numbers[10])
