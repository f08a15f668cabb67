"""Small tables with wide bounds at four sites, a random fifth of each class held out."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import MOST_DEVIATIONS, TYPICAL_LENGTH
from hdpfl_tools.simulation.own_data.dataset import dataset_of

Floats = npt.NDArray[np.float64]
Owned = tuple[Floats, npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Features in [−1, 1] of their bounds, labels, and the site of each record."""
CANCER = (
    30, 40, 200, 2500, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1, 3, 5, 25, 600, 0.03, 0.15, 0.4, 0.06, 0.08,
    0.03, 40, 50, 260, 4500, 0.25, 1.1, 1.3, 0.3, 0.7, 0.21,
)  # fmt: skip
"""Upper bounds of the breast cancer table; the lower ones are 0."""
PIMA = {
    "npreg": (0, 20), "glu": (40, 300), "bp": (30, 200), "skin": (5, 100), "bmi": (10, 70),
    "ped": (0, 3), "age": (20, 90),
}  # fmt: skip
"""Bounds of the diabetes table: round numbers around all records, as a schema requires."""


def _cancer(data_dir: str) -> Owned:
    del data_dir
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    x = np.clip(2 * table.data / np.array(CANCER) - 1, -1, 1)
    owner = np.empty(len(x), np.int64)
    owner[np.random.default_rng(0).permutation(len(x))] = np.arange(len(x)) % 4
    return x, 1 - table.target.astype(np.int64), owner


def _pima(data_dir: str) -> Owned:
    path = Path(data_dir) / "pima.csv"
    if not path.is_file():
        raise DataError(
            f"the columns of pima need {path}: MASS::Pima.tr and MASS::Pima.te in one CSV file "
            "(docs/start/before-the-first-model.md has the command); or leave the columns out "
            "with --columns"
        )
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [
        np.clip(2 * (np.array([float(row[name]) for row in rows]) - low) / (high - low) - 1, -1, 1)
        for name, (low, high) in PIMA.items()
    ]
    owner = np.random.default_rng(0).permutation(np.arange(len(rows)) % 4)
    return np.stack(columns, 1), np.array([row["type"] == "Yes" for row in rows], np.int64), owner


def _heart(data_dir: str) -> Owned:
    data = dataset_of(RunTerms(dataset="heart"), data_dir)
    parts = [part for part in (data.train, data.test) if part is not None]
    owners = [part for part in (data.owners, data.test_owners) if part is not None]
    x = np.concatenate([part.features for part in parts]).astype(np.float64)
    return x, np.concatenate([part.targets for part in parts]), np.concatenate(owners)


TABLES: dict[str, Callable[[str], Owned]] = {"pima": _pima, "cancer": _cancer, "heart": _heart}
"""Reader of each table."""


def split_of(name: str, seed: int, data_dir: str, folder: Path, *, typical: str) -> Path:
    """Return a file of one split, written once.

    Args:
        name: of a table.
        seed: of the split.
        data_dir: folder of the data sets.
        folder: where the file goes.
        typical: empty, or what scales the columns: ``exact`` means and deviations of the records,
            as no run may, or such that are ``off`` as those of a textbook may be: means by half a
            deviation either way, deviations twice or half as large.
    """
    path = folder / "tables" / f"{name}-{seed}{f'-{typical}' if typical else ''}.npz"
    if path.exists():
        return path
    x, y, owner = TABLES[name](data_dir)
    draws, held_out = np.random.default_rng(100 + seed), np.zeros(len(y), np.bool_)
    for site in range(4):
        for label in (0, 1):
            rows = draws.permutation(np.flatnonzero((owner == site) & (y == label)))
            held_out[rows[: round(len(rows) / 5)]] = True
    if typical:
        gain, train = TYPICAL_LENGTH / np.sqrt(x.shape[1]), x[~held_out]
        means, deviations = train.mean(0), np.maximum(train.std(0), 1e-6)
        if typical == "off":
            sides = draws.choice([-1.0, 1.0], (2, x.shape[1]))
            means, deviations = means + sides[0] * deviations / 2, deviations * 2 ** sides[1]
        x = np.clip((x - means) / deviations, -MOST_DEVIATIONS, MOST_DEVIATIONS) * gain
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path, x=x[~held_out].astype(np.float32), y=y[~held_out], owner=owner[~held_out],
        x_test=x[held_out].astype(np.float32), y_test=y[held_out], owner_test=owner[held_out],
    )  # fmt: skip
    return path
