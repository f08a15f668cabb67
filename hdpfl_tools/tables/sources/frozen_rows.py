"""One pass over a frozen table, as ``frozen_table.py`` wrote it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.sources.csv_rows import Batch, UncutRows

HEAD, ROW, DIGEST = "hdpfl", "row", "digest"
"""Key of the metadata, and names of the columns of rows and of their digests."""


class FrozenRows:
    """One pass over a frozen table; attributes as of ``CsvRows``."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        """``head``: of the file's metadata."""
        self._path = path
        self.header: list[bytes | str] = head["header"]
        if not head["kinds"]:  # bytes of a CSV, which need be no UTF-8
            self.header = [name.encode("latin-1") for name in head["header"]]
        self.kinds, self.titles = (*head["kinds"],), head["titles"]
        self.rows, self.unpaired = head["rows"], head["unpaired"]
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
        names = [str(place) for place in places]
        with pq.ParquetFile(self._path, memory_map=True, read_dictionary=names) as file:
            table = file.read([*names, ROW, *([DIGEST] if digests else [])])
        digested = table[DIGEST].to_numpy() if digests else np.zeros(0, np.uint64)
        columns = [table[name].unify_dictionaries() for name in names]
        yield Batch([_whole(column) for column in columns], table[ROW].to_numpy(), digested)


def _whole(column: Any) -> Any:
    whole = column.combine_chunks()
    return whole if not isinstance(whole, pa.ChunkedArray) else whole.chunk(0)


def frozen_rows(path: Path) -> FrozenRows:
    """Return a pass over the frozen table at ``path``.

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
    return FrozenRows(path, head)
