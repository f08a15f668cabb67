"""Schema proposed from a site's own CSV, without its values.

The command ``hdpfl-site schema --to``.

The file is to become public terms. It holds the names of columns (the header) and their types;
bounds, categories and classes are ``TO_CHOOSE``, since a minimum or a category of one patient alone
would be a release without noise. The content of the records is shown only on the site's screen.
Only commands of the site import this file (``tests/hdpfl_tools/tables/test_site_check.py``).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.data_source import OwnColumn
from hdpfl_flower.config.redacted import Redacted
from hdpfl_flower.config.toml_text import as_toml
from hdpfl_flower.data.columns import BLANK_BYTES, PLAIN, Mask, Notation, Texts
from hdpfl_flower.data.placeholders import TO_CHOOSE
from hdpfl_flower.data.schema import MAX_FEATURES
from hdpfl_flower.data.values import value_key
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.screen.column_kinds import ColumnKind, kind_of
from hdpfl_tools.tables.screen.losses import Labels, loss_of_rows
from hdpfl_tools.tables.screen.lost_rows import (
    LostRow,
    causes,
    lost_labels,
    lost_rows,
    one_cell_longer,
)
from hdpfl_tools.tables.screen.notations import notation_of
from hdpfl_tools.tables.screen.repeats import about_placeholder, about_repeats
from hdpfl_tools.tables.sources.arrow_texts import texts_in
from hdpfl_tools.tables.sources.csv_rows import AS_USUAL, CsvRows, Form
from hdpfl_tools.tables.sources.date_forms import CENTURY
from hdpfl_tools.tables.sources.file_kinds import kind_of_file, opened_text
from hdpfl_tools.tables.sources.header import Wanted, header_name, is_number_or_date
from hdpfl_tools.tables.sources.open_rows import Rows, open_rows

READ = 200_000
"""Maximum number of records read for a draft, to bound memory."""
_OF_SCHEMA = ("", "?", "NA")
_MARKS = (  # noqa: SIM905 - a list of them would be a page
    "N/A|n/a|NA|na|N.A.|n.a.|#N/A|#NV|NULL|null|Null|NaN|nan|NAN|-nan|NaT|<NA>|<na>|None|none|NONE"
    "|\\N|(null)|(NULL)|[NULL]|[null]|<null>|<NULL>|NIL|nil|Nil|#DIV/0!|#VALUE!|#REF!|#NUM!|#NAME?"
    "|#NULL!|1.#QNAN|1.#IND|-1.#IND|-|--|---|.|..|...|\u2014|?|??|n.d.|ND|UNK|k.A.|k. A.|n.b.|n. b."
    "|unbekannt|Unbekannt|unknown|Unknown|UNKNOWN|missing|Missing|MISSING|fehlt"
).split("|")
"""Export marks of missing values, proposed for the profile where found."""
_WORDS = frozenset(
    ("None", "none", "NONE", "unbekannt", "Unbekannt", "unknown", "Unknown", "UNKNOWN", "missing",
     "Missing", "MISSING", "UNK", "ND", "nil", "Nil", "NIL", "na", "-", "--")
)  # fmt: skip
"""Those of them that may be a category: of a column where they are rare, or numbers are not."""
_RARE = 0.05
_LABELS = 10
"""Maximum distinct labels by which losses are shown."""
_YEAR = re.compile("(19|20)[0-9]{2}")


@dataclass(frozen=True, repr=False)
class Draft(Redacted):
    """Schema proposal.

    Attributes:
        text: TOML; made only of the header and each column's kind.
        profile: lines for the site's profile: how its table is written. Private.
        notes: content of the records, one line per column. Private: only for the screen.
        names: of the header's columns. Private.
    """

    text: str
    profile: str
    notes: tuple[str, ...]
    names: tuple[str, ...]


def draft_schema(path: Path, label: str = "", unit: str = "", form: Form = AS_USUAL) -> Draft:
    """Return a schema proposed for the table at ``path``.

    Args:
        path: the file; encoding, delimiter and notation are found.
        label: name of the column to predict; empty: still to be chosen.
        unit: name of the column of the protected unit; empty: none.
        form: of the table, where it is not to be found.

    Raises:
        DataError: the file cannot be read, is no table with a header, or lacks a column named.

    Guarantees:
        ``text`` is a function of the header, of ``label``, ``unit`` and of the kinds of columns:
        no other content of a record is in it.
    """
    form = replace(form, encoding=_encoding(path))
    rows_read = open_rows(path, "table", form)
    header, titles = rows_read.header, rows_read.titles
    for number, cell in enumerate(header, 1):
        _check_no_record(number, header_name(cell), None)
    if isinstance(rows_read, CsvRows):
        form = replace(form, delimiter=rows_read.delimiter.decode("latin-1"))
    columns, rows, more, lost = _gathered(rows_read)
    names, notes = _names(header, columns, label, unit)
    notation, ambiguous = notation_of(columns)
    form = replace(form, notation=notation)
    marks = _missing_marks(columns, form.notation)
    missing = {value_key(mark) for mark in (*_OF_SCHEMA, *marks)}
    labels = None
    if label:
        held = _present(columns[names.index(label)], missing)
        if not held.any():
            raise DataError(
                f"column '{label}', which --label names, is missing in every record; name another "
                "column, or export this one"
            )
        labels = _labels(columns[names.index(label)], held, lost, names.index(label))
    seen = [
        ColumnKind(name, "left out", f"'{name}': the protected unit")
        if name == unit
        else kind_of(
            name,
            texts,
            _present(texts, missing),
            form.notation,
            None if name == label else labels,
        )
        for name, texts in zip(names, columns, strict=True)
        if name
    ]
    first = f"{rows} records read{', only the first ones' if more else ''}"
    notes = [*_about_table(names, columns, unit, ambiguous, titles), *notes]
    return Draft(
        _schema_text(seen, label, unit),
        _as_profile(path, form, marks, seen, unit) + (f"\n# {ambiguous}" if ambiguous else ""),
        (first, *_losses(rows, lost, seen, labels), *notes),
        tuple(filter(None, names)),
    )


def _about_table(
    names: Sequence[str], columns: Sequence[Texts], unit: str, ambiguous: str, titles: int
) -> Iterator[str]:
    """Yield notes on the whole table."""
    if titles:
        yield f"{titles} lines before the header are skipped"
    if ambiguous:
        yield f"warning: {ambiguous}"
    if unit:
        ids = columns[names.index(unit)].ids()
        yield from about_placeholder([text for text in ids if text], "data.missing")
    else:
        named = {name: texts for name, texts in zip(names, columns, strict=True) if name}
        yield from about_repeats(named, ())


def _losses(
    rows: int, lost: Sequence[LostRow], seen: Sequence[ColumnKind], labels: Labels | None
) -> Iterator[str]:
    """Yield the losses, and a line for each column."""
    tests = len(seen) + 1
    of_rows = loss_of_rows(rows, len(lost), labels)
    cells = [sum(getattr(column.lost, name) for column in seen) for name in ("lost", "held")]
    yield f"lost: {len(lost)} of {of_rows.held} records, {cells[0]} of {cells[1]} cells"
    if lost:
        yield (
            f"{of_rows.level(tests)}{len(lost)} records cannot be cut into the cells of the "
            f"header: {causes(lost)}{of_rows.in_words(tests)}"
        )
    for column in seen:
        how = f"; not read{column.lost.in_words(tests)}" if column.lost.lost else ""
        yield f"{column.lost.level(tests)}{column.note}{how}"


def _labels(texts: Texts, held: Mask, lost: Sequence[LostRow], place: int) -> Labels | None:
    """Return the labels by their texts; None for more than a few."""
    names = [texts.values[row] for row in np.unique(texts.rows[held])]
    if len(names) > _LABELS:
        return None
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    rows = np.where(held, texts.lookup(numbers), -1)
    of_lost = lost_labels(lost, place, lambda written: Texts.of(written).lookup(numbers))
    return Labels(tuple(name.decode(errors="replace") for name in numbers), rows, of_lost)


def _missing_marks(columns: Sequence[Texts], notation: Notation) -> list[str]:
    """Return marks of missing that are no category."""
    is_mark: dict[str, bool] = {}
    for texts in columns:
        counts = np.bincount(texts.rows, minlength=len(texts.values))
        numeric = float(np.isfinite(texts.numbers(notation)).mean())
        for mark in _MARKS:
            written = [text == mark.encode() for text in texts.values]
            count = int(counts[written].sum())
            is_word = mark in _WORDS and count > _RARE * len(texts.rows) > numeric * len(texts.rows)
            if count:
                is_mark[mark] = is_mark.get(mark, True) and not is_word
    return [mark for mark in _MARKS if is_mark.get(mark)]


def _encoding(path: Path) -> str:
    """Return the encoding of a CSV: valid UTF-8, else cp1252."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        if kind_of_file(path) not in ("csv", "gzip", "zip"):
            return "utf-8"
        with opened_text(path) as file:
            while chunk := file.read(2**20):
                decoder.decode(chunk)
    except UnicodeDecodeError:
        return "cp1252"
    except OSError:
        raise DataError(f"{path} is not there or cannot be read; name a CSV file") from None
    return "utf-8"


