"""What the ``[data]`` section of a site's profile names becomes the site's records.

Shapes and classes come from the run's public terms, never from the files. A record that cannot be
used contributes nothing, alone, and is counted for the site alone; only what is true of the data as
a whole raises (docs/project/decisions.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data.array_targets import floats_of, target_shape, targets_in
from hdpfl_flower.data.columns import Mask
from hdpfl_flower.data.image_folder import read_images
from hdpfl_flower.data.own_table import OwnTable
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.data.table_reader import Redacted
from hdpfl_flower.data.table_records import Summary, read_table
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Records, Task


@dataclass(frozen=True, repr=False, eq=False)
class SiteData(Redacted):
    """A site's records, and what was found while reading them.

    Attributes:
        train: the records that training may use.
        test: the profile's ``holdout`` share; None if it is 0.
        summary: private counts, for the site alone.
        ids: the protected unit of each training record, all different; None without ids.
    """

    train: Records
    test: Records | None
    summary: Summary
    ids: tuple[bytes, ...] | None


@dataclass(frozen=True, repr=False, eq=False)
class UnitRecords(Redacted):
    """Every labelled record of a site, by unit; for the site's own eyes.

    Attributes:
        records: all of them, those of a unit that training leaves out too.
        units: the unit of each record, int64 0, 1, 2, …, shape ``(n,)``; without ids each record
            is one.
        first: the record of its unit that training may use, bool, shape ``(n,)``.
        held_out: whether the record's unit is held out of training, bool, shape ``(n,)``; no unit
            has records on both sides.
        copies: records of the same content, or unit, have the same number, int64, shape ``(n,)``.
        positions: the row of the table of each record, from 0, int64, shape ``(n,)``; None where
            the records are in no table.
    """

    records: Records
    units: npt.NDArray[np.int64]
    first: Mask
    held_out: Mask
    copies: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64] | None = None


def read_site_data(source: DataSource, task: Task, schema_text: str) -> SiteData:
    """Return the records that ``source`` names.

    Args:
        source: the profile's ``[data]``; ``csv`` and ``parquet`` need a schema, ``npz`` holds
            arrays ``x``, a row of the task's input shape a record, taken as they are, and ``y``
            (n,), for survival (n, 2): the last interval observed, and 1 where the event
            occurred in it; ``images`` is a folder with a subfolder a class, named ``0`` to ``C-1``.
        task: shapes and classes, from the run's terms.
        schema_text: the run's ``schema``: TOML text, or a built-in name; empty for the others.

    Raises:
        DataError: the files are missing or of another kind, or their shape is not the task's.

    Guarantees:
        No content of a record makes it raise. Whether a record is held out depends on its id (or,
        without ids, on its own content) alone, so adding a record moves no other one. The number
        of records may be 0.
    """
    records, summary, ids, _ = _read(source, task, schema_text)
    if source.holdout == 0:
        return SiteData(records, None, summary, ids)
    out = _held_out(records, ids, source.holdout)
    train, test = np.flatnonzero(~out), np.flatnonzero(out)
    if ids is not None:
        ids = tuple(ids[row] for row in train)
    return SiteData(records.take(train), records.take(test), summary, ids)


def read_unit_records(source: DataSource, task: Task, schema_text: str) -> UnitRecords:
    """Return every labelled record that ``source`` names; arguments and errors as above.

    Guarantees:
        ``records`` where ``first & ~held_out`` are the ``train`` of :func:`read_site_data`, in its
        order.
    """
    records, _, ids, positions = _read(source, task, schema_text, every_record=True)
    contents = list(_contents(records, ids))
    copies = _numbered(contents)
    units = np.arange(len(records)) if ids is None else copies
    first = np.zeros(len(records), dtype=bool)
    first[np.unique(units, return_index=True)[1]] = True
    held_out = _held_out(records, ids, source.holdout)
    return UnitRecords(records, units, first, held_out, copies, positions)


Read = tuple[Records, Summary, tuple[bytes, ...] | None, npt.NDArray[np.int64] | None]


def _read(source: DataSource, task: Task, schema_text: str, *, every_record: bool = False) -> Read:
    if source.format == "npz":
        return *_read_npz(source.path, task), None, None
    if source.format == "images":
        records, rows, left_out = read_images(source.path, task)
        return records, Summary(rows, left_out), None, None
    if not schema_text:
        raise DataError(
            "'data.format' names a table, which needs the run's 'schema'; the server must give "
            "one, or the site 'npz' or 'images'"
        )
    schema = Schema.load(schema_text)
    if schema.task != task:
        raise DataError("the run's 'schema' describes another task than the run's other terms")
    if schema.id != source.id:
        raise DataError(
            "'id' of the run's 'schema' is not the profile's 'data.id': the run would protect "
            "another unit than the site asks for; agree on one with the coordinator"
        )
    own = OwnTable.of(source)
    table = read_table(source.path, source.format, schema, own, every_record=every_record)
    return table.records, table.summary, table.ids, table.positions


def _held_out(records: Records, ids: tuple[bytes, ...] | None, share: float) -> Mask:
    """Return which records are held out, shape ``(n,)``: those whose hash is below ``share``.

    Records of the same content fall on the same side, so the held-out share of a table with few
    different records may be far from ``share``; an id makes it finer.
    """
    # A keyed hash of 8 bytes is uniform on 0 … 2⁶⁴ − 1.
    limit = int(share * 2**64)
    out = np.zeros(len(records), dtype=bool)
    for row, content in enumerate(_contents(records, ids)):
        digest = hashlib.blake2b(content, digest_size=8, key=b"hdpfl holdout").digest()
        out[row] = int.from_bytes(digest, "big") < limit
    return out


def _contents(records: Records, ids: tuple[bytes, ...] | None) -> Iterator[bytes]:
    """Yield what decides on which side a record falls: its id, without ids its content."""
    if ids is not None:
        yield from ids
        return
    for row in range(len(records)):
        yield records.features[row].tobytes() + records.targets[row].tobytes()


def _numbered(contents: list[bytes]) -> npt.NDArray[np.int64]:
    """Return a number for each content, counted from 0 in the order of first sight."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(each, len(numbers)) for each in contents], dtype=np.int64)


