"""Splits of a federation's records for the leaderboard.

One for the reported runs, one for the search.

Rates are searched only on training records: every fifth of each site's is a test record there, and
no record of the reported test is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.array_targets import Targets
from hdpfl_flower.data.datasets import dataset_of_owners, load_dataset
from hdpfl_flower.data.stated_task import stated_of
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Records, Task
from studies.natural.federations.catalog import FEDERATIONS
from studies.natural.federations.read import read_federation, schema_of

DEALT, SITES, EACH = ("mnist",), 20, 900
"""Data sets without sites of their own, dealt to so many of so many training records."""
INNER = 5
"""Stride of test records in the search, within each site."""


@dataclass(frozen=True, repr=False)
class Split:
    """Training and test records with their owners.

    Attributes:
        task: the task.
        train: of all sites.
        owners: site of each, from 0, shape ``(len(train),)``.
        test: of all sites.
        test_owners: likewise.
    """

    task: Task
    train: Records
    owners: npt.NDArray[np.int64]
    test: Records
    test_owners: npt.NDArray[np.int64]

    @property
    def sites(self) -> int:
        """Number of sites."""
        return int(self.owners.max()) + 1


def outer_split(name: str, data_dir: str) -> Split:
    """Return the reported split: every fifth record of each site tests.

    Raises:
        HDPFLError: as ``read_federation`` or ``load_dataset``.
    """
    if name in FEDERATIONS:
        data = dataset_of_owners(schema_of(name).task, read_federation(name).records)
    else:
        data = load_dataset(name, data_dir)
    if name in DEALT and data.test is not None:
        train = data.train.take(np.arange(SITES * EACH))
        owners = [np.arange(len(part)) % SITES for part in (train, data.test)]
        return Split(data.task, train, owners[0], data.test, owners[1])
    if data.owners is None or data.test is None or data.test_owners is None:
        raise DataError(f"data set '{name}' has no sites of its own")
    return Split(data.task, data.train, data.owners, data.test, data.test_owners)


def inner_split(outer: Split) -> Split:
    """Return the search split, from training records alone."""
    place = np.zeros(len(outer.owners), dtype=np.int64)
    for site in range(outer.sites):
        own = np.flatnonzero(outer.owners == site)
        place[own] = np.arange(len(own))
    tests = np.flatnonzero(place % INNER == INNER - 1)
    trains = np.flatnonzero(place % INNER != INNER - 1)
    return Split(
        outer.task,
        outer.train.take(trains),
        outer.owners[trains],
        outer.train.take(tests),
        outer.owners[tests],
    )


def write_split(split: Split, path: Path) -> dict[str, str | int]:
    """Write a split as a user data set; return its terms."""
    task = split.task

    def column(targets: Targets) -> Targets:
        # Survival: the last interval and the event, as in arrays without a schema.
        if not task.intervals:
            return targets
        whole = targets.astype(np.int64)
        return np.stack([whole // 2, whole % 2], axis=1)

    if not path.is_file():
        np.savez(
            path,
            x=split.train.features,
            y=column(split.train.targets),
            owner=split.owners,
            x_test=split.test.features,
            y_test=column(split.test.targets),
            owner_test=split.test_owners,
        )
    return {"dataset": f"file:{path.absolute()}", "task": stated_of(task)}
