"""Penalised linear model of a site alone, without any federation.

Logistic regression (ridge for numbers), solved to the optimum, so that no rate or number of epochs
must be found for it. C = 1 is kept unless cross-validation finds another strength better by more
than two standard errors of the difference: a choice on few records then jumps from fold to fold no
more than its gain is certain.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hdpfl_flower.models.constant import constant_outputs
from hdpfl_flower.models.evaluation import measures
from hdpfl_flower.models.task import Records, Task

STRENGTHS = (1.0, 0.01, 0.1, 10.0, 100.0)
"""Candidate C, the usual one first."""
SURE = 2.0
MOST_CELLS = 20_000_000
"""Features of all records above which no linear model is fitted: it would take minutes."""
_MOST_STEPS = 2000
Floats = npt.NDArray[np.float64]
Predict = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


def has_linear(task: Task, records: Records) -> bool:
    """Return whether a linear model is fitted beside the run's network."""
    return not task.intervals and records.features.size <= MOST_CELLS


def fit_linear(task: Task, records: Records, strength: float) -> Predict:
    """Return the predictor of the model with C = ``strength``, fitted to ``records``."""
    from sklearn.linear_model import LogisticRegression, Ridge

    x = _flat(records.features)
    if not task.classes:
        ridge = Ridge(alpha=1 / strength).fit(x, records.targets.astype(np.float64))
        return lambda features: ridge.predict(_flat(features))[:, None].astype(np.float32)
    present = np.unique(records.targets)
    rest = constant_outputs(task, records.targets)
    if len(present) < 2:
        return lambda features: np.tile(rest, (len(features), 1))
    weights = dict(enumerate(task.class_weights)) or None
    model = LogisticRegression(C=strength, max_iter=_MOST_STEPS, class_weight=weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a solver that stops near the optimum
        model.fit(x, records.targets)

    def predict(features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float64] = model.decision_function(_flat(features))
        if found.ndim == 1:
            if task.outputs == 1:
                return np.asarray(found[:, None], np.float32)
            found = np.stack([-found / 2, found / 2], axis=1)
        # A class without a record here keeps the constant's share.
        logits = np.tile(rest.astype(np.float64), (len(found), 1))
        found = found - np.logaddexp.reduce(found, axis=1, keepdims=True)
        logits[:, present] = found + np.logaddexp.reduce(rest[present])
        return logits.astype(np.float32)

    return predict


def linear_losses(
    task: Task,
    records: Records,
    folds: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    tick: Callable[[], None],
) -> tuple[float, Floats]:
    """Return the chosen C, and its loss in each of the ``folds`` (rows to fit, rows to test)."""
    losses = np.empty((len(STRENGTHS), len(folds)))
    for row, strength in enumerate(STRENGTHS):
        for column, (inner, test) in enumerate(folds):
            tested = records.take(test)
            outputs = fit_linear(task, records.take(inner), strength)(tested.features)
            losses[row, column] = measures(task, outputs, tested.targets)["loss"]
            tick()
    best = better_than_first(losses, np.array([len(test) for _, test in folds], np.float64))
    return STRENGTHS[best], losses[best]


def better_than_first(losses: Floats, sizes: Floats) -> int:
    """Return the candidate that surely beats the first one; else 0.

    Args:
        losses: of each candidate in each fold, shape ``(k, folds)``.
        sizes: records of each fold.

    Returns:
        That of the least mean loss, if the first one's is ``SURE`` standard errors above it.

    >>> better_than_first(np.array([[1.0, 1.1, 1.2], [0.9, 1.2, 1.0]]), np.ones(3))
    0
    >>> better_than_first(np.array([[1.0, 1.1, 1.2], [0.8, 0.9, 1.05]]), np.ones(3))
    1
    """
    shares = sizes / sizes.sum()
    means = np.where(np.isfinite(losses), losses, np.inf) @ shares
    best = int(np.argmin(means))
    if not np.isfinite(means[0]):
        return best
    if best == 0 or len(sizes) < 2:
        return 0
    gains = losses[0] - losses[best]
    error = np.sqrt(shares @ (gains - shares @ gains) ** 2 / (len(sizes) - 1))
    return best if shares @ gains > SURE * error else 0


def _flat(features: npt.NDArray[np.float32]) -> Floats:
    found: Floats = features.reshape(len(features), -1).astype(np.float64)
    return found
