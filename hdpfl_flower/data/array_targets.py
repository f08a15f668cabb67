"""Conversion of arrays without a schema to the records of a task.

Numbers may be of any type, and the task of any kind.
"""

from __future__ import annotations

import math
from typing import IO, Any

import numpy as np
import numpy.lib.format as npformat
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from hdpfl_flower.data.columns import Mask, Texts
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task

MAX_CELL = 256
"""Bytes of a number written as text, in an array of such; 64 characters in UTF-32."""

Targets = npt.NDArray[np.int64] | npt.NDArray[np.float32]


def target_shape(task: Task) -> tuple[int, ...]:
    """Return the shape of one target in ``y``: ``(2,)`` for survival, else ``()``."""
    return (2,) if task.intervals else ()


def targets_wanted(task: Task) -> str:
    """Return a description of the targets of ``task``, for errors.

    >>> targets_wanted(Task.classification((3,), 10))
    'whole numbers from 0 to 9'
    """
    if task.intervals:
        return f"pairs: the last interval observed, 0 to {task.intervals - 1}, and 0 or 1 for event"
    if task.classes:
        return f"whole numbers from 0 to {task.classes - 1}"
    return "finite numbers"


def targets_in(y: npt.NDArray[Any], task: Task) -> tuple[Targets, Mask]:
    """Return the target of each record and a mask of valid ones.

    Args:
        y: floats, shape ``(n, *target_shape(task))``; for survival the last interval in which the
            record was observed, from 0, and 1 where the event occurred in it, else 0.
        task: of the records.

    Returns:
        The targets as ``Records`` has them, and whether each is known, both of shape ``(n,)``.
    """
    if task.intervals:
        last, event = y[:, 0], y[:, 1]
        valid = _is_whole(last, task.intervals) & _is_whole(event, 2)
        last = np.where(valid, last, 0).astype(np.int64)
        return survival_targets(last, np.where(valid, event, 0) == 1), valid
    if task.classes:
        valid = _is_whole(y, task.classes)
        return np.where(valid, y, 0).astype(np.int64), valid
    with np.errstate(over="ignore"):
        numbers = y.astype(np.float32)
    return numbers, np.isfinite(numbers)


def targets_of_times(
    times: npt.NDArray[np.float64], events: npt.NDArray[np.bool_], edges: tuple[float, ...]
) -> tuple[npt.NDArray[np.int64], Mask]:
    """Return the survival targets and a mask of the records with one.

    An event counts in the interval in which it lies. A record censored in the second half of an
    interval counts as a survivor of it, one censored in the first half does not (Gensheimer and
    Narasimhan, PeerJ 2019): so censoring within an interval biases the hazards neither way.
    A record censored in the first half of the first interval has no target.

    Args:
        times: at or above 0, shape ``(n,)``; one beyond the last edge survived all intervals.
        events: whether the event occurred at the time, shape ``(n,)``.
        edges: ends of the intervals, rising, the first from above 0.

    >>> times, events = np.array([6.0, 9.0, 8.0, 2.0, 99.0]), np.array([1, 0, 0, 0, 1]) == 1
    >>> targets, known = targets_of_times(times, events, (6.0, 12.0))
    >>> targets.tolist(), known.tolist()
    ([1, 2, 0, 0, 2], [True, True, True, False, True])
    """
    ends = np.asarray(edges, dtype=np.float64)
    middles = ends / 2 + np.concatenate([[0.0], ends[:-1]]) / 2
    occurred = events & (times <= ends[-1])
    # Left: a time that is an end lies in the interval that it ends. Right: a half is enough.
    last = np.where(
        occurred,
        np.searchsorted(ends, times, side="left"),
        np.searchsorted(middles, times, side="right") - 1,
    )
    counted = last >= 0
    return survival_targets(np.where(counted, last, 0), occurred & counted), counted


def _is_whole(values: npt.NDArray[Any], below: int) -> Mask:
    """Return a mask of whole numbers from 0 to ``below`` − 1; NaN fails."""
    with np.errstate(invalid="ignore"):
        whole: Mask = (values >= 0) & (values < below) & (values == np.floor(values))
    return whole


def floats_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``array`` as floats of the same shape; NaN for non-numbers.

    One text among the numbers makes numpy store texts everywhere, so texts are read cell by cell.

    Raises:
        DataError: it holds neither numbers nor texts.
    """
    if array.dtype.kind in "biuf":
        # Exact except for 64-bit integers, in the narrowest float type that is.
        return array.astype(np.result_type(array.dtype, np.float32), copy=False)
    if array.dtype.kind == "c":  # one complex cell makes numpy store all as complex
        return np.where(array.imag == 0, array.real, np.nan)
    if array.dtype.kind in "US":
        if array.dtype.kind == "U":
            array = np.char.encode(array, "utf-8", "surrogatepass")
        return Texts.of(array.ravel().tolist()).numbers().reshape(array.shape)
    raise DataError("the arrays of the .npz file must hold numbers; convert them before saving")


def array_in(file: NpzFile, name: str) -> npt.NDArray[Any]:
    """Return an array of an ``.npz`` file as stored, texts at most :data:`MAX_CELL` bytes long.

    One long text among the numbers makes numpy store all cells as long as it. Longer ones become
    one that is no number, cell by cell.

    Raises:
        Exception: any, where there is none, or it needs a pickle.
    """
    archive: Any = file.zip
    with archive.open(f"{name}.npy") as member:
        version = npformat.read_magic(member)
        header = (
            npformat.read_array_header_1_0 if version == (1, 0) else npformat.read_array_header_2_0
        )
        shape, is_fortran, dtype = header(member)
        if dtype.kind not in "US" or dtype.itemsize <= MAX_CELL:
            stored: npt.NDArray[Any] = file[name]
            return stored
        short = np.dtype(
            f"{dtype.byteorder}{dtype.kind}{MAX_CELL // (4 if dtype.kind == 'U' else 1)}"
        )
        texts = np.empty(math.prod(shape), short)
        for cell in range(len(texts)):
            texts[cell] = np.frombuffer(member.read(MAX_CELL), short)[0]
            if _has_more(member, dtype.itemsize - MAX_CELL):
                texts[cell] = "long"
    return texts.reshape(shape, order="F" if is_fortran else "C")


def _has_more(member: IO[bytes], count: int) -> bool:
    """Return whether the next ``count`` bytes hold any but zeros, reading them piece by piece."""
    has_more = False
    while count:
        piece = member.read(min(count, 2**20))
        if not piece:
            raise ValueError("the array is shorter than its shape")
        has_more |= bool(piece.strip(b"\0"))
        count -= len(piece)
    return has_more


def survival_targets(
    last: npt.NDArray[np.int64], events: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Return survival targets, one integer per record: 2 · interval + event.

    Args:
        last: the last interval in which each record was observed, from 0, shape ``(n,)``.
        events: whether the event occurred in it; if not, the record survived it and was censored.

    >>> survival_targets(np.array([0, 3]), np.array([True, False])).tolist()
    [1, 6]
    """
    return 2 * last + events
