"""Task of records without a schema, as stated in the terms.

Images and arrays carry no names or bounds: the term ``task`` describes a record. The terms may be a
server's: no file is opened here, no module imported, and ``config/tasks.py`` bounds the sizes.
"""

from __future__ import annotations

from dataclasses import replace

from hdpfl_flower.config.tasks import Classification, StatedTask, Survival
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task


def is_own(dataset: str) -> bool:
    """Return whether ``dataset`` names a user's file or function.

    That is ``file:PATH.npz`` or ``module:function``.

    >>> is_own("file:x.npz"), is_own("my_data:load"), is_own("digits")
    (True, True, False)
    """
    return ":" in dataset


def task_of_stated(stated: StatedTask) -> Task:
    """Return the task of a value of ``task``.

    Raises:
        DataError: one of its settings is missing.

    >>> task_of_stated(Classification(shape="1,28,28", classes=10)).classes
    10
    """
    if missing := stated.open_settings:
        raise DataError(
            f"{stated.words} lacks {' and '.join(f'{stated.key}.{key}' for key in missing)}; "
            "write it in [task]"
        )
    shape = tuple(map(int, stated.shape.split(",")))
    try:
        scaling = stated.scaling
    except ValueError as error:
        raise DataError(f"{stated.words}: {error}") from None
    if isinstance(stated, Classification):
        task = Task.classification(shape, stated.classes)
    elif isinstance(stated, Survival):
        task = Task.survival(shape, stated.intervals)
    else:
        task = Task.regression(shape)
    return replace(task, scaling=scaling)
