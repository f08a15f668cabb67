"""``hdpfl-site schema draft``: a schema proposed from a site's own CSV, without a value of it.

The file is to become public terms. It holds the names of columns (the header) and a type each;
bounds, categories and classes are ``TO_CHOOSE``, for a minimum or a category that only one patient
has would be a release without noise. What the records hold is shown on the site's screen alone.
Only commands of the site import this file (``tests/hdpfl_flower/data/test_site_check.py``).
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.columns import (
    BLANK,
    PLAIN,
    GatheredTexts,
    Mask,
    Notation,
    Texts,
    days_in,
    value_key,
)
from hdpfl_flower.data.placeholders import TO_CHOOSE
from hdpfl_flower.data.schema import MAX_FEATURES
from hdpfl_flower.data.table_reader import DELIMITERS, Form, Redacted, cut, lines_of
from hdpfl_flower.errors import DataError

READ = 200_000
"""Records that a draft reads at most: types show early, and memory stays bounded."""
_NOTATIONS = (PLAIN, Notation(","), Notation(",", "."), Notation(".", ","), Notation(".", "'"))
_DATES = tuple(
    f"{day}{time}"
    for day in ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y%m%d")
    for time in ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S")
)
_OF_SCHEMA = ("", "?", "NA")
_MARKS = (
    "N/A", "n/a", "#N/A", "#NV", "NULL", "null", "NaN", "nan", "None", "none", "-", "--", ".",
    "k.A.", "k. A.", "n.b.", "n. b.", "unbekannt", "unknown", "missing", "fehlt",
)  # fmt: skip
"""Marks of a missing value that exports use; proposed for the profile where they occur."""
_READABLE = 0.8
_CODES, _WORDS = 10, 20
"""Most different whole numbers, and texts, that are taken for codes and not for a measurement."""
_SHOWN, _LONGEST = 10, 30

Kind = Literal["number", "category", "date", "left out"]


@dataclass(frozen=True, repr=False)
class Draft(Redacted):
    """A proposal.

    Attributes:
        text: TOML; made of the header and of each column's kind alone.
        profile: lines for the site's profile: how its table is written. Private.
        notes: what the records hold, a line a column. Private: for the screen alone.
    """

    text: str
    profile: str
    notes: tuple[str, ...]


@dataclass(frozen=True, repr=False, eq=False)
class _Seen(Redacted):
    """What a column was taken for; ``formats`` are its dates', ``note`` is for the screen."""

    name: str
    kind: Kind
    note: str
    formats: tuple[str, ...] = ()


def draft_schema(path: Path, label: str = "", unit: str = "") -> Draft:
    """Return a schema proposed for the CSV at ``path``.

    Args:
        path: the file; encoding, delimiter and notation are found.
        label: name of the column to predict; empty: still to be chosen.
        unit: name of the column of the protected unit; empty: none.

    Raises:
        DataError: the file cannot be read, is no table with a header, or lacks a column named.

    Guarantees:
        ``text`` is a function of the header, of ``label``, ``unit`` and of the kinds of columns:
        no other content of a record is in it.
    """
    form = Form(_encoding(path))
    lines = lines_of(path, form)
    header = next(lines, b"")
    if not header:
        raise DataError("the table is empty; its first line must be a header of names")
    form = replace(
        form, delimiter=max(DELIMITERS, key=lambda mark: len(cut(header, mark))).decode()
    )
    names = _names(cut(header, form.delimiter.encode()), label, unit)
    columns, rows, more = _gathered(lines, form, len(names))
    found = {value for texts in columns for value in texts.values}
    marks = [mark for mark in _MARKS if mark.encode() in found]
    form = replace(form, notation=_notation(columns))
    known = {value_key(mark) for mark in (*_OF_SCHEMA, *marks)}
    seen = [
        _kind_of(name, texts, _present(texts, known), form.notation)
        if name != unit
        else _Seen(name, "left out", f"'{name}': the protected unit")
        for name, texts in zip(names, columns, strict=True)
    ]
    if label and not _present(columns[names.index(label)], known).any():
        raise DataError(
            f"column '{label}', which --label names, is missing in every record; name another, or "
            "export it"
        )
    return Draft(
        _as_toml(seen, label, unit),
        _as_profile(path, form, marks, seen, unit),
        (f"{rows} records read{', the first ones alone' if more else ''}", *(c.note for c in seen)),
    )


