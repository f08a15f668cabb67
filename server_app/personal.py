"""How good the sites' personal models are, a row a privacy level: simulations alone can tell.

A site's personal accuracy is that on the server's public test set, each class weighted by its share
of the site's own records: what the site would see on new records like its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
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

PERSONAL, PERSONAL_MINORITY = "personal-accuracy", "personal-accuracy-minority"
"""Metrics of the last round of a run with personal models."""


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


SiteAccuracies = tuple[SiteModels, Mapping[str, float]]
"""A site and the accuracy of each model for it, see :func:`site_accuracies`."""


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


def site_accuracies(
    spec: str, task: Task, model: Arrays, tests: Sequence[Records], sites: Iterable[SiteModels]
) -> Iterator[SiteAccuracies]:
    """Yield each site with the accuracy of each model on the one of ``tests`` for its ``group``.

    The models are ``global``, ``personal`` (of the sites that took part at least once) and
    ``constant``, which always says its site's most frequent class. A site with one class is solved
    by the constant.
    """
    everywhere = [class_accuracies(spec, task, model, test, range(task.classes)) for test in tests]
    for site in sites:
        own = np.flatnonzero(site.shares)
        values = {"global": float(everywhere[site.group][own] @ site.shares[own])}
        values["constant"] = float(site.shares.max())
        if site.personal is not None:
            arrays = unflatten(site.personal, model)
            personal = class_accuracies(spec, task, arrays, tests[site.group], own.tolist())
            values["personal"] = float(personal[own] @ site.shares[own])
        yield site, values


def personal_table(found: Iterable[SiteAccuracies]) -> list[dict[str, Any]]:
    """Return a row a level (private, opted out) and model: mean and variance over its sites.

    A run with ``personal-lambda = "0"`` gives the row of local training alone.
    """
    values: dict[tuple[str, str], list[float]] = {}
    for site, accuracies in found:
        level = "opted out" if math.isinf(site.epsilon) else "private"
        for name, value in accuracies.items():
            values.setdefault((level, name), []).append(value)
    return list(_rows(values))


def personal_metrics(
    found: Iterable[SiteAccuracies], minority: Container[int] = ()
) -> dict[str, float]:
    """Return the mean personal accuracy of all sites, and of those of the smallest groups.

    Args:
        found: :func:`site_accuracies`.
        minority: the smallest groups.
    """
    personal = [(s.group in minority, v["personal"]) for s, v in found if "personal" in v]
    small = [value for is_small, value in personal if is_small]
    means = {PERSONAL: [value for _, value in personal], PERSONAL_MINORITY: small}
    return {name: float(np.mean(values)) for name, values in means.items() if values}


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
