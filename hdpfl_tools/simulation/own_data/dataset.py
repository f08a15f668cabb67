"""User data set in a simulation: ``file:PATH.npz`` or ``module:function``.

Only the process that starts a simulation reads it: for ``dataset`` a deployed site opens no path
and imports no module (``client_app/site/site.py``). The task is found once, when the run config is
read, and stands in the terms from then on (``stated_task.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.tables_of_terms import gathered
from hdpfl_flower.config.tasks import Classification, Regression, StatedTask, Survival
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.array_targets import floats_of, target_shape, targets_in, targets_wanted
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.data.stated_task import is_own, task_of_stated
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.backbones import over
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.system.paths import expanded
from hdpfl_flower.work.backbone import Backbone
from hdpfl_tools.simulation.datasets import Dataset, load_dataset
from hdpfl_tools.simulation.own_data.source import OwnArrays, call_function, read_file

FILE = "file:"
HELD_OUT = 5
"""Without a test set, every 5th record of each owner tests."""


@dataclass(frozen=True)
class OwnSource:
    """Source of a user's data set.

    Attributes:
        name: the value of ``dataset``.
        task: of the run.
        stamp: when the file was written last, and its size; empty for a function.
    """

    name: str
    task: Task
    stamp: tuple[int, ...]


def own_source(terms: RunTerms) -> OwnSource | None:
    """Return the source of a user's data set; None for others.

    Raises:
        DataError: the file is not there, or the terms do not state the task.
    """
    if not is_own(terms.dataset):
        return None
    task = task_for(terms.updated(scales="") if terms.scales else terms)
    return OwnSource(terms.dataset, task.of_records, _stamp(terms.dataset))


def dataset_of(terms: RunTerms, data_dir: str) -> Dataset:
    """Return the data set of ``terms`` as the model reads it; do not modify it.

    Raises:
        DataError, ModelError: as :func:`load_own_dataset`, ``load_dataset`` or the backbone.
    """
    data = read_dataset(terms.dataset, data_dir, own_source(terms), terms.backbone)
    return scaled_dataset(data, task_for(terms)) if terms.scales else data


def scaled_dataset(data: Dataset, task: Task) -> Dataset:
    """Return a data set under the scales of a run's first message."""

    def scaled(records: Records) -> Records:
        return replace(records, features=task.embed(records.features))

    return replace(
        data, task=task, train=scaled(data.train), test=scaled(data.test) if data.test else None
    )


@lru_cache(maxsize=2)
def read_dataset(
    name: str, data_dir: str, source: OwnSource | None, backbone: Backbone | None
) -> Dataset:
    """Return a data set, named or a user's, under a backbone if any; raises as above."""
    data = load_dataset(name, data_dir) if source is None else load_own_dataset(source)
    if backbone is None and not data.task.scaling:
        return data
    task = over(backbone, data.task) if backbone else data.task

    def read(records: Records) -> Records:
        return replace(records, features=task.embed(records.features))

    return replace(
        data, task=task, train=read(data.train), test=read(data.test) if data.test else None
    )