def _read_npz(path: Path, task: Task) -> tuple[Records, Summary]:
    """Return the records in the arrays ``x`` and ``y`` of an ``.npz`` file."""
    x, y = load_arrays(path)
    if x.shape[1:] != task.input_shape or y.shape != x.shape[:1] + target_shape(task):
        raise DataError(
            f"the .npz file must hold 'x' of shape (n, {', '.join(map(str, task.input_shape))}) "
            f"and 'y' of shape {'(n, 2)' if task.intervals else '(n,)'}, as the run's terms say; "
            "reshape them"
        )
    # A number beyond float32 becomes infinite and is left out; a warning would disclose it.
    with np.errstate(over="ignore"):
        features = x.astype(np.float32)
    usable = np.isfinite(features).all(axis=tuple(range(1, features.ndim)))
    targets, known = targets_in(y, task)
    left_out = {
        "features not finite": int((~usable).sum()),
        "no known label": int((usable & ~known).sum()),
    }
    kept = usable & known
    return Records(features[kept], targets[kept]), Summary(len(x), left_out)


def load_features(path: Path, task: Task) -> tuple[npt.NDArray[np.float32], list[str]]:
    """Return the records of an ``.npz`` file without labels, and the number of each, from 1.

    A record that is not finite is left out.

    Raises:
        DataError: there is no such file or array ``x``, or its shape is not the task's.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            x = floats_of(file["x"])
    except Exception:
        # As below: a damaged archive fails in many ways, in words that might quote what it holds.
        raise DataError(
            "FILE is not there or is no .npz file with an array 'x' of numbers; write it with "
            "numpy.savez"
        ) from None
    if x.shape[1:] != task.input_shape:
        raise DataError(
            f"'x' of the .npz file must have the shape (n, {', '.join(map(str, task.input_shape))})"
            ", as the run's terms say; reshape it"
        )
    with np.errstate(over="ignore"):
        features = x.astype(np.float32)
    usable = np.isfinite(features).all(axis=tuple(range(1, features.ndim)))
    return features[usable], [str(row + 1) for row in np.flatnonzero(usable)]


def load_arrays(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the arrays ``x`` and ``y`` of a site's ``.npz`` file as floats.

    Raises:
        DataError: there is no such file or array, or it holds no numbers.
    """
    x, y = (floats_of(array) for array in _load_npz(path))
    return x, y


def _load_npz(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    try:
        # A pickle runs code of whoever wrote it.
        with np.load(path, allow_pickle=False) as file:
            return file["x"], file["y"]
    except Exception:
        # A damaged archive fails in many ways; its own words might quote what it holds.
        raise DataError(
            "'data.path' is not there or is no .npz file with arrays 'x' and 'y'; write it with "
            "numpy.savez, numbers only"
        ) from None