def _encoding(path: Path) -> str:
    """Return the encoding of a file: UTF-16 by its mark, UTF-8 where all of it is, or cp1252."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                return "utf-16"
            file.seek(0)
            while chunk := file.read(2**20):
                decoder.decode(chunk)
    except UnicodeDecodeError:
        return "cp1252"
    except OSError:
        raise DataError(f"{path} is not there or cannot be read; name a CSV file") from None
    return "utf-8"


def _names(cells: Sequence[bytes], label: str, unit: str) -> list[str]:
    """Return the names in the header; raises ``DataError`` where it is none, without its cells."""
    if len(cells) < 2:
        raise DataError(
            "no delimiter is found in the first line; the table needs a header, with commas, "
            "semicolons, tabs or bars between the names"
        )
    names = [cell.decode(errors="replace").strip(BLANK) for cell in cells]
    for number, name in enumerate(names, 1):
        if isinstance(value_key(name), float) or _is_number_or_date(name.encode()):
            raise DataError(
                f"cell {number} of the first line is a number or a date: the line looks like a "
                "record; write a header of names above it"
            )
        if not name or not name.isprintable() or TO_CHOOSE in name:
            raise DataError(
                f"cell {number} of the first line is empty or no plain text; name the column"
            )
        if names.count(name) > 1:
            raise DataError(f"cell {number} of the first line names a column twice; rename one")
    for option, name in (("--label", label), ("--id", unit)):
        if name and name not in names:
            raise DataError(f"the table has no column '{name}', which {option} names")
    if label and label == unit:
        raise DataError("--label and --id name the same column; name two")
    return names


def _is_number_or_date(text: bytes) -> bool:
    numbers = any(np.isfinite(notation.number_in(text)) for notation in _NOTATIONS)
    return numbers or bool(np.isfinite(days_in(text, _DATES)))


def _gathered(lines: Iterator[bytes], form: Form, width: int) -> tuple[list[Texts], int, bool]:
    """Return the columns of the first records, their number, and whether there are more."""
    gathered, rows = [GatheredTexts() for _ in range(width)], 0
    for line in islice(lines, READ):
        cells = cut(line, form.delimiter.encode())
        if len(cells) == width:
            rows += 1
            for column, cell in zip(gathered, cells, strict=True):
                column.add(cell)
    if not rows:
        raise DataError("the table has no record that can be cut into the cells of its header")
    return [column.texts() for column in gathered], rows, next(lines, None) is not None


def _notation(columns: Sequence[Texts]) -> Notation:
    """Return the notation in which most cells are numbers; of equal ones the first."""

    def readable(notation: Notation) -> int:
        return sum(int(np.isfinite(column.numbers(notation)).sum()) for column in columns)

    return max(_NOTATIONS, key=readable)


def _present(texts: Texts, marks: set[float | bytes]) -> Mask:
    """Return which rows hold something, shape ``(n,)``."""
    held = [value_key(text.decode(errors="replace")) not in marks for text in texts.values]
    return np.array(held, dtype=bool)[texts.rows]


def _kind_of(name: str, texts: Texts, held: Mask, notation: Notation) -> _Seen:
    """Return what the column is taken for."""
    count = int(held.sum())
    said = f"'{name}': "
    if not count:
        return _Seen(name, "left out", f"{said}left out, every cell is missing")
    numbers = texts.numbers(notation)[held]
    formats = _formats(texts, held)
    is_number = np.isfinite(numbers)
    share = f"{count} of {len(held)} hold something"
    # A date such as 20240131 is a number, too.
    if formats:
        return _Seen(name, "date", f"{said}date, {share}: {', '.join(formats)}", formats)
    if is_number.sum() >= _READABLE * count:
        return _numeric(name, numbers[is_number], f"{share}, {count - int(is_number.sum())} of "
                        "them no number", _most_frequent(texts, held))  # fmt: skip
    different = len(np.unique(texts.rows[held]))
    if different <= _WORDS and (2 * different <= count or different <= 2):
        return _Seen(name, "category", f"{said}category, {share}: {_most_frequent(texts, held)}")
    return _Seen(
        name, "left out", f"{said}left out, {different} different texts: free text, or an id (--id)"
    )


def _numeric(name: str, numbers: npt.NDArray[np.float64], share: str, values: str) -> _Seen:
    """Return what a column of ``numbers`` (n,) is taken for: codes, an id, or a measurement."""
    different = np.unique(numbers)
    whole = bool((different == np.floor(different)).all())
    said = f"'{name}': "
    if whole and len(different) <= _CODES:
        return _Seen(name, "category", f"{said}category of codes, {share}: {values}")
    if whole and len(different) == len(numbers) and len(numbers) > _WORDS:
        return _Seen(name, "left out", f"{said}left out, every number is another: an id (--id)?")
    low, high = f"{different[0]:g}", f"{different[-1]:g}"
    return _Seen(name, "number", f"{said}number, {share}, from {low} to {high}")


def _formats(texts: Texts, held: Mask) -> tuple[str, ...]:
    """Return the formats of dates that read most cells; none where too few are dates."""
    used = np.unique(texts.rows[held])
    counts = np.bincount(texts.rows[held], minlength=len(texts.values))
    # The different texts of a sample: which form is seen at once, and time stays bounded.
    values = {texts.values[at]: int(counts[at]) for at in used[:1000]}
    # Every format begins with a digit: most columns are no dates at the first look.
    if sum(count for value, count in values.items() if value[:1].isdigit()) < _READABLE * sum(
        values.values()
    ):
        return ()
    left, found = dict(values), []
    while left:
        read = {
            each: [value for value in left if np.isfinite(days_in(value, (each,)))]
            for each in _DATES
        }
        best = max(_DATES, key=lambda each: sum(values[value] for value in read[each]))
        if sum(values[value] for value in read[best]) < 0.05 * sum(values.values()):
            break
        found.append(best)
        left = {value: count for value, count in left.items() if value not in read[best]}
    dated = sum(values.values()) - sum(left.values())
    return tuple(found) if dated >= _READABLE * sum(values.values()) else ()


def _most_frequent(texts: Texts, held: Mask) -> str:
    """Return the most frequent texts and their counts, for the screen."""
    counts = np.bincount(texts.rows[held], minlength=len(texts.values))
    order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())]
    shown = [
        f"'{texts.values[at].decode(errors='replace')[:_LONGEST]}' {counts[at]}"
        for at in order[:_SHOWN]
    ]
    return ", ".join(shown) + (", …" if len(order) > _SHOWN else "")


_HEAD = f"""\
# Drafted by 'hdpfl-site schema draft': names and types of columns, and no value of a record.
# Replace every "{TO_CHOOSE}" by what is known in public: a guideline, a codebook, the range that is
# possible at all. NEVER by what the records hold: every site and the server get this file, and ε
# does not cover it. Remove the columns that the run does not need. Comments are sent, too.
"""


def _as_toml(seen: Sequence[_Seen], label: str, unit: str) -> str:
    """Return the schema; of what was seen it holds names and kinds alone."""
    some, one = f'["{TO_CHOOSE}", "{TO_CHOOSE}"]', f'["{TO_CHOOSE}"]'
    parts = [_HEAD, f"id = {_text(unit)}\n" if unit else "", f"missing = {_texts(_OF_SCHEMA)}\n"]
    kinds = {column.name: column.kind for column in seen}
    parts.append(f"\n[label]\ncolumn = {_text(label or TO_CHOOSE)}\n")
    if kinds.get(label) == "number":
        parts.append(f"bounds = {some}  # low, high\n")
    else:
        parts.append(f"classes = [{one}, {one}]  # a class: the values that mean it\n")
    used = [c for c in seen if c.kind != "left out" and c.name not in (label, unit)]
    if len(used) > MAX_FEATURES:
        raise DataError(f"the table has more than {MAX_FEATURES} columns; export fewer")
    for column in used:
        parts.append(f"\n[[columns]]\nname = {_text(column.name)}\n")
        if column.kind == "category":
            parts.append(f'type = "category"\ncategories = {one}  # a list in it: synonyms\n')
        else:
            is_date = column.kind == "date"
            unit_of = "years or days: dates become them by each site's profile" if is_date else ""
            parts.append(
                f'type = "number"\nbounds = {some}  # {unit_of or "low, high; which unit?"}\n'
            )
    return "".join(parts)


def _as_profile(
    path: Path, form: Form, marks: Sequence[str], seen: Sequence[_Seen], unit: str
) -> str:
    """Return the lines of the profile that make the table readable."""
    lines = ["[data]", 'format = "csv"', f"path = {_text(str(path))}"]
    lines += [f"id = {_text(unit)}"] if unit else []
    lines += [f"encoding = {_text(form.encoding)}"] if form.encoding != "utf-8" else []
    lines.append(f"delimiter = {_text(form.delimiter)}")
    if form.notation != PLAIN:
        lines.append(f"decimal = {_text(form.notation.decimal)}")
    if form.notation.thousands:
        lines.append(f"thousands = {_text(form.notation.thousands)}")
    lines += [f"missing = {_texts(marks)}"] if marks else []
    every = [each for column in seen for each in column.formats]
    for column in seen:
        if column.kind == "date" and column.name != unit:
            # Those of the others, too: one of them may become the reference.
            formats = list(dict.fromkeys((*column.formats, *every)))
            lines += [
                f"[data.columns.{_text(column.name)}]",
                'to = "age"  # or "days"',
                f"date-formats = {_texts(formats)}",
                f'reference = "{TO_CHOOSE}"  # a date, or another column of dates',
            ]
    return "\n".join(lines)


def _text(value: str) -> str:
    """Return ``value`` as TOML writes it: JSON's escapes are TOML's."""
    return json.dumps(value, ensure_ascii=False)


def _texts(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"
