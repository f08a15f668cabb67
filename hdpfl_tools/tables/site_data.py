"""Records read from the source in the profile's ``[data]``.

Shapes and classes come from the run's public terms, never from the files. Only an unusable record
itself is left out, and it is counted for the site alone; only a fault of the data as a
whole raises (docs/project/decisions.md).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.config.redacted import Redacted
from hdpfl_flower.data.array_targets import array_in, floats_of, target_shape, targets_in
from hdpfl_flower.data.columns import Mask, file_digest, row_digest
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Records, SiteRecords, Task
from hdpfl_tools.tables.images.image_folder import read_images
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.table_records import Summary, ranks_of, read_table


@dataclass(frozen=True, repr=False, eq=False)
class SiteData(Redacted, SiteRecords):
    """A site's records, with ``summary``, private counts of the reading.

    ``positions``: rows of the table of the records of training, int64 ``(n,)``; None without.
    """

    summary: Summary = field(kw_only=True)
    positions: npt.NDArray[np.int64] | None = field(kw_only=True, default=None)


@dataclass(frozen=True, repr=False, eq=False)
class UnitRecords(Redacted):
    """All labelled records of a site by unit, for site use.

    Attributes:
        records: all of them, also those of a unit that training leaves out.
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
    """Return the records of ``source``.

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
        No content of a record raises. Whether a record is held out depends on its id (or,
        without ids, on its stored row or file) alone: adding a record moves no other record,
        and the terms move none either. The number of records may be 0.
    """
    return stored_site_data(source, task, schema_text).embedded(task)


def stored_site_data(source: DataSource, task: Task, schema_text: str) -> SiteData:
    """Return the records of ``source`` before any embedding; as :func:`read_site_data`."""
    most = source.records_per_unit
    read = _as_stored(source, task.of_records, schema_text, every_record=most > 1)
    records, ids = read.records, read.ids
    if source.holdout == 0 and most == 1:
        return SiteData(records, ids=ids, summary=read.summary, positions=read.positions)
    out = _held_out(read, source.holdout)
    train, test = np.flatnonzero(read.first & ~out), np.flatnonzero(read.first & out)
    return SiteData(
        records.take(train),
        records.take(test) if source.holdout else None,
        units_of(read, ~out, most) if most > 1 else None,
        None if ids is None else tuple(ids[row] for row in train),
        None if ids is None else tuple(ids[row] for row in test),
        summary=read.summary,
        positions=None if read.positions is None else read.positions[train],
    )


def units_of(read: _Read, among: Mask, most: int) -> Records:
    """Return one record for each unit, of up to ``most`` of its records.

    Returns:
        features float32 ``(n, most, *input_shape)``; targets float32 ``(n, most, 2)``: target and
        weight of each, the weights of a unit equal and 1 in sum. Unused places hold its first
        record with weight 0.
    """
    firsts = np.flatnonzero(among & read.first)
    features = np.repeat(read.records.features[firsts, None], most, axis=1)
    targets = np.zeros((len(firsts), most, 2), dtype=np.float32)
    targets[:, :, 0] = read.records.targets[firsts, None]
    rows = np.flatnonzero(among & (read.ranks < most))
    places = _numbered(read.ids[row] for row in rows) if read.ids else np.arange(len(rows))
    numbers = np.empty(len(firsts), dtype=np.int64)
    numbers[places[read.first[rows]]] = np.arange(len(firsts))
    filled = numbers[places], read.ranks[rows]
    features[filled] = read.records.features[rows]
    targets[(*filled, 0)] = read.records.targets[rows]
    targets[(*filled, 1)] = 1 / np.bincount(filled[0], minlength=len(firsts))[filled[0]]
    return Records(features, targets)


def read_unit_records(source: DataSource, task: Task, schema_text: str) -> UnitRecords:
    """Return all labelled records of ``source``; arguments and errors as above.

    Guarantees:
        ``records`` where ``first & ~held_out`` are the ``train`` of :func:`read_site_data`, in its
        order.
    """
    read = _read(source, task, schema_text, every_record=True)
    records, ids = read.records, read.ids
    copies = _numbered(ids if ids is not None else _encoded(records))
    units = np.arange(len(records)) if ids is None else copies
    held_out = _held_out(read, source.holdout)
    return UnitRecords(records, units, read.first, held_out, copies, read.positions)


