"""Arrays of a user data set, from ``.npz`` or a user function.

Runs only in the process that starts a simulation (``dataset.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.system.own_code import load_own
from hdpfl_tools.simulation.datasets import Dataset

KNOWN = ("x", "y", "x_test", "y_test", "owner", "owner_test")
"""Arrays of an ``.npz`` file; the first two are required."""
RETURNS = (
    "a torch Dataset of (features, target), a pair of them (train, test), Records, or a Dataset of "
    "hdpfl_tools.simulation.datasets"
)


@dataclass(frozen=True, repr=False)
class OwnArrays:
    """Unchecked arrays of a user data set.

    Attributes:
        x: features, a row a record.
        y: targets.
        x_test: features of the test set; None without one.
        y_test: targets of the test set; None without one.
        owner: natural owner of each record, of any type; None where there is none.
        owner_test: natural owner of each test record; None likewise.
        task: the task, if a user's function states it; else None.
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    x_test: npt.NDArray[Any] | None = None
    y_test: npt.NDArray[Any] | None = None
    owner: npt.NDArray[Any] | None = None
    owner_test: npt.NDArray[Any] | None = None
    task: Task | None = None


def read_file(path: Path) -> OwnArrays:
    """Return the arrays in the ``.npz`` file at ``path``.

    Raises:
        DataError: it is not there or damaged, or lacks an array.
    """
    try:
        # A pickle can run its author's code.
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in KNOWN if name in file.files}
            names = sorted(file.files)
    except Exception as error:  # a damaged archive fails in many ways
        words = "holds Python objects" if "Object arrays" in str(error) else "is not a .npz file"
        raise DataError(
            f"'dataset': {path} {words}; write it with numpy.savez(path, x=…, y=…), numbers only"
        ) from None
    missing = [name for name in KNOWN[:2] if name not in arrays]
    if missing:
        raise DataError(
            f"'dataset': {path} has no array '{missing[0]}'; it holds {', '.join(names) or 'none'}"
        )
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(
            f"'dataset': {path} has only one of 'x_test' and 'y_test'; write both, or none"
        )
    return OwnArrays(**arrays)


def call_function(name: str) -> OwnArrays:
    """Return the result of the function ``module:function``, read once.

    Raises:
        DataError: the module or the function is not there, or it returns something else. Where the
            user's own code raised, that exception is the cause.
    """
    function = load_own(name, "dataset", DataError, "function")
    try:
        return _read(function(), name)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"'dataset' '{name}' raised {type(error).__name__}; call it without hdpfl to correct it"
        ) from error


def _read(returned: object, name: str) -> OwnArrays:
    if isinstance(returned, Dataset):
        return _of_ours(returned)
    train, test = (
        returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    )
    x, y = _pair(train, name)
    if test is None:
        return OwnArrays(x, y)
    return OwnArrays(x, y, *_pair(test, name))


def _of_ours(data: Dataset) -> OwnArrays:
    """Return the arrays of a ``Dataset`` instance with a stated task."""
    x_test, y_test = (None, None) if data.test is None else _arrays_of(data.test, data.task)
    x, y = _arrays_of(data.train, data.task)
    return OwnArrays(x, y, x_test, y_test, data.owners, data.test_owners, data.task)


def _arrays_of(records: Records, task: Task) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    targets: npt.NDArray[Any] = records.targets
    if task.intervals:
        targets = np.stack([targets // 2, targets % 2], axis=1)
    return records.features, targets


def _pair(data: Any, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the features and targets of ``data``, each record read once."""
    if isinstance(data, Records):
        return data.features, data.targets
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__") or isinstance(data, str):
        raise DataError(
            f"'dataset' '{name}' returned {type(data).__name__}; it must return {RETURNS}"
        )
    if not len(data):
        raise DataError(f"'dataset' '{name}' returned a data set without records")
    features, targets = [], []
    for row in range(len(data)):
        record = data[row]
        if not isinstance(record, (tuple, list)) or len(record) != 2:
            raise DataError(
                f"'dataset' '{name}': a record must be the pair (features, target), but record "
                f"{row} is a {type(record).__name__}"
            )
        features.append(np.asarray(record[0]))
        targets.append(np.asarray(record[1]))
    shapes = {feature.shape for feature in features}
    if len(shapes) > 1:
        raise DataError(
            f"'dataset' '{name}': records have {len(shapes)} different shapes; give all records "
            "one shape"
        )
    return np.stack(features), np.stack(targets)
