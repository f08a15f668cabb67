"""Twelve SuperNodes against Flower's quickstart.

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
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from safetensors.numpy import load_file

from benchmarks.timing import show
from hdpfl_flower.monitoring.journal import read_journal

ROOT = Path(__file__).resolve().parents[1]
FEDERATION = [sys.executable, str(ROOT / "deploy" / "federation.py")]
SITES = ("cleveland", "hungarian", "switzerland", "va")
NODES, ROUNDS, TURNS, BAR, PORT = 12, 4, 1, 1.5, "28800"
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
        del demo["after"]
        path, given = self.home / f"{name}.toml", {**demo, "run-id": name, **terms}
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items()))
        self.call("run", path)
        return self.home / "runs" / name


@contextlib.contextmanager
def federation(copies: int) -> Iterator[Federation]:
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
        variables = {
            "HDPFL_HOME": folder,
            "HDPFL_FEDERATION_PORT": PORT,
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(home / "federation" / "superlink"),
        }
        made = Federation(home, {**os.environ, **variables})
        try:
            made.call("up", "--sites", home / "sites")
            yield made
        finally:
            made.call("down")


def main() -> None:
    """Print the seconds of a round beside the quickstart's."""
    ours, theirs = list[float](), list[float]()
    with federation(NODES // len(SITES)) as up:
        for turn in range(TURNS):
            folder = up.run(f"turn-{turn}", rounds=ROUNDS, **{"min-sites": NODES})
            ours += seconds_of(folder)
            numbers = sum(array.size for array in load_file(folder / "model.safetensors").values())
            theirs += _between(_quickstart(up, turn, numbers))
    ratio = statistics.median(ours) / statistics.median(theirs)
    show(
        f"A round of {NODES} SuperNodes, a model of {numbers} numbers",
        ["", "seconds", "bar"],
        [
            ["Flower's quickstart", f"{statistics.median(theirs):.1f}", ""],
            ["ours", f"{statistics.median(ours):.1f}", ""],
            ["ours / Flower's", f"{ratio:.2f}", f"≤ {BAR}"],
        ],
    )


def seconds_of(folder: Path) -> list[float]:
    """Return the seconds between two ends of rounds of the run in ``folder``."""
    events = read_journal(folder / "journal.jsonl")
    return _between(
        [datetime.fromisoformat(e["at"]).timestamp() for e in events if e["event"] == "round"]
    )


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
