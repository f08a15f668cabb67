"""A federation's records as the leaderboard uses them: for the reported runs, and for the search.

Rates are searched on the training records alone: every fifth of each site's tests them there, and
no record of the reported test is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.array_targets import Targets
from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Records, Task

INNER = 5
"""In the search every fifth record of each site tests."""


@dataclass(frozen=True, repr=False)
class Split:
    """Records that train and records that test, and whose they are.

    Attributes:
        task: what is learned.
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
    """Return the split that is reported; raises ``HDPFLError`` as ``load_dataset`` does."""
    data = load_dataset(name, data_dir)
    if data.owners is None or data.test is None or data.test_owners is None:
        raise DataError(f"data set '{name}' has no sites of its own")
    return Split(data.task, data.train, data.owners, data.test, data.test_owners)


def inner_split(outer: Split) -> Split:
    """Return the split that rates are searched on: of the training records alone."""
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
    """Write a split as a data set of one's own; return the terms that name it."""
    task = split.task

    def column(targets: Targets) -> Targets:
        # Survival: the last interval and the event, as arrays without a schema have them.
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
    kind = "classification" if task.classes else "survival" if task.intervals else "regression"
    number = {"classification": "classes", "survival": "intervals"}.get(kind)
    return {
        "dataset": f"file:{path.absolute()}",
        "task": kind,
        "input-shape": ",".join(map(str, task.input_shape)),
        **({number: task.classes or task.intervals} if number else {}),
    }