def with_own_task(run_config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Add the task of a user's data set to ``run_config``; other data sets add no key.

    Args:
        run_config: keys as their user wrote them; settings of ``task`` stay.
        folder: where a relative path starts.

    Raises:
        DataError: the data set cannot be read, or does not determine the task.
        TermsError: a key is wrong.
    """
    name = run_config.get("dataset")
    if not isinstance(name, str) or not is_own(name):
        return dict(run_config)
    if run_config.get("schema"):
        raise DataError(f"'dataset' '{name}' has no 'schema'; remove one of the two keys")
    if name.startswith(FILE):
        name = f"{FILE}{(folder / expanded(name.removeprefix(FILE))).absolute()}"
    stated = RunTerms.parse({"task": gathered(run_config).get("task")}).task
    arrays = _arrays(name, _stamp(name))
    if arrays.task is not None and stated is None:
        return _checked(run_config, name, arrays.task)
    where = f"'dataset' '{name}'"
    x, y = _numbers(arrays.x, f"{where}: 'x'"), _numbers(arrays.y, f"{where}: 'y'")
    if x.ndim < 2 or not x.size:
        raise DataError(
            f"{where}: 'x' has the shape {x.shape}; it must have one row for each record, with "
            "at least one number"
        )
    if y.ndim and len(y) != len(x):
        wanted = (len(x), *y.shape[1:])
        raise DataError(f"{where}: 'y' has the shape {y.shape}; it must have {wanted}")
    full = _filled_in(stated or _kind(y, arrays), y, arrays, where)
    shape = full.shape or ",".join(map(str, x.shape[1:]))
    return _checked(run_config, name, task_of_stated(full.updated(shape=shape)))


def _checked(run_config: Mapping[str, Any], name: str, task: Task) -> dict[str, Any]:
    """Return the keys with ``task``, after reading all records as its."""
    load_own_dataset(OwnSource(name, task, _stamp(name)))
    return {**gathered(run_config), "dataset": name, "task": stated_of(task).as_table()}


def _kind(y: npt.NDArray[Any], arrays: OwnArrays) -> StatedTask:
    """Return the kind that the targets show, with open settings."""
    if y.ndim == 2:
        return Survival()
    return Classification() if arrays.y.dtype.kind in "biu" else Regression()


def _filled_in(
    stated: StatedTask, y: npt.NDArray[Any], arrays: OwnArrays, where: str
) -> StatedTask:
    """Return the task with its number of classes or intervals."""
    if isinstance(stated, Survival):
        if y.ndim != 2 or y.shape[1] != 2:
            raise DataError(
                f"{where}: for survival 'y' must have the shape (n, 2): the last observed "
                "interval, counted from 0, and 1 if the event occurred in it, else 0"
            )
        return stated.updated(intervals=stated.intervals or _most(arrays, where, column=0))
    if not isinstance(stated, Classification):
        return stated
    classes = stated.classes or _most(arrays, where)
    seen = {
        label
        for labels in (arrays.y, arrays.y_test)
        if labels is not None
        for label in labels.ravel()
    }
    if classes < 2 and min(seen, default=0) < 0:
        raise DataError(f"{where}: 'y' holds numbers below 0; classes are counted from 0")
    # For a single record the error about a test set is clearer.
    if classes < 2 or (not stated.classes and len(seen) < 2 <= len(arrays.y)):
        raise DataError(
            f"{where}: 'y' holds only one class; give records of two classes, or set 'task.classes'"
        )
    return stated.updated(classes=classes)


def _most(arrays: OwnArrays, where: str, column: int | None = None) -> int:
    """Return the largest class or interval of training and test, plus 1."""
    largest = 0
    for name, array in (("y", arrays.y), ("y_test", arrays.y_test)):
        if array is not None and array.size:
            values = _numbers(array, f"{where}: '{name}'")
            values = values if column is None else values[:, column]
            if not np.isfinite(values).all():
                raise DataError(f"{where}: '{name}' holds numbers that are not finite")
            largest = max(largest, int(values.max()) + 1)
    return largest


@lru_cache(maxsize=2)
def load_own_dataset(source: OwnSource) -> Dataset:
    """Return a user's data set, cached by source; do not modify it.

    Raises:
        DataError: it is not there; its arrays do not fit the task: shapes, labels outside of the
            classes, numbers that are not finite; or no owner has 5 records and there is no test
            set.
    """
    arrays, where = _arrays(source.name, source.stamp), f"'dataset' '{source.name}'"
    task = source.task
    train = _records(arrays.x, arrays.y, task, where, "")
    owners, names = _owners(arrays.owner, len(train), where)
    if arrays.x_test is not None and arrays.y_test is not None:
        test = _records(arrays.x_test, arrays.y_test, task, where, "_test")
        test_owners = _test_owners(arrays.owner_test, names, len(test), where)
        return Dataset(task, train, test, owners, test_owners)
    order = np.zeros(len(train), np.int64) if owners is None else owners
    out = _place_in(order) % HELD_OUT == HELD_OUT - 1
    if not out.any():
        raise DataError(
            f"{where} holds {len(train)} records and no test set, and every {HELD_OUT}th record "
            "is kept for the test; give more records, or 'x_test' and 'y_test'"
        )
    rows, rest = np.flatnonzero(~out), np.flatnonzero(out)
    data = Dataset(task, train.take(rows), train.take(rest), None)
    if owners is None:
        return data
    return replace(data, owners=owners[rows], test_owners=owners[rest])


def _place_in(owners: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return each record's position within its owner, from 0, shape ``(n,)``."""
    order = np.argsort(owners, kind="stable")
    starts = np.searchsorted(owners[order], owners[order])
    places = np.empty(len(owners), np.int64)
    places[order] = np.arange(len(owners)) - starts
    return places


def _records(
    x: npt.NDArray[Any], y: npt.NDArray[Any], task: Task, where: str, which: str
) -> Records:
    """Return arrays as records of ``task``; raises ``DataError`` on an invalid record."""
    named_x, named_y = f"{where}: 'x{which}'", f"{where}: 'y{which}'"
    features, targets = _numbers(x, named_x), _numbers(y, named_y)
    shape = ", ".join(map(str, task.input_shape))
    if features.shape[1:] != task.input_shape or not len(features):
        raise DataError(
            f"{named_x} has the shape {features.shape}; it must have (n, {shape}), with n of at "
            "least 1"
        )
    if targets.shape != (len(features), *target_shape(task)):
        wanted = (len(features), *target_shape(task))
        raise DataError(f"{named_y} has the shape {targets.shape}; it must have {wanted}")
    with np.errstate(over="ignore"):
        features = features.astype(np.float32)
    bad = int((~np.isfinite(features.reshape(len(features), -1)).all(1)).sum())
    if bad:
        raise DataError(
            f"{named_x} holds numbers that are not finite, or too large for float32, in {bad} "
            "records; fill in or remove them"
        )
    encoded, valid = targets_in(targets, task)
    if not valid.all():
        raise DataError(
            f"{named_y} has {int((~valid).sum())} of {len(valid)} invalid targets: "
            f"they must be {targets_wanted(task)}"
        )
    return Records(features, encoded)


def _owners(
    array: npt.NDArray[Any] | None, count: int, where: str
) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[Any]]:
    """Return each record's owner, from 0, and the names in that order."""
    if array is None:
        return None, np.array([])
    if array.shape != (count,):
        raise DataError(f"{where}: 'owner' has the shape {array.shape}; it must have ({count},)")
    names, owners = np.unique(array, return_inverse=True)
    return owners.astype(np.int64), names