@dataclass(frozen=True, repr=False, eq=False)
class _Read(Redacted):
    """Records of a source.

    Attributes:
        records: n of them.
        summary: as in :class:`SiteData`.
        ids: the unit of each; None without ids.
        positions: as in :class:`UnitRecords`.
        places: ``ranks`` of a table's records; None: all 0.
        digests: uint64 ``(n,)``, of the row or file of each as it is stored; None if no record is
            held out, or ids decide it.
    """

    records: Records
    summary: Summary
    ids: tuple[bytes, ...] | None = None
    positions: npt.NDArray[np.int64] | None = None
    places: npt.NDArray[np.int64] | None = None
    digests: npt.NDArray[np.uint64] | None = None

    @property
    def ranks(self) -> npt.NDArray[np.int64]:
        """Place of each record among those of its unit, from 0."""
        return np.zeros(len(self.records), np.int64) if self.places is None else self.places

    @property
    def first(self) -> Mask:
        """``first`` in :class:`UnitRecords`."""
        is_first: Mask = self.ranks == 0
        return is_first


def _read(source: DataSource, task: Task, schema_text: str, *, every_record: bool = False) -> _Read:
    """Return the records of a source, as the model reads them."""
    read = _as_stored(source, task.of_records, schema_text, every_record=every_record)
    features = task.embed(read.records.features)
    return replace(read, records=replace(read.records, features=features))


def _as_stored(source: DataSource, task: Task, schema_text: str, *, every_record: bool) -> _Read:
    source.withdrawn()  # refused before any reading, also where no record has an id
    draws = source.holdout > 0 and not source.id
    if source.format == "npz":
        return _read_npz(source.path, task, draws)
    if source.format == "images":
        return _read_folder(source, task, draws, every_record)
    if not schema_text:
        raise DataError(
            "'data.format' is a table, which needs the run's 'schema'; the server must give a "
            "schema, or the site must use 'npz' or 'images'"
        )
    schema = Schema.load(schema_text)
    # A run's scales, of a first message, act on the records after they were read.
    unscaled = replace(task, scaling=schema.task.scaling, reach=schema.task.reach)
    if schema.task != unscaled:
        raise DataError(
            "the run's 'schema' does not describe the task that the run's other terms describe"
        )
    if schema.id != source.id:
        raise DataError(
            "'id' of the run's 'schema' is not the profile's 'data.id', so the run would protect "
            "another unit than the site asks for; agree on one id with the coordinator"
        )
    table = read_table(
        *source.place, schema, OwnTable.of(source), every_record=every_record, digests=draws
    )
    return _Read(
        table.records, table.summary, table.ids, table.positions, table.ranks, table.digests
    )


def _read_folder(source: DataSource, task: Task, draws: bool, every_record: bool) -> _Read:
    """Return the images of a folder; of a unit's the first by name, in the first class."""
    images = read_images(
        source.path, task, source.bits, has_units=bool(source.id), withdrawn=source.withdrawn()
    )
    records = images.records
    summary = Summary(images.rows, images.left_out, withdrawn=images.withdrawn)
    if not source.id:
        digests = _joined(map(file_digest, images.files)) if draws else None
        return _Read(records, summary, digests=digests)
    names = [os.fsencode(file.parent.name) for file in images.files]
    ranks = ranks_of(names, range(len(names)))
    summary.left_out["repeated id"] = int((ranks > 0).sum())
    used = np.flatnonzero((ranks == 0) | every_record)
    return _Read(records.take(used), summary, tuple(names[row] for row in used), places=ranks[used])


