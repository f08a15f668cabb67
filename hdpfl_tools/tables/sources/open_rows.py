"""One pass over a table of any kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.sources.csv_rows import CsvRows, Form
from hdpfl_tools.tables.sources.file_kinds import kind_of_file, refused
from hdpfl_tools.tables.sources.frozen_rows import FrozenRows, frozen_rows
from hdpfl_tools.tables.sources.header import Wanted
from hdpfl_tools.tables.sources.json_lines import JsonRows
from hdpfl_tools.tables.sources.other_makers import READERS
from hdpfl_tools.tables.sources.rows import ArrowRows

FORMATS = ("table", "csv", "parquet", "frozen")
"""Formats of tables: of any kind, of one kind alone, and of an import."""


Rows = CsvRows | JsonRows | ArrowRows | FrozenRows


def open_rows(path: Path, file_format: str, form: Form, wanted: Sequence[Wanted] = ()) -> Rows:
    """Return a pass over the table at ``path``.

    Args:
        path: the file or folder.
        file_format: one of :data:`FORMATS`.
        form: of its texts.
        wanted: columns that tell the header of a CSV from other lines; NDJSON has them all.

    Raises:
        DataError: the file is missing, damaged, or of another kind.
        InstallationError: a library that reads it is not installed.
    """
    if file_format not in FORMATS:
        raise DataError("the format of a table is 'table', 'csv' or 'parquet'; name one of them")
    if file_format == "csv":
        return CsvRows(path, form, wanted)
    if file_format == "frozen":
        return frozen_rows(path, wanted)
    kind = kind_of_file(path)
    if kind in ("parquet", "parts"):
        return parquet_rows(path, form.notation.decimal)
    if file_format == "parquet":
        raise refused(path, "a Parquet file")
    if kind in ("csv", "gzip", "zip"):
        return CsvRows(path, form, wanted)
    if kind not in READERS:
        raise refused(path, "a table")
    return READERS[kind](path, form, wanted)


def parquet_rows(path: Path, decimal: str = ".") -> ArrowRows:
    """Return a pass over a Parquet file or folder.

    Raises:
        DataError: a file is missing or damaged, or two have other columns.
    """
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    with _parquet_errors():
        names_of = [pq.read_schema(file).names for file in files]
    if any(names != names_of[0] for names in names_of):
        raise DataError("the files of the folder differ in columns; write one table")

    def batches(places: Sequence[int]) -> Iterator[Any]:
        names = [names_of[0][place] for place in places]
        with _parquet_errors():
            for file in files:
                with pq.ParquetFile(file) as opened:
                    for batch in opened.iter_batches(columns=names):
                        yield batch.select(names)

    return ArrowRows(names_of[0], batches, decimal)


@contextmanager
def _parquet_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, ValueError):
        raise DataError(
            "the table is not there, or is not a readable Parquet file; check its path and format"
        ) from None
