"""Runs that a test kills and takes up again, under every rule, over scripted sites."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, RecordDict

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import Positions, ReleaseStreams
from server_app.run.checkpoint import Checkpoint
from server_app.run.checkpointing import Checkpoints
from server_app.run.rounds import RunResult, run
from strategies import SERVER_STEPS, STRATEGIES
from tests.federation import NEEDED, ScriptedGrid, Site

SIZE, ROUNDS = 650, 6
SIGNAL = 0.01 * np.concatenate([np.repeat([1.0, -1.0] * 5, 64), [1.0, -1.0] * 5])
"""What all sites learn, shape ``(SIZE,)``; a softmax layer's sums over the classes are 0."""
MEMORY = Path("/dev/shm")


@pytest.fixture(name="folder")
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder where waiting for the disk costs nothing."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as name:
        yield Path(name)


class Killed(BaseException):
    """Ends a run where it is; what it would still write is taken away by the test."""


def liar(_: int) -> RecordDict:
    return wire.write_update(wire.encode_update(np.full(SIZE, 0.02, np.float32)), SIZE)


def noisy(seed: int) -> Site:
    def site(server_round: int) -> RecordDict | Error | None:
        if (seed + server_round) % 7 == 3:
            return Error(wire.DECLINED, "declined")
        noise = np.random.default_rng([seed, server_round]).standard_normal(SIZE)
        update = SIGNAL + 0.002 * (1 + seed) * noise.astype(np.float32)
        return wire.write_update(wire.encode_update(update.astype(np.float32)), SIZE)

    return site


def federation() -> ScriptedGrid:
    sites = {str(i): noisy(i) for i in range(7)}
    facts = {
        str(i): {"declared-records": 100.0 + i, "batch-size": 10.0, "noise-std": 0.1 * (1 + i)}
        | {"epsilon": float("inf") if i > 4 else 0.5 * (1 + i)}
        for i in range(8)
    }
    return ScriptedGrid({**sites, "7": liar}, facts)


CASES: dict[str, dict[str, Any]] = {
    **{name: {"strategy": name} for name in STRATEGIES},
    "fedhdp+pfa": {"strategy": "fedhdp+pfa"},
    "control variates and a step": {"strategy": "mmse+scaffold+adam", "fraction": 0.6,
    },
    **{f"fedavg+{step}": {"strategy": f"fedavg+{step}"} for step in SERVER_STEPS},
    **{
        f"average = {average}": {"strategy": "robust-hdp+momentum", "average": average}
        for average in ("tail", "ema", "ergodic")
    },
    "found rate": {"strategy": "mmse", "learning-rate": "auto", "guard": "cap"},
    "noise that falls": {"strategy": "mmse", "spend": {"kind": "late", "ratio": 3}},
    "starts at a rate": {
        "strategy": "weiavg+fedpi", "average": "ema",
        "server-learning-rate": 0.7, "server-schedule": "log",
    },
    "starts of some": {"strategy": "splitting", "fraction": 0.6},
    "rate under content": {
        "strategy": "robust-hdp", "guard": "content", "server-learning-rate": 0.5,
        "server-schedule": "sqrt",
    },
    "trusted server": {"strategy": "fedhdp", "noise": "server", "fraction": 0.6},
    "moving clip norm": {"strategy": "dp-fedavg", "noise": "server", "dp-fedavg.clip-lr": 0.5},
    "cap": {"strategy": "robust-hdp", "guard": "cap"},
    "content": {"strategy": "mmse", "guard": "content", "max-liars": 1},
    "drawn sites": {"strategy": "fedavg", "fraction": 0.4, "participations": 3},
    "who has left": {"strategy": "fedavg", "noise-multiplier": 1.0},
    "a public site": {"strategy": "weiavg", "fraction": 0.4, "require-public": True},
}  # fmt: skip


QUICK = {"r-dpcfl", "pfa-plus", "control variates and a step", "found rate", "drawn sites"}
"""Cases of ``make test``: several models, a basis, control variates, estimates, lots.

That the state of every strategy survives a checkpoint is in the contract suite.
"""


def terms_of(folder: Path, run_id: str, **more: Any) -> RunConfig:
    config = {"rounds": ROUNDS, "runs-dir": str(folder), "run-id": run_id, "evaluation": "none"}
    needed = NEEDED.get(more.get("strategy", ""), {})
    return RunConfig.parse({"min-sites": 1, "quorum": 0, **config, **needed, **more})


def go(
    terms: RunConfig, at: Checkpoint | None = None, stop: int = 0, grid: ScriptedGrid | None = None
) -> RunResult:
    """Run, or go on; with ``stop`` only as far as that round's line in the journal."""

    def on_event(event: dict[str, Any]) -> None:
        if stop and event["event"] == "round" and event["round"] == stop:
            raise Killed

    streams = ReleaseStreams.simulated(1, "server", 0, "round", (at and at.streams) or Positions())
    checkpoints = Checkpoints({"engine": "test"}, at, seeded=True)
    return run(grid or federation(), terms, on_event, streams=streams, checkpoints=checkpoints)


def interrupted(runs: Path, **more: Any) -> Path:
    """Return the folder of a run that was killed after its second round."""
    with pytest.raises(Killed):
        go(terms_of(runs, "r", strategy="robust-hdp", **more), stop=2)
    return runs / "r"
