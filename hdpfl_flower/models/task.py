"""What is learned: the shape of a record, the outputs of the model and the loss. All public."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Loss = Literal["softmax", "logistic", "squared"]


@dataclass(frozen=True)
class Task:
    """The public shape of a learning problem.

    Attributes:
        input_shape: shape of one record's features, e.g. ``(1, 28, 28)`` or ``(13,)``.
        outputs: numbers the model returns for a record: one a class, 1 for a binary or a
            regression task.
        loss: ``softmax`` (cross-entropy over ``outputs`` classes), ``logistic`` (binary
            cross-entropy of one logit) or ``squared`` (half the squared error of one output).
    """

    input_shape: tuple[int, ...]
    outputs: int
    loss: Loss

    @property
    def classes(self) -> int:
        """Number of classes; 0 for regression."""
        return {"softmax": self.outputs, "logistic": 2, "squared": 0}[self.loss]

    @staticmethod
    def classification(input_shape: tuple[int, ...], classes: int) -> Task:
        """Return the task of telling ``classes`` apart: one logit for two, else one a class."""
        if classes == 2:
            return Task(input_shape, 1, "logistic")
        return Task(input_shape, classes, "softmax")

    @staticmethod
    def regression(input_shape: tuple[int, ...]) -> Task:
        """Return the task of predicting one number."""
        return Task(input_shape, 1, "squared")


@dataclass(frozen=True, repr=False)
class Records:
    """Records in memory, a row each; their text shows none of them.

    Attributes:
        features: float32, shape ``(n, *input_shape)``.
        targets: shape ``(n,)``; int64 classes, or float32 for regression.
    """

    features: npt.NDArray[np.float32]
    targets: npt.NDArray[np.int64] | npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: npt.NDArray[np.int64]) -> Records:
        """Return the records at ``rows``, in that order."""
        return Records(self.features[rows], self.targets[rows])