def _names(
    cells: Sequence[bytes | str], columns: Sequence[Texts], label: str, unit: str
) -> tuple[list[str], list[str]]:
    """Return names, empty where left out, and notes.

    Raises:
        DataError: without quoting a cell: the line may be a record.
    """
    if len(cells) < 2:
        raise DataError(
            "the first line holds no known delimiter; the table needs a header with commas, "
            "semicolons, tabs, bars or ^ between the names; name another delimiter with "
            "--delimiter. If several blanks separate the columns, first replace them: tr -s ' ' "
            "','"
        )
    names = [*map(header_name, cells)]
    used, notes = [*names], []
    for place, (name, texts) in enumerate(zip(names, columns, strict=True)):
        is_first = not any(names[:place])  # an index, or one of an index: written twice
        if not name and ((is_first and _is_index(texts)) or not any(texts.values)):
            notes.append(f"cell {place + 1} of the header is empty: its column is left out")
            continue
        _check_name(place + 1, name, texts)
        if names.count(name) > 1:
            if name in (label, unit) or not {*names} - {name, ""}:
                raise DataError(
                    f"cell {place + 1} of the first line names a column twice; rename one"
                )
            used[place] = ""
            notes.append(f"'{name}': left out, because more than one column has this name")
        elif isinstance(cell := cells[place], bytes) and name.encode() != cell.strip(BLANK_BYTES):
            notes.append(
                f"'{name}': the header writes this name with other blanks, quotes or line breaks"
            )
    for option, name in (("--label", label), ("--id", unit)):
        if name and name not in used:
            raise DataError(f"the table has no column '{name}', which {option} names")
    if label and label == unit:
        raise DataError("--label and --id name the same column; name two")
    return used, notes


