"""Records of NDJSON, each an object of JSON on a line of its own.

A line is read by itself: no type is guessed from a column, and a line that is no object is lost
alone. Of a key that a line has twice, the last value counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from hdpfl_flower.data.columns import row_digest
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.sources.arrow_texts import as_column
from hdpfl_tools.tables.sources.csv_lines import LinesRead
from hdpfl_tools.tables.sources.csv_rows import Batch, Form, UncutRows
from hdpfl_tools.tables.sources.header import Wanted, header_name, lacking

_BATCH = 2**22
"""Bytes of texts, and two for each cell, that are read at a time."""
_MOST_KEYS = 1000
"""Keys of a line; a line with more is lost. A table may have twice as many: each is a column, which
costs the rows that lack it, too."""
_Read = TypeVar("_Read")


class JsonRows:
    """One pass over the objects of NDJSON; attributes as of ``CsvRows``.

    Its columns are the keys in the order of their first appearance, then the wanted ones that no
    record has: a record that alone has a key decides nothing for the others.
    """

    titles = unpaired = 0

    def __init__(self, path: Path, form: Form, wanted: Sequence[Wanted] = ()) -> None:
        """Read the keys of all lines.

        Raises:
            DataError: the file cannot be read, or has no key or too many different ones.
        """
        self._path, self._form = path, form
        names: dict[str, None] = {}
        for cells in _objects(path, form, _cells):
            if cells is not None and not names.keys() >= cells.keys():
                names.update(dict.fromkeys(cells))
                if len(names) > 2 * _MOST_KEYS:
                    raise DataError(
                        f"the objects have more than {2 * _MOST_KEYS} different keys, and each "
                        "would be a column; write what varies as values, not as keys"
                    )
        self.header: list[bytes | str] = [*names]
        self.header += lacking(self.header, wanted)
        if not self.header:
            raise DataError("the table has no line that is an object of JSON with a key")
        self.rows = 0
        self._lost: list[tuple[int, tuple[bytes, ...], bool]] = []
        self.uncut = UncutRows.stored(self._lost, 0)

    def batches(
        self, places: Sequence[int], *, digests: bool = False, lost: bool = False
    ) -> Iterator[Batch]:
        """Yield the columns at ``places``; see ``load_table``. A lost row has no cells."""
        read, positions, size = list[dict[str, object]](), list[int](), 0
        for cells in _objects(self._path, self._form, _cells):
            row, self.rows = self.rows, self.rows + 1
            if cells is None:
                self._lost += [(row, (), False)] * lost
                continue
            read.append(cells)
            positions.append(row)
            size += 2 * len(self.header) + sum(len(c) for c in cells.values() if type(c) is str)
            if size > _BATCH:
                yield self._batch(read, positions, places, digests=digests)
                read, positions, size = [], [], 0
        if read:
            yield self._batch(read, positions, places, digests=digests)

    def _batch(
        self,
        read: Sequence[dict[str, object]],
        positions: list[int],
        places: Sequence[int],
        *,
        digests: bool,
    ) -> Batch:
        names = [str(name) for name in self.header]
        used = sorted(names) if digests else [names[place] for place in places]
        decimal = self._form.notation.decimal
        held = {name for cells in read for name in cells}
        none = pa.nulls(len(read), pa.large_binary())
        columns = {
            name: as_column([c.get(name) for c in read], decimal) if name in held else none
            for name in used
        }
        digested = bytearray()
        if digests:  # of the record's own keys, not of those that others have
            for texts in zip(*(column.to_pylist() for column in columns.values()), strict=True):
                own = [pair for pair in zip(used, texts, strict=True) if pair[1] is not None]
                digested += row_digest(repr(own).encode())
        return Batch(
            [columns[names[place]] for place in places],
            np.array(positions, dtype=np.int64),
            np.frombuffer(bytes(digested), dtype=np.uint64),
        )


def json_table(path: Path, form: Form) -> pa.Table:
    """Return the objects of NDJSON, whole, as texts of valid JSON in one column ``json``.

    Neither the columns nor the type of one depend on the records.
    """
    texts = [text for text in _objects(path, form, _compact) if text is not None]
    return pa.table({"json": pa.array(texts, pa.large_utf8())})


def _objects(
    path: Path, form: Form, of: Callable[[dict[str, Any]], _Read]
) -> Iterator[_Read | None]:
    """Yield ``of`` the object of each non-blank line; None for a line that is none."""
    try:
        with path.open("rb") as file:
            lines = LinesRead(file, form.encoding)
            while (line := lines.next()) is not None:
                if line.content.strip():
                    yield _object(line.content, of)
    except OSError:
        raise DataError(
            "the table is not there or cannot be read; check its path and its permissions"
        ) from None


def _object(line: bytes, of: Callable[[dict[str, Any]], _Read]) -> _Read | None:
    try:
        read = _DECODER.decode(line.decode())
        return of(read) if isinstance(read, dict) and len(read) <= _MOST_KEYS else None
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested too deeply
        return None


def _cells(read: dict[str, Any]) -> dict[str, object]:
    """Return the cells of an object by column, a nested one as JSON."""
    return {
        _name(key): _compact(value) if isinstance(value, dict | list) else value
        for key, value in read.items()
    }


@lru_cache(2**12)
def _name(key: str) -> str:
    return header_name(key.encode(errors="replace").decode())


def _compact(value: object) -> str:
    """Return valid JSON; half a surrogate pair becomes a question mark."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="replace").decode()


def _finite(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


_DECODER = json.JSONDecoder(
    parse_float=_finite, parse_constant=lambda name: None if name == "NaN" else name
)
"""A number that float64 does not hold stays a text; NaN is null."""
