"""Task of a run's model by its terms, without a file or an import."""

from __future__ import annotations

import math
from dataclasses import replace

from hdpfl_flower.config.tasks import class_weights, scales_in
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.stated_task import is_own, task_of_stated
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import MOST_DEVIATIONS, TYPICAL_LENGTH, Task

IMAGE_TASKS = {
    "mnist": Task.classification((1, 28, 28), 10),
    "fashion-mnist": Task.classification((1, 28, 28), 10),
    "emnist": Task.classification((1, 28, 28), 47),
    "cifar10": Task.classification((3, 32, 32), 10),
    "cifar100": Task.classification((3, 32, 32), 100),
}
"""Public shapes of the named sets of images."""
NAMES = ("digits", *IMAGE_TASKS, "heart")
"""Names of all data sets."""


def task_of(name: str) -> Task:
    """Return the public shape of a named data set without reading it.

    Raises:
        DataError: no data set has this name.

    >>> task_of("cifar100").input_shape, task_of("heart").loss
    ((3, 32, 32), 'logistic')
    """
    if name in IMAGE_TASKS:
        return IMAGE_TASKS[name]
    if name == "digits":
        return Task.classification((1, 8, 8), 10)
    if name == "heart":
        from hdpfl_flower.data.schema import Schema

        return Schema.load(name).task
    raise DataError(
        f"'dataset' is '{name}'; choose {', '.join(NAMES)}, or site; in simulations your own, as "
        "file:PATH.npz or module:function"
    )


def task_for(terms: RunTerms) -> Task:
    """Return the task of a run's model: that of its records, read by the ``backbone`` if any.

    Raises:
        DataError: as :func:`_records_task`, or ``class-weights`` are not as many as its classes,
            or ``scales`` not as many as its number columns.
    """
    task, weights = _records_task(terms), class_weights(terms.class_weights)
    if weights and len(weights) != task.classes:
        raise DataError(
            f"run config: 'class-weights' holds {len(weights)} numbers, and the task has "
            f"{task.classes} classes; give one a class, or leave it out"
        )
    if terms.backbone:
        from hdpfl_flower.models.backbones import over

        task = over(terms.backbone, task)
    if terms.scales:
        task = _scaled(task, schema_of(terms), scales_in(terms.scales))
    return replace(task, class_weights=weights)


def schema_of(terms: RunTerms) -> str:
    """Return the schema of the records of terms, text or name; empty for records without one."""
    return terms.schema_text or ("heart" if terms.dataset == "heart" else "")


def _scaled(task: Task, schema: str, scales: list[tuple[float, float]]) -> Task:
    """Return the task with number columns scaled, as ``Schema.gain`` scales those of a schema.

    Raises:
        DataError: there is not one scale a number column.
    """
    from hdpfl_flower.data.record_moments import layout_of

    places = [number.place for number in layout_of(schema, task).numbers]
    if len(places) != len(scales) or task.scaling or len(task.input_shape) != 1:
        raise DataError("'scales' are not one a number column without 'typical'; leave them out")
    gain = TYPICAL_LENGTH / math.sqrt(task.input_shape[0])
    scaling = [(0.0, 1.0)] * task.input_shape[0]
    for place, (mean, deviation) in zip(places, scales, strict=True):
        scaling[place] = mean, deviation / gain
    return replace(task, scaling=tuple(scaling), reach=max(1.0, MOST_DEVIATIONS * gain))


def _records_task(terms: RunTerms) -> Task:
    """Return the task of a named data set or public schema.

    For records without a schema the terms state it (``task``). No file is opened and no
    module imported: the terms may be a server's.

    Raises:
        DataError: no data set of that name, the schema is wrong, or the terms do not state all.
    """
    if terms.task:
        if terms.dataset != "site" and not is_own(terms.dataset):
            raise DataError(
                f"'task' is of records without a schema, and 'dataset' is '{terms.dataset}', "
                "which has its own; remove it, or set 'dataset' to site"
            )
        if terms.schema_text:
            raise DataError("'schema' and 'task' both say what a record is; remove one")
        return task_of_stated(terms.task)
    if is_own(terms.dataset):
        raise DataError(f"'dataset' is '{terms.dataset}' and 'task' is empty; say what a record is")
    if terms.dataset != "site":
        return task_of(terms.dataset)
    from hdpfl_flower.data.schema import Schema

    if not terms.schema_text:
        raise DataError(
            "'dataset' is 'site' and the terms do not say what a record is: give 'schema' for "
            "tables, or 'task' for images and npz"
        )
    return Schema.load(terms.schema_text).task
