"""How good the sites' personal models are, a row a privacy level: simulations alone can tell.

A site's personal accuracy is that on the server's public test set, each class weighted by its share
of the site's own records: what the site would see on new records like its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.evaluation import predict
from hdpfl_flower.files import replace_file
from hdpfl_flower.models import Arrays, unflatten
from hdpfl_flower.task import Records, Task

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SiteModels:
    """What is known of one simulated site.

    Attributes:
        epsilon: its ε; ``inf`` opted out.
        shares: the share of each class among its records, shape ``(classes,)``, sums to 1.
        personal: its personal model's parameters, shape ``(d,)``; None before its first round.
        group: which of the test sets is like its own records.
    """

    epsilon: float
    shares: npt.NDArray[np.float64]
    personal: Vector | None
    group: int = 0


def class_shares(records: Records, classes: int) -> npt.NDArray[np.float64]:
    """Return the share of each class, shape ``(classes,)``.

    >>> records = Records(np.zeros((4, 1), np.float32), np.array([0, 0, 0, 2]))
    >>> class_shares(records, 3)
    array([0.75, 0.  , 0.25])
    """
    counts = np.bincount(records.targets.astype(np.int64), minlength=classes)
    shares: npt.NDArray[np.float64] = counts / counts.sum()
    return shares


def class_accuracies(
    spec: str, task: Task, arrays: Arrays, test: Records, classes: Iterable[int]
) -> npt.NDArray[np.float64]:
    """Return the accuracy on the test records of each of ``classes``; NaN elsewhere."""
    found = np.full(task.classes, np.nan)
    for label in classes:
        rows = np.flatnonzero(test.targets == label)
        outputs = predict(spec, task, arrays, test.features[rows])
        chosen = outputs.argmax(1) if task.loss == "softmax" else outputs[:, 0] > 0
        found[label] = float(np.mean(chosen == label))
    return found


def personal_table(
    spec: str, task: Task, model: Arrays, tests: Sequence[Records], sites: Iterable[SiteModels]
) -> list[dict[str, Any]]:
    """Return a row a level (private, opted out) and model: mean and variance over its sites.

    Each site is tested on the one of ``tests`` that its ``group`` names. The models are ``global``,
    ``personal`` (of the sites that took part at least once) and ``constant``, which always says its
    site's most frequent class. A site with one class is solved by the constant; a run with
    ``personal-lambda = "0"`` gives the row of local training alone.
    """
    everywhere = [class_accuracies(spec, task, model, test, range(task.classes)) for test in tests]
    found: dict[tuple[str, str], list[float]] = {}
    for site in sites:
        level = "opted out" if math.isinf(site.epsilon) else "private"
        own = np.flatnonzero(site.shares)
        values = {"global": float(everywhere[site.group][own] @ site.shares[own])}
        values["constant"] = float(site.shares.max())
        if site.personal is not None:
            arrays = unflatten(site.personal, model)
            personal = class_accuracies(spec, task, arrays, tests[site.group], own.tolist())
            values["personal"] = float(personal[own] @ site.shares[own])
        for name, value in values.items():
            found.setdefault((level, name), []).append(value)
    return list(_rows(found))


def write_personal_table(rows: list[dict[str, Any]], folder: Path) -> None:
    """Write the table as ``personal.json`` in a run's folder."""
    text = json.dumps(rows, indent=1) + "\n"
    replace_file(folder / "personal.json", text.encode(), mode=0o644)


def _rows(found: dict[tuple[str, str], list[float]]) -> Iterator[dict[str, Any]]:
    for (level, name), values in sorted(found.items()):
        yield {
            "level": level,
            "model": name,
            "sites": len(values),
            "accuracy": float(np.mean(values)),
            "variance": float(np.var(values)),
        }
