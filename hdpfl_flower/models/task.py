"""Learning problem, all public: record shape, outputs and loss; records of it, and of a site."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import nn


TYPICAL_LENGTH = 2.5
"""Length of the features of a record whose values all lie one typical deviation from their mean."""
MOST_DEVIATIONS = 4.0
"""Typical deviations from the mean beyond which a value is clipped."""

Loss = Literal["softmax", "logistic", "squared", "hazard"]


class Embedding(Protocol):
    """Public function from a record to a model's input; hashable."""

    @property
    def records(self) -> Task:
        """The task of the records themselves."""

    def __call__(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the model's inputs for n records, float32 ``(n, width)``."""


class Body(Protocol):
    """Network below the one that terms name, built with it; hashable."""

    @property
    def records(self) -> Task:
        """The task of the records themselves."""

    @property
    def size(self) -> int:
        """Numbers of a record that the upper network reads."""

    @property
    def has_code(self) -> bool:
        """Whether a user's function builds it."""

    def under(self, head: nn.Module) -> nn.Module:
        """Return the whole network; ``head`` is its attribute ``head``."""


@dataclass(frozen=True)
class Task:
    """Public shape of a learning problem.

    Attributes:
        input_shape: shape of the model's input for a record, e.g. ``(1, 28, 28)`` or ``(13,)``.
        outputs: numbers the model returns for a record: one a class, 1 for a binary or a
            regression task, one an interval for survival.
        loss: ``softmax`` (cross-entropy over ``outputs`` classes), ``logistic`` (binary
            cross-entropy of one logit), ``squared`` (half the squared error of one output) or
            ``hazard`` (binary cross-entropy of the hazard's logit in each interval at risk).
        scaling: public mean and deviation of each channel, the first axis; empty: none.
        reach: largest absolute value of a scaled number; infinite: any.
        embedding: from a record to the model's input; None: the record itself.
        body: network below the named one, with numbers that are trained; None: none.
        class_weights: public factors of the classes' losses in training; empty: none. Measures
            count every record alike.
    """

    input_shape: tuple[int, ...]
    outputs: int
    loss: Loss
    scaling: tuple[tuple[float, float], ...] = ()
    embedding: Embedding | None = None
    body: Body | None = None
    class_weights: tuple[float, ...] = ()
    reach: float = math.inf

    @property
    def of_records(self) -> Task:
        """The task of the records, before any embedding or weight."""
        below = self.embedding or self.body
        return below.records if below else replace(self, class_weights=())

    def embed(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the model's inputs for n records, float32 ``(n, *input_shape)``."""
        if self.scaling:
            across = (len(self.scaling), *[1] * (features.ndim - 2))
            mean, std = (
                np.array(numbers, np.float32).reshape(across)
                for numbers in zip(*self.scaling, strict=True)
            )
            features = np.clip((features - mean) / std, -self.reach, self.reach)
        return self.embedding(features) if self.embedding else features

    @property
    def classes(self) -> int:
        """Number of classes; 0 for regression and survival."""
        return {"softmax": self.outputs, "logistic": 2}.get(self.loss, 0)

    @property
    def intervals(self) -> int:
        """Number of survival intervals; 0 for other tasks."""
        return self.outputs if self.loss == "hazard" else 0

    @property
    def target_values(self) -> int:
        """Number of values of an integer target; 0 for regression."""
        return self.classes or 2 * self.intervals

    @staticmethod
    def classification(input_shape: tuple[int, ...], classes: int) -> Task:
        """Return a classification task: one logit for two classes, else C."""
        if classes == 2:
            return Task(input_shape, 1, "logistic")
        return Task(input_shape, classes, "softmax")

    @staticmethod
    def regression(input_shape: tuple[int, ...]) -> Task:
        """Return the task of predicting one number."""
        return Task(input_shape, 1, "squared")

    @staticmethod
    def survival(input_shape: tuple[int, ...], intervals: int) -> Task:
        """Return the task of predicting an event's hazard in each interval.

        The hazard of an interval is the probability of the event in it if none occurred before; its
        logit is an output of the model (Singer and Willett, J. Educ. Stat. 1993; Gensheimer and
        Narasimhan, PeerJ 2019).
        """
        return Task(input_shape, intervals, "hazard")


@dataclass(frozen=True, repr=False)
class Records:
    """Records in memory, one per row; their text shows no content.

    Attributes:
        features: float32, shape ``(n, *input_shape)``.
        targets: shape ``(n,)``; int64 classes, float32 for regression, or for survival int64 by
            ``array_targets.survival_targets``.
        missing: uint8, shape ``(n, columns)``: 1 where a table's cell had no value and was filled;
            None for records of no table.
    """

    features: npt.NDArray[np.float32]
    targets: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    missing: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: npt.NDArray[np.int64]) -> Records:
        """Return the records at ``rows``, in that order."""
        missing = None if self.missing is None else self.missing[rows]
        return Records(self.features[rows], self.targets[rows], missing)


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
