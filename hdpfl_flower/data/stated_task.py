"""What is learned from records without a schema, as the run's terms state it.

Images and arrays carry no names or bounds; ``input-shape`` and ``classes``, ``intervals`` or
``task`` say what a record is. The terms may be a server's: nothing here opens a file or imports a
module, and the sizes are bounded.
"""

from __future__ import annotations

import math
import re

from hdpfl_flower.config.terms import AUTO, RunTerms
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task

MAX_NUMBERS = 2**20
"""Numbers of a record: the terms must not make a site allocate without end (3×512×512 fits)."""
MAX_OUTPUTS = 10_000
"""Classes, or intervals."""
_SHAPE = re.compile(r"\d{1,9}(,\d{1,9}){0,3}")


def is_own(dataset: str) -> bool:
    """Return whether ``dataset`` is a user's own: ``file:PATH.npz``, or ``module:function``.

    >>> is_own("file:x.npz"), is_own("my_data:load"), is_own("digits")
    (True, True, False)
    """
    return ":" in dataset


def states_task(terms: RunTerms) -> str:
    """Return the first key of ``terms`` that states what is learned; empty: none does."""
    given = {
        "input-shape": bool(terms.input_shape),
        "classes": bool(terms.classes),
        "intervals": bool(terms.intervals),
        "task": terms.task != AUTO,
    }
    return next((key for key, is_given in given.items() if is_given), "")


def stated_task(terms: RunTerms) -> Task:
    """Return the task that ``terms`` state.

    Raises:
        DataError: a key is missing or out of range, or two keys contradict each other.

    >>> stated_task(RunTerms().updated(input_shape="1, 28, 28", classes=10)).classes
    10
    """
    shape = _shape(terms.input_shape)
    kind = terms.task
    if kind == AUTO:
        kind = "survival" if terms.intervals else "classification"
        if not terms.intervals and not terms.classes:
            raise DataError(
                "'input-shape' alone does not say what is learned: set 'classes', 'intervals', or "
                "'task' to regression"
            )
    if kind != "classification" and terms.classes:
        raise DataError(f"'classes' is {terms.classes} and the 'task' {kind}; remove one of them")
    if kind != "survival" and terms.intervals:
        raise DataError(f"'intervals' is {terms.intervals} and the 'task' {kind}; remove one")
    if kind == "regression":
        return Task.regression(shape)
    if kind == "survival":
        _in_range("intervals", terms.intervals, 1)
        return Task.survival(shape, terms.intervals)
    _in_range("classes", terms.classes, 2)
    return Task.classification(shape, terms.classes)


def _shape(text: str) -> tuple[int, ...]:
    written = text.replace(" ", "")
    if not written:
        raise DataError("'input-shape' is empty; write a record's shape, such as 13 or 1,28,28")
    if not _SHAPE.fullmatch(written):
        raise DataError(
            "'input-shape' must be one to four whole numbers with commas between, such as 1,28,28"
        )
    shape = tuple(map(int, written.split(",")))
    if not 1 <= math.prod(shape) <= MAX_NUMBERS:
        raise DataError(
            f"'input-shape' holds {math.prod(shape):,} numbers a record; give 1 to {MAX_NUMBERS:,}"
        )
    return shape


def _in_range(key: str, value: int, least: int) -> None:
    if not least <= value <= MAX_OUTPUTS:
        raise DataError(f"'{key}' is {value}; give a number from {least} to {MAX_OUTPUTS:,}")
