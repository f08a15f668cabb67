"""Records of a site by use: training, tests, several of a unit."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from hdpfl_flower.models.task import Records, Task


@dataclass(frozen=True, repr=False, eq=False)
class SiteRecords:
    """Records of a site.

    Attributes:
        train: n records that training may use.
        test: the profile's ``holdout`` share; None if it is 0.
        units: as ``train``, of several records each: features ``(n, most, *input_shape)``, targets
            ``(n, most, 2)`` with the weight of each; None where a unit has one.
        ids: name of the protected unit of each training record, all different; None without ids.
        test_ids: likewise of each test record.
    """

    train: Records
    test: Records | None = None
    units: Records | None = None
    ids: Sequence[bytes] | None = None
    test_ids: Sequence[bytes] | None = None

    def without(self, names: Container[bytes]) -> Self:
        """Return the records of all units but those of ``names``, in their order."""
        rows, test_rows = (
            np.array([row for row, name in enumerate(ids or ()) if name not in names], np.int64)
            for ids in (self.ids, self.test_ids)
        )
        return replace(
            self,
            train=self.train.take(rows),
            test=None if self.test is None else self.test.take(test_rows),
            units=None if self.units is None else self.units.take(rows),
            ids=[self.ids[row] for row in rows] if self.ids else self.ids,
            test_ids=[self.test_ids[row] for row in test_rows] if self.test_ids else self.test_ids,
        )

    def embedded(self, task: Task) -> Self:
        """Return the records as the model of ``task`` reads them.

        All features are embedded in one call, so that the outputs can be stored once.
        """
        if task.embedding is None and not task.scaling:
            return self
        units = None if self.units is None else self.units.features
        shape = self.train.features.shape[1:]
        first = self.train.features if units is None else units.reshape(-1, *shape)
        tests = first[:0] if self.test is None else self.test.features
        outputs = task.embed(np.concatenate([first, tests]))
        mine, rest = outputs[: len(first)], outputs[len(first) :]
        test = None if self.test is None else replace(self.test, features=rest)
        if self.units is None or units is None:
            return replace(self, train=replace(self.train, features=mine), test=test)
        several = mine.reshape(*units.shape[:2], *mine.shape[1:])
        return replace(
            self,
            # The first record of a unit is the one that all other work uses.
            train=replace(self.train, features=several[:, 0]),
            test=test,
            units=replace(self.units, features=several),
        )
