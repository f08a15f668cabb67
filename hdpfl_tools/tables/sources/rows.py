"""One pass over record batches of Arrow, as columns of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hdpfl_flower.data.columns import row_digest
from hdpfl_tools.tables.sources.arrow_texts import as_bytes, is_rounded
from hdpfl_tools.tables.sources.csv_rows import Batch, UncutRows


class ArrowRows:
    """One pass over Arrow record batches; attributes as of :class:`CsvRows`.

    Attributes:
        rounded: places of columns of floats, read so far, that hold no long id exactly.
    """

    titles = unpaired = 0

    def __init__(
        self,
        header: Sequence[str],
        batches: Callable[[Sequence[int]], Iterable[Any]],
        decimal: str = ".",
    ) -> None:
        """``batches`` yields record batches of the columns at given places."""
        self.header: list[bytes | str] = [*header]
        self.rounded: set[int] = set()
        self.rows, self._batches, self._decimal = 0, batches, decimal
        self.uncut = UncutRows(b",", 0)

    def batches(
        self, places: Sequence[int], *, digests: bool = False, lost: bool = False
    ) -> Iterator[Batch]:
        """Yield the columns at ``places``; see ``load_table``. No row is lost."""
        del lost
        every = [*range(len(self.header))] if digests else [*places]
        for batch in self._batches(every):
            pairs = zip(every, batch.columns, strict=True)
            self.rounded |= {place for place, column in pairs if is_rounded(column)}
            columns = [as_bytes(column, self._decimal) for column in batch.columns]
            positions = np.arange(self.rows, self.rows + len(batch), dtype=np.int64)
            self.rows += len(batch)
            digested = np.zeros(0, np.uint64)
            if digests:
                cells = zip(*(column.to_pylist() for column in columns), strict=True)
                content = b"".join(row_digest(b",".join(c or b"" for c in row)) for row in cells)
                digested = np.frombuffer(content, dtype=np.uint64)
            yield Batch([columns[every.index(place)] for place in places], positions, digested)
