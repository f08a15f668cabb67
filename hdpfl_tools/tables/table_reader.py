"""Columns of a table, by a schema's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.redacted import Redacted
from hdpfl_flower.data.columns import Texts
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.sources.arrow_texts import texts_in
from hdpfl_tools.tables.sources.csv_rows import AS_USUAL, Form, LostRows
from hdpfl_tools.tables.sources.header import Wanted, header_name
from hdpfl_tools.tables.sources.open_rows import open_rows


@dataclass(frozen=True, repr=False, eq=False)
class RawTable(Redacted):
    """Columns as stored in a source.

    Attributes:
        columns: those that were wanted, one length n: of the rows that could be cut into cells.
        positions: int64 ``(n,)``; the row of the file, from 0, of each; blank lines do not count.
        rows: rows in the file.
        unpaired: of the rows that could not be cut, those with other quotes than RFC 4180's.
        digests: uint64 ``(n,)``, of each row, of all its columns; None unless asked for.
        lost: the rows that could not be cut; None unless asked for.
        withdrawn: units that were left out, with all of their rows, as withdrawn.
    """

    columns: Mapping[Wanted, Texts]
    positions: npt.NDArray[np.int64]
    rows: int
    unpaired: int = 0
    digests: npt.NDArray[np.uint64] | None = None
    lost: LostRows | None = None
    withdrawn: int = 0


def load_table(
    path: Path,
    file_format: str,
    wanted: Sequence[Wanted],
    form: Form = AS_USUAL,
    *,
    digests: bool = False,
    lost: bool = False,
) -> RawTable:
    """Return columns ``wanted`` of the file at ``path``.

    Args:
        path: the file.
        file_format: as ``open_rows`` takes it.
        wanted: the columns.
        form: of the texts.
        digests: whether rows are digested, too.
        lost: whether rows that cannot be cut are kept, too.

    Raises:
        DataError: the file is missing, of another kind, or lacks one of the columns.
    """
    rows = open_rows(path, file_format, form, wanted)
    there = [column for column in wanted if not column.absent]
    places = chosen(rows.header, there)
    used = list(dict.fromkeys(places))
    parts: list[list[Any]] = [[] for _ in used]
    positions, digested = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for batch in rows.batches(used, digests=digests, lost=lost):
        for part, column in zip(parts, batch.columns, strict=True):
            part.append(column)
        positions.append(batch.positions)
        digested.append(batch.digests)
    content = dict(zip(used, map(texts_in, parts), strict=True))
    count = sum(map(len, positions))
    none = Texts((b"",), np.zeros(count, np.int64), np.ones(count, dtype=bool))
    place_of = dict(zip(there, places, strict=True))
    return RawTable(
        {column: none if column.absent else content[place_of[column]] for column in wanted},
        np.concatenate(positions),
        rows.rows,
        rows.unpaired,
        np.concatenate(digested) if digests else None,
        rows.uncut.lost(place_of, len(rows.header)) if lost else None,
    )


def chosen(names: Sequence[bytes | str], wanted: Sequence[Wanted]) -> list[int]:
    """Return each wanted column's place in the header ``names``; errors name no other column.

    Raises:
        DataError: the header lacks one of them, or has it twice.
    """
    header = [header_name(name) for name in names]
    places = [
        [place for place, name in enumerate(header) if name in {*map(header_name, column.names)}]
        for column in wanted
    ]
    absent = [column.said for column, matching in zip(wanted, places, strict=True) if not matching]
    if absent:
        listed = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
        raise DataError(
            f"the table has no column {listed} of the schema; name it in the header (the first "
            "line, read in 'data.encoding'), or set name = … in [data.columns.NAME] of the "
            "profile; if this site does not have the column, set absent = true there"
        )
    for column, matching in zip(wanted, places, strict=True):
        if len(matching) > 1:
            raise DataError(
                f"the table has column {column.said} twice, or under two of its names; remove or "
                "rename one of them, or name one in 'data.columns' of the profile"
            )
    return [matching[0] for matching in places]
