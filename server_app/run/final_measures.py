"""Final measures on the public test set, with intervals."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.errors import DataError
from hdpfl_flower.measures.clinical import (
    SPECIFICITY,
    WORDS,
    How,
    Statistic,
    measure,
    measures_of,
    with_intervals,
)
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.scenarios.groups import Groups, seen_by

EVENT = "measures"
"""The journal's event, and the key of ``result.json``."""
_HOW = How(draws=300)
"""Resamples of the test records, for 95 % intervals."""
PUBLIC = "public test set"


def final_measures(
    spec: str,
    task: Task,
    models: Sequence[Arrays],
    of_site: Mapping[str, int],
    test: Records,
    groups: Groups | None,
) -> dict[str, Any]:
    """Return the final facts: each model's measures with 95 % intervals.

    Of several models, and of groups that see the test set differently, the mean over the sites; its
    interval resamples the test records for all of them at once.

    Args:
        spec: of the models.
        task: of the models.
        models: one or more.
        of_site: site → its model; one that is not there uses the first.
        test: the records, as the data set has them.
        groups: the run's, or None.

    Raises:
        ModelError: a model cannot be built.
    """
    from hdpfl_flower.models.evaluation import predict  # torch, of which reports need nothing

    try:
        used = _used(models, of_site, groups)
        scored = []
        for (model, group), sites in used.items():
            seen = seen_by(test, groups, group, task)
            outputs = predict(spec, task, models[model], seen.features)
            scored.append((outputs, seen.targets, sites))
        if len(scored) == 1:
            outputs, targets, _ = scored[0]
            return {"on": PUBLIC, **measure(task, outputs, targets, how=_HOW).facts()}
        statistics = [measures_of(task, outputs, targets) for outputs, targets, _ in scored]
        numbers = [number for _, _, number in scored]
        mean = Statistic.mean(statistics, [number / sum(numbers) for number in numbers])
        specificity = {"specificity": SPECIFICITY} if task.classes else {}
        measured = with_intervals(mean, np.arange(len(test)), _HOW)
        return {"on": PUBLIC, **measured.facts(), **specificity}
    except DataError as reason:
        return {"on": PUBLIC, "records": len(test), "measures": {}, "missing": {"all": str(reason)}}


def _used(
    models: Sequence[Arrays], of_site: Mapping[str, int], groups: Groups | None
) -> Counter[tuple[int, int]]:
    """Return (model, group) → number of sites."""
    if groups is None:
        return Counter((model, 0) for model in (of_site.values() if len(models) > 1 else [0]))
    ends = [0, *accumulate(groups.sizes)]
    return Counter(
        (of_site.get(str(site), 0), group)
        for group, (start, end) in enumerate(pairwise(ends))
        for site in range(start, end)
    )


def folder_name(strategy: str, seed: int) -> str:
    """Return the name of a compared run, and of its folder."""
    return f"{re.sub('[+:]', '.', strategy)}-seed{seed}"


def read_final_measures(folder: Path, event: str = EVENT) -> dict[str, Any]:
    """Return the final measures in a folder's ``result.json``, or empty.

    Args:
        folder: the run's.
        event: which of them: on the public test set, or ``federated_measures.FEDERATED``.
    """
    path = folder / "result.json"
    facts = json.loads(path.read_text()).get(event) if path.is_file() else None
    return facts if isinstance(facts, dict) else {}


def measure_words(name: str, specificity: float = SPECIFICITY) -> str:
    """Return the words of a final measure.

    >>> measure_words("auroc"), measure_words("sensitivity")
    ('AUROC', 'sensitivity at 90 % specificity')
    """
    threshold = f" at {100 * specificity:g} % specificity" if name == "sensitivity" else ""
    return f"{WORDS.get(name, name)}{threshold}"


def measure_rows(facts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return a row per measure: name, value and interval."""
    rows = []
    for name, estimate in facts.get("measures", {}).items():
        words = measure_words(name, facts.get("specificity", SPECIFICITY))
        ends = ["?" if estimate[end] is None else f"{estimate[end]:.3f}" for end in ("low", "high")]
        rows.append((words, f"{estimate['value']:.3f}", f"{ends[0]} to {ends[1]}"))
    for name, why in facts.get("missing", {}).items():
        rows.append((WORDS.get(name, name), "–", str(why)))
    return rows