def _check_no_record(number: int, name: str, texts: Texts | None) -> None:
    """Refuse numbers and dates as names, but years above other ``texts``."""
    if is_number_or_date(name) and not _is_year(name, texts):
        raise DataError(
            f"cell {number} of the first line is a number or a date: the line looks like a "
            "record; write a header with names above it"
        )


def _check_name(number: int, name: str, texts: Texts) -> None:
    """Refuse a name that looks like the cell of a record."""
    _check_no_record(number, name, texts)
    if not name or not name.isprintable() or TO_CHOOSE in name:
        raise DataError(
            f"cell {number} of the first line is empty or no plain text; name the column"
        )


def _is_index(texts: Texts) -> bool:
    """Return whether each row has another text: an index."""
    return len(texts.values) == len(texts.rows)


def _is_year(name: str, texts: Texts | None) -> bool:
    """Return whether a name is a year, above a column of something else."""
    if texts is None:
        return bool(_YEAR.fullmatch(name))
    years = [bool(_YEAR.fullmatch(text.decode(errors="replace"))) for text in texts.values]
    return bool(_YEAR.fullmatch(name)) and 2 * sum(years) < len(years)


def _gathered(rows: Rows) -> tuple[list[Texts], int, bool, list[LostRow]]:
    """Return columns, rows, whether more follow, and lost rows."""
    places, count = [*range(len(rows.header))], 0
    parts: list[list[Any]] = [[] for _ in places]
    batches = rows.batches(places, lost=True)
    for batch in batches:
        taken = min(len(batch.positions), READ - count)
        count += taken
        for part, column in zip(parts, batch.columns, strict=True):
            part.append(column[:taken])
        if count == READ:
            break
    every = {Wanted((), str(place)): place for place in places}
    lost = lost_rows(rows.uncut.lost(every, len(places)))
    if not count:
        longer = bool(lost) and {row.missing for row in lost} == {-1}
        raise DataError(
            "the table has no record that can be cut into the cells of its header"
            + (f": {one_cell_longer(lost)}" if longer else "")
        )
    columns = [*map(texts_in, parts)]
    return columns, count, rows.rows > count + len(lost) or next(batches, None) is not None, lost


def _present(texts: Texts, marks: set[float | bytes]) -> Mask:
    """Return a mask of rows that are not missing, shape ``(n,)``."""
    held = [value_key(text.decode(errors="replace")) not in marks for text in texts.values]
    return np.array(held, dtype=bool)[texts.rows]


