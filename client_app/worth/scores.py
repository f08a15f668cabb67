"""Scores of a model's outputs, record by record, and the measures that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, softmax

from hdpfl_flower.errors import DataError
from hdpfl_flower.measures.bootstrap import Floats
from hdpfl_flower.measures.concordance import Concordance, risk_of
from hdpfl_flower.measures.ranks import auroc
from hdpfl_flower.models.site_summary import is_error
from hdpfl_flower.models.task import Records, Task

OF_ORDER = frozenset({"auroc", "concordance"})
"""Measures of the order of records, without a score of each."""


@dataclass(frozen=True, repr=False)
class Scored:
    """Outputs of one model, scored on records.

    Attributes:
        by_record: measure → score of each record, float64, shape ``(n,)``; its mean is the measure.
        concordance: of survival, as a function of weights ``(c, n)``; else None.
        ranks: what AUROC orders the records by, shape ``(n,)``; None where there are not two
            classes.
        targets: of the records.
    """

    by_record: Mapping[str, Floats]
    ranks: Floats | None
    targets: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    concordance: Callable[[Floats], Floats] | None = None

    @property
    def names(self) -> list[str]:
        """Names of :meth:`measures`, in the order of tables."""
        ranked = ["auroc"] if self.ranks is not None else []
        ranked += ["concordance"] if self.concordance is not None else []
        return [*self.by_record, *ranked, *(["r2"] if "mse" in self.by_record else [])]

    def measures(self, weights: Floats) -> dict[str, Floats]:
        """Return every measure on weighted records, NaN where it has no meaning.

        Args:
            weights: how often each record counts, shape ``(c, n)``.

        Returns:
            measure → shape ``(c,)``: the means, then ``auroc`` of two classes, or ``r2`` of a
            regression.
        """
        total = weights.sum(1)
        found = {name: weights @ score / total for name, score in self.by_record.items()}
        if self.ranks is not None:
            found["auroc"] = auroc(self.ranks, self.targets == 1, weights)
        if self.concordance is not None:
            found["concordance"] = self.concordance(weights)
        if "mse" in found:
            wanted = self.targets.astype(np.float64)
            wanted = wanted - wanted.mean()  # sums of squares of small numbers lose no digits
            spread = weights @ wanted**2 / total - (weights @ wanted / total) ** 2
            with np.errstate(divide="ignore", invalid="ignore"):
                found["r2"] = np.where(spread > 1e-12, 1 - found["mse"] / spread, np.nan)
        return found


def scored(task: Task, outputs: npt.NDArray[np.float32], records: Records, name: str) -> Scored:
    """Return the scores of ``outputs``, shape ``(n, task.outputs)``, on ``records``.

    Classes have ``accuracy`` (1 or 0; a logit above 0, or the first largest one, decides),
    ``log-loss`` (nats) and ``brier`` (of two classes that of one probability, else the sum over the
    classes), a regression ``mse`` and ``mae``, in units of the target, and survival ``log-loss``
    and the concordance.

    Args:
        task: names the loss.
        outputs: of the model.
        records: with their targets.
        name: of the model, for the error.

    Raises:
        DataError: an output is not finite.
    """
    numbers, targets = outputs.astype(np.float64), records.targets
    if not np.isfinite(numbers).all():
        raise DataError(f"the {name} predicts what is not finite; it cannot be compared")
    if task.intervals:
        import torch

        from hdpfl_flower.models.losses import record_losses

        losses = record_losses(task, torch.from_numpy(numbers), torch.from_numpy(targets))
        ordered = Concordance(risk_of(numbers), targets.astype(np.int64))
        return Scored(
            {"log-loss": losses.numpy()}, None, targets, lambda weights: ordered(weights).ravel()
        )
    if not task.classes:
        errors = numbers[:, 0] - targets
        return Scored({"mse": errors**2, "mae": np.abs(errors)}, None, targets)
    if task.loss == "logistic":
        # One logit z is the pair (0, z), and 0 is no class 1.
        numbers = np.hstack([np.zeros_like(numbers), numbers])
    of_target = np.take_along_axis(numbers, targets.astype(np.int64)[:, None], 1)[:, 0]
    shares = softmax(numbers, axis=1)
    errors = (shares - np.eye(task.classes)[targets.astype(np.int64)]) ** 2
    scores = {
        "accuracy": (numbers.argmax(1) == targets).astype(np.float64),
        "log-loss": logsumexp(numbers, axis=1) - of_target,
        "brier": errors[:, 1] if task.classes == 2 else errors.sum(1),
    }
    ranks = numbers[:, 1] - numbers[:, 0] if task.classes == 2 else None
    return Scored(scores, ranks, targets)


def deciding_measures(task: Task) -> Sequence[str]:
    """Return the possible deciding measures, the usual one first."""
    if task.intervals:
        return ("log-loss", "concordance")
    ranked = ("auroc",) if task.classes == 2 else ()
    return ("log-loss", *ranked, "brier", "accuracy") if task.classes else ("mse", "mae")


def sign_of(measure: str) -> float:
    """Return 1 if more is better, -1 for losses and errors."""
    return -1.0 if is_error(measure) else 1.0


def gain(measure: str, one: Scored, other: Scored) -> Floats:
    """Return the gain of ``one`` over ``other`` per record, ``(n,)``.

    Raises:
        KeyError: the measure orders records, and is no mean of them (:data:`OF_ORDER`).
    """
    return sign_of(measure) * (one.by_record[measure] - other.by_record[measure])