def _held_out(read: _Read, share: float) -> Mask:
    """Return a mask of held-out records, shape ``(n,)``: hash below ``share``.

    Rows of the same content fall on the same side, so the held-out share of a table with few
    different rows may be far from ``share``; an id makes it finer.
    """
    # A keyed hash of 8 bytes is uniform on 0 … 2⁶⁴ − 1.
    limit = int(share * 2**64)
    out = np.zeros(len(read.records), dtype=bool)
    for row, content in enumerate(_contents(read.ids, read.digests)):
        digest = hashlib.blake2b(content, digest_size=8, key=b"hdpfl holdout").digest()
        out[row] = int.from_bytes(digest, "big") < limit
    return out


def _contents(
    ids: tuple[bytes, ...] | None, digests: npt.NDArray[np.uint64] | None
) -> Iterator[bytes]:
    """Yield each record's holdout key: its id, or its stored row.

    From encoded features a server could redraw the sides by sending another schema.
    """
    if ids is not None:
        yield from ids
    elif digests is not None:
        yield from map(np.uint64.tobytes, digests)


def _digested(contents: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    """Return a digest of each of n ``contents``, shape ``(n,)``."""
    return _joined(map(row_digest, contents))


def _joined(digests: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def _encoded(records: Records) -> Iterator[bytes]:
    """Yield the content of each record as bytes."""
    for row in range(len(records)):
        yield records.features[row].tobytes() + records.targets[row].tobytes()


def _numbered(contents: Iterable[bytes]) -> npt.NDArray[np.int64]:
    """Return a number for each content, from 0, by first occurrence."""
    numbers: dict[bytes, int] = {}
    return np.array(
        [numbers.setdefault(content, len(numbers)) for content in contents], dtype=np.int64
    )


def _read_npz(path: Path, task: Task, draws: bool) -> _Read:
    """Return the records in arrays ``x`` and ``y`` of an ``.npz``."""
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
    targets, labelled = targets_in(y, task)
    left_out = {
        "features not finite": int((~usable).sum()),
        "no known label": int((usable & ~labelled).sum()),
    }
    complete = usable & labelled
    # As float64, since one record decides the type in which numpy stores all of them.
    rows = (
        x[row].astype(np.float64).tobytes() + y[row].astype(np.float64).tobytes()
        for row in np.flatnonzero(complete)
    )
    return _Read(
        Records(features[complete], targets[complete]),
        Summary(len(x), left_out),
        digests=_digested(rows) if draws else None,
    )


def load_features(path: Path, task: Task) -> tuple[npt.NDArray[np.float32], list[str], int]:
    """Return unlabelled records of an ``.npz`` file with their numbers, from 1.

    A record that is not finite is only counted.

    Raises:
        DataError: the file or its array ``x`` is missing, or its shape is not the task's.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            x = floats_of(array_in(file, "x"))
    except Exception:
        # As below: the messages of a damaged archive might quote its content.
        raise DataError(
            "FILE is not there, or is not an .npz file with an array 'x' of numbers; write it "
            "with numpy.savez"
        ) from None
    if x.shape[1:] != task.input_shape:
        raise DataError(
            f"'x' of the .npz file must have the shape (n, {', '.join(map(str, task.input_shape))})"
            ", as the run's terms say; reshape it"
        )
    with np.errstate(over="ignore"):
        features = x.astype(np.float32)
    usable = np.isfinite(features).all(axis=tuple(range(1, features.ndim)))
    rows = np.flatnonzero(usable)
    return features[usable], [str(row + 1) for row in rows], int((~usable).sum())


def load_arrays(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return arrays ``x`` and ``y`` of a site's ``.npz`` as floats.

    Raises:
        DataError: the file or an array is missing, or holds no numbers.
    """
    try:
        # A pickle can run its author's code.
        with np.load(path, allow_pickle=False) as file:
            stored = array_in(file, "x"), array_in(file, "y")
    except Exception:
        # A damaged archive fails in many ways; its messages might quote its content.
        raise DataError(
            "'data.path' is not there, or is not an .npz file with arrays 'x' and 'y' of numbers; "
            "write it with numpy.savez"
        ) from None
    return floats_of(stored[0]), floats_of(stored[1])
