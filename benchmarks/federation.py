"""Twelve SuperNodes against Flower's quickstart, and what many rounds leave behind.

    python -m benchmarks federation
    HDPFL_ROUNDS=400 python -m benchmarks federation     # the second table instead

On one federation a run of the hospitals, three times over, and one of an app like Flower's
quickstart, with a model of as many numbers, take turns: both train in processes that Flower starts,
with torch. A round's seconds lie between two ends of rounds. Linux only.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from safetensors.numpy import load_file

from benchmarks.timing import show
from deploy import processes
from hdpfl_flower.monitoring.journal import read_journal

ROOT = Path(__file__).resolve().parents[1]
FEDERATION = [sys.executable, str(ROOT / "deploy" / "federation.py")]
SITES = ("cleveland", "hungarian", "switzerland", "va")
NODES, ROUNDS, TURNS, BAR, PORT = 12, 4, 1, 1.5, "28800"
LOOKS = (0.1, 0.4, 0.7, 1.0)
"""Shares of the rounds after which the second table looks."""
PYPROJECT = """
[project]
name = "quickstart"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "quickstart.app:server"
clientapp = "quickstart.app:client"
[tool.flwr.app.config]
numbers = 1
rounds = 1
times = ""
"""
APP = """
import time
from pathlib import Path
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    import torch
    model = torch.nn.Linear(context.run_config["numbers"] - 1, 1)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    step = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(320, model.in_features), torch.randn(320, 1)
    for at in range(0, 320, 32):
        step.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x[at:at + 32]), y[at:at + 32])
        loss.backward()
        step.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": 320})
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)

@server.main()
def main(grid, context):
    import torch
    config = context.run_config
    arrays = ArrayRecord(torch.nn.Linear(config["numbers"] - 1, 1).state_dict())
    def ended(number, arrays):
        with Path(config["times"]).open("a") as file:
            file.write(f"{time.time()}\\n")
    FedAvg(fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES).start(
        grid=grid, initial_arrays=arrays, num_rounds=config["rounds"], evaluate_fn=ended)
"""


@dataclass(frozen=True)
class Federation:
    """A federation that is up."""

    home: Path
    environment: dict[str, str]

    def call(self, *words: str | Path, main: tuple[str, ...] = tuple(FEDERATION)) -> None:
        command = [*main, *map(str, words)]
        subprocess.run(command, env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def run(self, name: str, **terms: object) -> Path:
        """Run the demo's terms, changed; return the run's folder."""
        demo = tomllib.loads((ROOT / "deploy" / "demo" / "run.toml").read_text())
        path, given = self.home / f"{name}.toml", {**demo, "after": "", "run-id": name, **terms}
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items()))
        self.call("run", path)
        return self.home / "runs" / name


@contextlib.contextmanager
def _federation(copies: int) -> Iterator[Federation]:
    """Start the hospitals, each so many times, with room for the runs here."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for number in range(copies):
            for site in SITES:
                there = home / "sites" / (f"{site}-{number}" if copies > 1 else site)
                shutil.copytree(ROOT / "deploy" / "demo" / site, there)
                profile = there / "profile.toml"
                text = profile.read_text().replace("max-rounds = 50", "max-rounds = 5000")
                profile.write_text(text.replace("[training]", "[training]\ntorch-threads = 1"))
        own = {"HDPFL_HOME": folder, "HDPFL_FEDERATION_PORT": PORT, "OMP_NUM_THREADS": "1",
               "FLWR_HOME": str(home / "federation" / "superlink")}  # fmt: skip
        made = Federation(home, {**os.environ, **own})
        try:
            made.call("up", "--sites", home / "sites")
            yield made
        finally:
            made.call("down")


def main() -> None:
    """Print the seconds of a round beside the quickstart's, or what grew over many rounds."""
    if rounds := int(os.environ.get("HDPFL_ROUNDS", "0")):
        _long(rounds)
        return
    ours, theirs = list[float](), list[float]()
    with _federation(NODES // len(SITES)) as up:
        for turn in range(TURNS):
            folder = up.run(f"turn-{turn}", rounds=ROUNDS, **{"min-sites": NODES})
            events = read_journal(folder / "journal.jsonl")
            ends = [datetime.fromisoformat(e["at"]).timestamp() for e in events
                    if e["event"] == "round"]  # fmt: skip
            ours += _between(ends)
            numbers = sum(array.size for array in load_file(folder / "model.safetensors").values())
            theirs += _between(_quickstart(up, turn, numbers))
    ratio = statistics.median(ours) / statistics.median(theirs)
    show(f"A round of {NODES} SuperNodes, a model of {numbers} numbers", ["", "seconds", "bar"], [
        ["Flower's quickstart", f"{statistics.median(theirs):.1f}", ""],
        ["ours", f"{statistics.median(ours):.1f}", ""],
        ["ours / Flower's", f"{ratio:.2f}", f"≤ {BAR}"],
    ])  # fmt: skip


def _between(ends: list[float]) -> list[float]:
    return [later - sooner for sooner, later in itertools.pairwise(ends)]


def _quickstart(up: Federation, turn: int, numbers: int) -> list[float]:
    """Run the other app; return when its rounds ended."""
    app, times = up.home / "app", up.home / f"times-{turn}"
    (app / "quickstart").mkdir(parents=True, exist_ok=True)
    (app / "pyproject.toml").write_text(PYPROJECT)
    (app / "quickstart" / "__init__.py").touch()
    (app / "quickstart" / "app.py").write_text(APP.replace("NODES", str(NODES)))
    config = f'numbers={numbers} rounds={ROUNDS} times="{times}"'
    flwr = str(Path(FEDERATION[0]).with_name("flwr"))
    up.call("run", app, "hdpfl", "--stream", "--run-config", config, main=(flwr,))
    return [float(line) for line in times.read_text().split()][1:]  # the first is of no round


def _long(rounds: int) -> None:
    """Print memory and files during a run of many rounds."""
    with _federation(1) as up, ThreadPoolExecutor() as pool:
        running = pool.submit(up.run, "long", rounds=rounds, **{"min-sites": len(SITES)})
        looks: dict[int, dict[str, float]] = {}
        for number in (round(share * rounds) for share in LOOKS):
            while (done := _rounds_of(up.home / "runs" / "long")) < number and running.running():
                time.sleep(0.2)
            looks[done] = _sizes(up.home)
        running.result()
    rows = [[what, *(f"{look[what]:.2f}" for look in looks.values())] for what in looks[done]]
    show(f"{rounds} rounds at four sites, MB", ["after rounds", *map(str, looks)], rows)


def _rounds_of(folder: Path) -> int:
    path = folder / "journal.jsonl"
    return path.read_text().count('"event": "round"') if path.exists() else 0


def _sizes(home: Path) -> dict[str, float]:
    """Return MB of memory, least of some looks since messages come and go, and of files."""
    federation = home / "federation"
    roots = [json.loads(path.read_text())["pid"] for path in (federation / "pids").glob("*.json")]
    memory = []
    for _ in range(60):
        pages = 0
        for pid in processes._family(roots):
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
        time.sleep(0.1)
    files = Counter[str]()
    kinds = {"ledger": "ledgers", "anchor": "ledgers", "runs": "journal and models", "logs": "logs"}
    for path in home.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                kind = next((k for part, k in kinds.items() if part in path.parts), "all else")
                files[kind] += path.stat().st_size / 1e6
    return {"memory": min(memory), **dict(sorted(files.items()))}
