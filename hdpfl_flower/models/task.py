"""Learning problem: record shape, model outputs and loss, all public."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import nn


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
            features = (features - mean) / std
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
            :func:`survival_targets`.
    """

    features: npt.NDArray[np.float32]
    targets: npt.NDArray[np.int64] | npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: npt.NDArray[np.int64]) -> Records:
        """Return the records at ``rows``, in that order."""
        return Records(self.features[rows], self.targets[rows])


def survival_targets(
    last: npt.NDArray[np.int64], events: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Return survival targets, one integer per record: 2 · interval + event.

    Args:
        last: the last interval in which each record was observed, from 0, shape ``(n,)``.
        events: whether the event occurred in it; if not, the record survived it and was censored.

    >>> survival_targets(np.array([0, 3]), np.array([True, False])).tolist()
    [1, 6]
    """
    return 2 * last + events