def _test_owners(
    array: npt.NDArray[Any] | None, names: npt.NDArray[Any], count: int, where: str
) -> npt.NDArray[np.int64] | None:
    if array is None:
        return None
    if array.shape != (count,) or not np.isin(array, names).all():
        raise DataError(
            f"{where}: 'owner_test' must hold, for each of {count} test records, an owner that "
            "'owner' holds"
        )
    return np.searchsorted(names, array).astype(np.int64)


def _numbers(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    try:
        return floats_of(array)
    except DataError:
        raise DataError(f"{name} holds no numbers; convert it before saving") from None


def _stamp(name: str) -> tuple[int, ...]:
    if not name.startswith(FILE):
        return ()
    path = Path(name.removeprefix(FILE))
    try:
        status = path.stat()
    except OSError:
        raise DataError(
            f"'dataset': there is no file {path.absolute()}; a relative path starts at the "
            "current folder"
        ) from None
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=2)
def _arrays(name: str, stamp: tuple[int, ...]) -> OwnArrays:
    del stamp  # part of the key alone: a file written anew is read anew
    if name.startswith(FILE):
        return read_file(Path(name.removeprefix(FILE)))
    return call_function(name)


def stated_of(task: Task) -> StatedTask:
    """Return ``task`` as a value of the term, inverse of :func:`task_of_stated`."""
    records = {"shape": ",".join(map(str, task.input_shape))}
    if task.scaling:
        means, deviations = zip(*task.scaling, strict=True)
        records |= {"mean": ",".join(map(_plain, means)), "std": ",".join(map(_plain, deviations))}
    if task.intervals:
        return Survival(**records, intervals=task.intervals)
    if task.classes:
        return Classification(**records, classes=task.classes)
    return Regression(**records)


def _plain(number: float) -> str:
    """Return ``number`` without an exponent."""
    return f"{number:.9f}".rstrip("0").rstrip(".")
