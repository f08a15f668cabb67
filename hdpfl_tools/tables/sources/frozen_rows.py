"""One pass over a frozen table, as ``frozen_table.py`` wrote it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.sources.csv_rows import Batch, UncutRows
from hdpfl_tools.tables.sources.header import Wanted, header_name, lacking

HEAD, ROW, DIGEST = "hdpfl", "row", "digest"
"""Key of the metadata, and names of the columns of rows and of their digests."""


class FrozenRows:
    """One pass over a frozen table; attributes as of ``CsvRows``."""

    def __init__(self, path: Path, head: dict[str, Any], wanted: Sequence[Wanted]) -> None:
        """``head``: of the file's metadata."""
        self._path = path
        self.header: list[bytes | str] = head["header"]
        self._stored = [[place] for place in range(len(self.header))]
        if head.get("keyed"):
            self._join(wanted)
        self.titles, self.rows, self.unpaired = head["titles"], head["rows"], head["unpaired"]
        self.uncut = UncutRows.stored(
            [
                (row, tuple(cell.encode("latin-1") for cell in cells), is_unpaired)
                for row, cells, is_unpaired in head["lost"]
            ],
            head["doubtful"],
        )

    def batches(
        self, places: Sequence[int], *, digests: bool = False, lost: bool = False
    ) -> Iterator[Batch]:
        """Yield the columns at ``places``, whole; see ``load_table``."""
        del lost
        names = [str(stored) for place in places for stored in self._stored[place]]
        with pq.ParquetFile(self._path, memory_map=True, read_dictionary=names) as file:
            table = file.read([*names, ROW, *([DIGEST] if digests else [])])
        digested = table[DIGEST].to_numpy() if digests else np.zeros(0, np.uint64)
        columns = [self._column(table, place) for place in places]
        yield Batch(columns, table[ROW].to_numpy(), digested)

    def _join(self, wanted: Sequence[Wanted]) -> None:
        """Give each wanted column one place."""
        for column in wanted:
            places = {header_name(name): place for place, name in enumerate(self.header)}
            found = [places[name] for name in map(header_name, column.names) if name in places]
            for other in found[1:]:
                self.header[other] = ""
                self._stored[found[0]].append(other)
        absent = lacking(self.header, wanted)
        self.header += absent
        self._stored += [[] for _ in absent]

    def _column(self, table: pa.Table, place: int) -> Any:
        parts = [_whole(table[str(each)].unify_dictionaries()) for each in self._stored[place]]
        if not parts:
            return pa.nulls(len(table), pa.large_binary())
        return parts[0] if len(parts) == 1 else pc.coalesce(*(p.dictionary_decode() for p in parts))


def _whole(column: Any) -> Any:
    whole = column.combine_chunks()
    return whole if not isinstance(whole, pa.ChunkedArray) else whole.chunk(0)


def frozen_rows(path: Path, wanted: Sequence[Wanted] = ()) -> FrozenRows:
    """Return a pass over the frozen table at ``path``.

    Of keys of NDJSON, whether a ``wanted`` column is there does not depend on the records: one that
    none has is missing in all, and of several names of one the first in each record counts.

    Raises:
        DataError: it is not there, or its content is not that of its name.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != path.stem:
            raise ValueError
        head = json.loads(pq.read_metadata(path).metadata[HEAD.encode()])
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        raise DataError(
            "the imported table is not there, or is damaged; import it again: hdpfl-site data "
            "import"
        ) from None
    return FrozenRows(path, head, wanted)
