"""Import of a site's table into a frozen one.

A Parquet file of texts beside the ledger, mode 0600, named by its SHA-256. ``table.json`` names the
one that counts (``hdpfl_flower/ledger/checked_table.py``) and is replaced last: an import that is
cut off leaves the old table. It holds every row of the export, those of withdrawn units, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_flower.ledger.checked_table import (
    TableFacts,
    digest_of,
    facts_path,
    is_current,
    read_facts,
    settings_digest,
    stamp_of,
    table_folder,
)
from hdpfl_flower.ledger.locks import alone_in
from hdpfl_flower.system.files import replace_file, sync
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.sources.csv_rows import Batch
from hdpfl_tools.tables.sources.frozen_rows import DIGEST, HEAD, ROW
from hdpfl_tools.tables.sources.header import Wanted, header_name
from hdpfl_tools.tables.sources.json_lines import JsonRows
from hdpfl_tools.tables.sources.open_rows import Rows, open_rows
from hdpfl_tools.tables.sources.rows import ArrowRows

_PATIENCE = 600.0
"""Seconds to wait for another import."""
_MOST_LOST, _LONGEST = 20_000, 200
"""Rows that cannot be cut which a table keeps for the screen, and bytes of a cell of them."""


def table_path(ledger: Path, digest: str) -> Path:
    """Return the file of the frozen table of SHA-256 ``digest``."""
    return table_folder(ledger) / f"{digest}.parquet"


def import_table(source: DataSource, ledger: Path, schema_text: str = "") -> TableFacts:
    """Return the facts of the frozen table, imported where outdated.

    Args:
        source: the profile's ``[data]``, of a table.
        ledger: beside which the table lies.
        schema_text: of a run; its names tell the header of a CSV from titles above it.

    Raises:
        DataError: the export cannot be read, or changed while it was read; or the disk refuses, and
            the old table stands.
        InstallationError: a library that reads it is not installed.
    """
    facts = read_facts(ledger)
    # A database elsewhere has no stamp: only reading it tells.
    is_there = facts is not None and table_path(ledger, facts.table).is_file() and stamp_of(source)
    if facts is not None and is_there and is_current(facts, source, whole=True):
        return facts
    folder = table_folder(ledger)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with alone_in(folder, _PATIENCE):
            return _imported(source, ledger, schema_text)
    except OSError as error:
        raise DataError(
            f"the table cannot be written into {folder}: {error.strerror}; the table of the last "
            "import stays"
        ) from None


def checked_table(source: DataSource, ledger: Path, schema_text: str = "") -> TableFacts:
    """Return the facts of the frozen table, whatever its export.

    Where there is none, the export is imported.

    Raises:
        DataError: as :func:`import_table`; or the table was imported by other keys of ``[data]``.
    """
    facts = read_facts(ledger)
    if facts is None:
        return import_table(source, ledger, schema_text)
    if facts.settings != settings_digest(source):
        raise DataError(
            "[data] was changed since the table was imported; import it again: hdpfl-site data "
            "import"
        )
    return facts


def delete_table(ledger: Path) -> int:
    """Delete the frozen table; return its size in bytes."""
    size = 0
    # The facts first: without them no part of it counts.
    for path in (facts_path(ledger), *sorted(table_folder(ledger).glob("*.p*"))):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
            path.unlink()
    with contextlib.suppress(OSError):
        table_folder(ledger).rmdir()
    return size


def rows_of(source: DataSource, schema_text: str = "") -> Rows:
    """Return a pass over the export of ``source``; errors as of ``open_rows``."""
    form = OwnTable.of(source).form
    if source.query:
        from hdpfl_tools.tables.sources.query import query_rows

        return query_rows(source)
    if source.connection:
        from hdpfl_tools.tables.sources.other_makers import postgresql_rows

        return postgresql_rows(source.connection, form)
    return open_rows(source.path, source.format, form, _known(source, schema_text))


def _known(source: DataSource, schema_text: str) -> list[Wanted]:
    """Return the columns that are known to be in the header."""
    site_table = OwnTable.of(source)
    if schema_text:
        schema = Schema.load(schema_text)
        return site_table.all_wanted(schema, unit=schema.id == source.id)
    names = dict.fromkeys([*source.columns, *([source.id] if source.id else [])])
    return [site_table.wanted(name) for name in names]


def _imported(source: DataSource, ledger: Path, schema_text: str) -> TableFacts:
    stamp, export = stamp_of(source), digest_of(source)
    rows = rows_of(source, schema_text)
    unfinished = table_folder(ledger) / f"{os.getpid()}.part"
    try:
        counts = _write(unfinished, rows, draws=not source.id)
        _check_ids(rows, source)
        sync(unfinished)
        with unfinished.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if stamp_of(source) != stamp or digest_of(source) != export:
            raise DataError("the export changed while it was read; wait until it is complete")
        unfinished.replace(table_path(ledger, digest))
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    columns = (*counts.listed(),)
    facts = TableFacts(digest, settings_digest(source), export, stamp, rows.rows, columns)
    replace_file(facts_path(ledger), facts.to_json(), durable=True)
    sync(table_folder(ledger))
    for other in table_folder(ledger).glob("*.p*"):  # older tables, and what a kill left
        if other.stem != digest:
            other.unlink()
    return facts


def _check_ids(rows: Rows, source: DataSource) -> None:
    """Refuse a column of floats that makes two long ids one."""
    rounded = rows.rounded if isinstance(rows, ArrowRows) else ()
    unit = OwnTable.of(source).wanted(source.id)
    names = {*map(header_name, unit.names)}
    if source.id and any(header_name(rows.header[place]) in names for place in rounded):
        raise DataError(
            f"the ids in column {unit.said} are floats, and some are so long that two of them can "
            "become one; write the column as text or as integers (in pandas: 'string' or 'Int64')"
        )


def _write(path: Path, rows: Rows, *, draws: bool) -> Counts:
    """Write the table of ``rows``; return its counts."""
    places = [*range(len(rows.header))]
    names = [str(place) for place in places]
    fields = [pa.field(name, pa.large_binary()) for name in names]
    fields.append(pa.field(ROW, pa.int64()))
    if draws:
        fields.append(pa.field(DIGEST, pa.uint64()))
    counts = Counts(rows)
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    schema = pa.schema(fields)
    with (
        os.fdopen(descriptor, "wb") as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for batch in rows.batches(places, digests=draws, lost=True):
            counts.add(batch)
            more = [pa.array(batch.positions)] + [pa.array(batch.digests)] * draws
            writer.write_table(pa.Table.from_arrays([*batch.columns, *more], schema=schema))
        writer.add_key_value_metadata({HEAD: json.dumps(_head(rows))})
    return counts


@dataclass(eq=False)
class ColumnCounts:
    """Empty cells of a column, and its different texts."""

    empty: int = 0
    texts: set[bytes | None] = field(default_factory=set)


class Counts:
    """Private counts of one pass over a table.

    Attributes:
        rows: of the table, after the pass.
        columns: counts of each column, by its name.
    """

    MOST = 10_000

    def __init__(self, rows: Rows) -> None:
        """``rows``: the pass, whose batches are then added."""
        self._rows = rows
        self._each = [ColumnCounts() for _ in rows.header]

    @property
    def rows(self) -> int:
        """Rows read so far, bad ones included."""
        return self._rows.rows

    @property
    def columns(self) -> dict[str, ColumnCounts]:
        """Counts by the names of columns."""
        return dict(zip(map(header_name, self._rows.header), self._each, strict=True))

    def add(self, batch: Batch) -> None:
        """Count the cells of a batch of all columns."""
        for count, whole in zip(self._each, batch.columns, strict=True):
            column = whole
            if pa.types.is_dictionary(column.type):
                column = whole.dictionary_decode()
            lengths = pc.binary_length(column).fill_null(0)
            count.empty += int((np.asarray(lengths) == 0).sum())
            if len(count.texts) <= self.MOST:
                count.texts.update(pc.unique(column).to_pylist()[: self.MOST + 1])

    def listed(self) -> Iterator[tuple[str, int, int]]:
        """Yield of each column its name, empty cells and different texts."""
        for name, count in zip(self._rows.header, self._each, strict=True):
            yield header_name(name), count.empty, len(count.texts)


def counts_of(rows: Rows) -> Counts:
    """Return the counts of a whole pass."""
    counts = Counts(rows)
    for batch in rows.batches([*range(len(rows.header))]):
        counts.add(batch)
    return counts


def _head(rows: Rows) -> dict[str, Any]:
    """Return the metadata: header, rows that cannot be cut."""
    lost = rows.uncut.lost({}, len(rows.header))
    return {
        "header": [*map(header_name, rows.header)],
        "keyed": isinstance(rows, JsonRows),
        "titles": rows.titles,
        "rows": rows.rows,
        "unpaired": rows.unpaired,
        "doubtful": lost.doubtful,
        "lost": [
            [row, [cell[:_LONGEST].decode("latin-1") for cell in cells], is_unpaired]
            for row, cells, is_unpaired in _first(lost.rows, lost.cells, lost.unpaired)
        ],
    }


def _first(*columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [*zip(*(column[:_MOST_LOST] for column in columns), strict=True)]
