"""Production sites on data of a test's own: profile, ledger and records, as a hospital has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.task import Records

DECLARED, BATCH = 48, 12
EPSILON, DELTA = 3.217391, 1e-5
"""A rare number: wherever it turns up, it came from the profile."""

PROFILE = """
approval = "standing"
[budget]
epsilon = 6.434782
delta = 2e-5
[run]
epsilon = {epsilon}
delta = 1e-5
[training]
batch-size = {batch}
declared-records = {declared}
physical-batch = 8
device = "cpu"
torch-threads = 1
engine = "{engine}"
[policy]
models = ["tests.privacy.nets:layer_norm"]
[data]
format = "npz"
path = "records.npz"
[ledger]
path = "ledger.sqlite"
[state]
path = "state"
"""


def digits(count: int, seed: int = 0) -> Records:
    """Return random images of the digits' shape, 8×8, with labels."""
    generator = np.random.default_rng(seed)
    features = generator.random((count, 1, 8, 8), dtype=np.float32)
    return Records(features, generator.integers(0, 10, count))


def without(records: Records, row: int) -> Records:
    return Records(np.delete(records.features, row, 0), np.delete(records.targets, row, 0))


def with_one_more(
    records: Records, features: npt.NDArray[np.float32], target: float = 3
) -> Records:
    """Append one record; its features may be one number for all of them."""
    row = np.broadcast_to(features, records.features.shape[1:]).astype(np.float32)
    targets = np.append(records.targets, target)
    return Records(np.concatenate([records.features, row[None]]), targets)


def make_site(
    folder: Path,
    records: Records,
    *,
    engine: str = "auto",
    epsilon: float = EPSILON,
    batch: int = BATCH,
    declared: int = DECLARED,
) -> Path:
    """Write a site and return its profile's path."""
    folder.mkdir(parents=True)
    np.savez(folder / "records.npz", x=records.features, y=records.targets)
    profile = folder / "profile.toml"
    profile.write_text(
        PROFILE.format(engine=engine, epsilon=epsilon, batch=batch, declared=declared)
    )
    profile.chmod(0o600)
    Ledger.create(folder / "ledger.sqlite", 6.434782, 2e-5).close()
    return profile


def terms_of(model: str = "logreg", **more: Any) -> RunTerms:
    """Return terms of two rounds on digits, for sites with records of their own."""
    config = {"dataset": "digits", "model": model, "rounds": 2, "run-id": "run-1",
              "clip-norm": 0.1, "learning-rate": 0.5, "evaluation": "none"}  # fmt: skip
    return RunTerms.parse({**config, **more})
