"""Constant predictor: baseline of any model with features."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.models.task import Task


def constant_outputs(
    task: Task, targets: npt.NDArray[np.int64] | npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the best constant outputs for ``targets`` (n,), shape ``(task.outputs,)``.

    For classes the logarithms of their shares, one record added to each class so that none has
    the share 0 (Laplace's rule of succession); for survival the hazard of each interval, likewise;
    for a regression the mean.

    >>> [f"{x:.3f}" for x in constant_outputs(Task.classification((1,), 2), np.array([0, 0, 1]))]
    ['-0.405']
    """
    if task.classes:
        counts = np.bincount(targets.astype(np.int64), minlength=task.classes) + 1.0
        logits = np.log(counts / counts.sum())
        output = logits[1:] - logits[0] if task.loss == "logistic" else logits
    elif task.intervals:
        last, event = targets.astype(np.int64) // 2, targets % 2 == 1
        at_risk = np.bincount(last, minlength=task.intervals)[::-1].cumsum()[::-1]
        events = np.bincount(last[event], minlength=task.intervals)
        output = np.log(events + 1.0) - np.log(at_risk - events + 1.0)
    else:
        output = np.array([targets.mean(dtype=np.float64)])
    constants: npt.NDArray[np.float32] = output.astype(np.float32)
    return constants