_HEAD = f"""\
# Drafted by 'hdpfl-site schema --to': names and types of columns, and no value of a record.
# Replace every "{TO_CHOOSE}" by what is known in public: a guideline, a codebook, or the range that
# is possible at all. NEVER use what the records hold: every site and the server get this file, and
# ε does not cover it. Remove the columns that the run does not need. Comments are sent, too.
"""


def _schema_text(seen: Sequence[ColumnKind], label: str, unit: str) -> str:
    """Return the schema as TOML, from names and kinds alone."""
    some, value = f'["{TO_CHOOSE}", "{TO_CHOOSE}"]', f'["{TO_CHOOSE}"]'
    parts = [_HEAD, f"id = {as_toml(unit)}\n" if unit else "", f"missing = {_texts(_OF_SCHEMA)}\n"]
    kinds = {column.name: column.kind for column in seen}
    parts.append(f"\n[label]\ncolumn = {as_toml(label or TO_CHOOSE)}\n")
    if kinds.get(label) == "number":
        parts.append(f"bounds = {some}  # low, high\n")
    else:
        parts.append(f"classes = [{value}, {value}]  # a class: the values that mean it\n")
    used = [c for c in seen if c.kind != "left out" and c.name not in (label, unit)]
    if len(used) > MAX_FEATURES:
        raise DataError(f"the table has more than {MAX_FEATURES} columns; export fewer")
    for column in used:
        parts.append(f"\n[[columns]]\nname = {as_toml(column.name)}\n")
        if column.kind == "category":
            parts.append(f'type = "category"\ncategories = {value}  # a list in it: synonyms\n')
        else:
            is_date = column.kind == "date"
            unit_of = "years or days: dates become them by each site's profile" if is_date else ""
            parts.append(
                f'type = "number"\nbounds = {some}  # {unit_of or "low, high; which unit?"}\n'
                "# typical = [mean, deviation]  # is one known in public? It gains accuracy\n"
            )
    return "".join(parts)


def _as_profile(
    path: Path, form: Form, marks: Sequence[str], seen: Sequence[ColumnKind], unit: str
) -> str:
    """Return profile lines that make the table readable."""
    lines = ["[data]", f"path = {as_toml(str(path))}"]
    lines += [f"id = {as_toml(unit)}"] if unit else []
    lines += [f"encoding = {as_toml(form.encoding)}"] if form.encoding != "utf-8" else []
    lines += [f"delimiter = {as_toml(form.delimiter)}"] if form.delimiter else []
    for key in ("sheet", "select", "skip"):
        lines += [f"{key} = {as_toml(value)}"] if (value := getattr(form, key)) else []
    if form.notation != PLAIN:
        lines.append(f"decimal = {as_toml(form.notation.decimal)}")
    if form.notation.thousands:
        lines.append(f"thousands = {as_toml(form.notation.thousands)}")
    lines += [f"missing = {_texts(marks)}"] if marks else []
    every = [layout for column in seen for layout in column.formats]
    for column in seen:
        if column.as_written.is_marked and column.kind == "number":
            lines += [f"[data.columns.{as_toml(column.name)}]", *_marks_of(column.as_written)]
        if column.kind == "date" and column.name != unit:
            # Formats of the other columns too: one of them may become the reference.
            formats = list(dict.fromkeys((*column.formats, *every)))
            century = [f"century-from = {CENTURY}  # choose: the first of a hundred years for %y"]
            century = century if any("%y" in layout for layout in formats) else []
            lines += [
                f"[data.columns.{as_toml(column.name)}]",
                'to = "age"  # or "days"',
                f"date-formats = {_texts(formats)}",
                *century,
                f'reference = "{TO_CHOOSE}"  # a date, or another column of dates',
            ]
    return "\n".join(lines)


def _marks_of(written: OwnColumn) -> Iterator[str]:
    """Yield the keys of a column's marks."""
    if written.strip:
        yield f"strip = {_texts(written.strip)}"
    if written.units:
        is_open = any(map(np.isnan, written.units.values()))
        factors = (f"{as_toml(unit)} = {1 if is_open else x}" for unit, x in written.units.items())
        note = "# choose, then remove the first sign: " if is_open else ""
        yield f"{note}units = {{ {', '.join(factors)} }}"
    if written.trailing_minus:
        yield "trailing-minus = true"
    if written.below_limit:
        yield 'below-limit = "half"  # or "limit"'


def _texts(values: Sequence[str]) -> str:
    return f"[{', '.join(map(as_toml, values))}]"
