"""One round of local training in a test: a plan, records, streams, and the update they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hdpfl_flower.engines import dpsgd
from hdpfl_flower.engines.engines import Engine
from hdpfl_flower.models.networks import arrays_of, flatten
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan
from tests.hdpfl_flower.engines.oracle import ENGINES_OF, draw, make_engine, model_of, mutant

TABLE = Task.classification((5,), 4)
RATE = 0.1
Train = Callable[..., np.ndarray]


def streams() -> ReleaseStreams:
    """Return the streams of one simulated release, the same ones each time."""
    return ReleaseStreams.simulated(5, "site", 1, "update")


def records_of(task: Task, count: int) -> Records:
    x, y = draw(task, count, seed=1)
    return Records(x.numpy(), y.numpy())


def plan_of(**changes: Any) -> RoundPlan:
    terms = {"q": 0.2, "steps": 8, "clip_norm": 0.7, "noise_std": 0.0, "divisor": 10.0, **changes}
    steps = Steps(terms.pop("q"), int(terms.pop("steps")))
    return RoundPlan(steps, **terms)


def start_of(spec: str, task: Task) -> np.ndarray:
    return flatten(arrays_of(model_of(spec, task)))


def update_of(
    records: Records,
    plan: RoundPlan,
    task: Task = TABLE,
    spec: str = "logreg",
    *,
    name: str = "",
    train: Train = dpsgd.train,
    physical_batch: int = 1000,
    release: ReleaseStreams | None = None,
    engine: Engine | None = None,
) -> np.ndarray:
    """Return the update of a fresh engine, by default the fastest."""
    engine = engine or make_engine(name or ENGINES_OF[spec][0], spec, task)
    start = start_of(spec, task)
    return train(engine, start, records, plan, RATE, release or streams(), physical_batch)


def with_bug(*changes: tuple[str, str]) -> Train:
    """Return ``dpsgd.train`` with a bug put back."""
    return mutant(dpsgd, *changes).train  # type: ignore[no-any-return]
