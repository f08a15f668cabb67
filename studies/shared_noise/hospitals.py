"""Four hospitals of heart records, a random fifth of each held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError
from hdpfl_tools.simulation.own_data.dataset import dataset_of


def split_of(seed: int, data_dir: str, folder: Path) -> Path:
    """Return a file of the records by hospital, with its own test set (docs/how-to/own-data.md).

    Args:
        seed: of the draw of each hospital's fifth.
        data_dir: folder of the data sets.
        folder: where the file goes; an earlier one is taken as it is.
    """
    path = folder / "hospitals" / f"heart-{seed}.npz"
    if path.exists():
        return path
    data = dataset_of(RunTerms(dataset="heart"), data_dir)
    if data.test is None or data.owners is None or data.test_owners is None:
        raise DataError("the data set 'heart' has no hospitals")
    x = np.concatenate([data.train.features, data.test.features])
    y = np.concatenate([data.train.targets, data.test.targets])
    owners = np.concatenate([data.owners, data.test_owners])
    generator, held_out = np.random.default_rng([seed, *b"hospitals"]), np.zeros(len(y), np.bool_)
    for owner in np.unique(owners):
        rows = generator.permutation(np.flatnonzero(owners == owner))
        held_out[rows[: len(rows) // 5]] = True
    path.parent.mkdir(parents=True, exist_ok=True)
    train = ~held_out
    np.savez(
        path,
        x=x[train],
        y=y[train],
        owner=owners[train],
        x_test=x[held_out],
        y_test=y[held_out],
        owner_test=owners[held_out],
    )
    return path
