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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from hdpfl_flower.config.toml_text import as_toml
from hdpfl_flower.data.columns import (
    BLANK,
    PLAIN,
    GatheredTexts,
    Mask,
    Notation,
    Texts,
    value_key,
)
from hdpfl_flower.data.placeholders import TO_CHOOSE
from hdpfl_flower.data.schema import MAX_FEATURES
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.screen.column_kinds import CENTURY, ColumnKind, is_date, kind_of
from hdpfl_tools.tables.screen.losses import Labels, loss_of_rows
from hdpfl_tools.tables.screen.lost_rows import (
    LostRow,
    causes,
    lost_labels,
    lost_rows,
    one_cell_longer,
)
from hdpfl_tools.tables.table_reader import (
    DELIMITERS,
    TITLES,
    Form,
    Redacted,
    UncutRows,
    Wanted,
    cut,
    header_name,
    lines_of,
    separator_in,
)

READ = 200_000
"""Maximum number of records read for a draft, to bound memory."""
_NOTATIONS = (PLAIN, *(Notation(*marks) for marks in (",", ",.", ".,", ".'", ". ", ", ")))
_OF_SCHEMA = ("", "?", "NA")
_MARKS = (  # noqa: SIM905 - a list of them would be a page
    "N/A|n/a|#N/A|#NV|NULL|null|NaN|nan|None|none|-|--|."
    "|k.A.|k. A.|n.b.|n. b.|unbekannt|unknown|missing|fehlt"
).split("|")
"""Export marks of missing values, proposed for the profile where found."""
_WORDS = frozenset(("None", "none", "unbekannt", "unknown", "-", "--"))
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
    header, form, titles, rest = _header(lines, form)
    for number, cell in enumerate(header, 1):
        _check_no_record(number, header_name(cell), None)
    columns, rows, more, lost = _gathered(rest, form, header)
    names, notes = _names(header, columns, label, unit)
    form = replace(form, notation=_notation(columns))
    marks = _missing_marks(columns, form.notation)
    missing = {value_key(mark) for mark in (*_OF_SCHEMA, *marks)}
    labels = None
    if label:
        held = _present(columns[names.index(label)], missing)
        if not held.any():
            raise DataError(
                f"column '{label}', which --label names, is missing in every record; name another, "
                "or export it"
            )
        labels = _labels(columns[names.index(label)], held, lost, names.index(label))
    seen = []
    for name, texts in zip(names, columns, strict=True):
        if name == unit != "":
            seen.append(ColumnKind(name, "left out", f"'{name}': the protected unit"))
        elif name:
            by_label = None if name == label else labels
            held = _present(texts, missing)
            seen.append(kind_of(name, texts, held, form.notation, by_label))
    first = f"{rows} records read{', the first ones alone' if more else ''}"
    if titles:
        notes.insert(0, f"{titles} lines stand before the header, and are passed over")
    return Draft(
        _schema_text(seen, label, unit),
        _as_profile(path, form, marks, seen, unit),
        (first, *_losses(rows, lost, seen, labels), *notes),
        tuple(filter(None, names)),
    )


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


def _header(lines: Iterator[bytes], form: Form) -> tuple[list[bytes], Form, int, Iterator[bytes]]:
    """Return header, form, lines before it, and records.

    A title has at least two cells less than most lines, or one that is not empty; and two at most
    by any delimiter, as else a record could become the names.
    """
    first = [*islice(lines, 2 * TITLES)]
    mark = separator_in(first[0]) if first else b""
    first = first[1:] if mark else first
    if not first:
        raise DataError("the table is empty; its first line must be a header of names")
    headers = [
        (cut(first[0], delimiter), delimiter, 0) for delimiter in ([mark] if mark else DELIMITERS)
    ]
    is_names = any(sum(map(bool, cells)) > 2 for cells, _, _ in headers)
    for _, delimiter, _ in () if is_names else tuple(headers):
        cells = [cut(line, delimiter) for line in first]
        width, times = Counter(map(len, cells)).most_common(1)[0]
        place = next((place for place, row in enumerate(cells) if not _is_title(row, width)), 0)
        is_header = times > 2 and 0 < place < TITLES and len(cells[place]) == width
        if is_header and not any(map(_is_number_or_date, map(header_name, cells[place]))):
            headers.append((cells[place], delimiter, place))
    header, mark, titles = max(headers, key=lambda candidate: (len(candidate[0]), candidate[2]))
    return header, replace(form, delimiter=mark.decode()), titles, chain(first[titles + 1 :], lines)


def _encoding(path: Path) -> str:
    """Return the encoding: valid UTF-8, else cp1252."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                decoder.decode(chunk)
    except UnicodeDecodeError:
        return "cp1252"
    except OSError:
        raise DataError(f"{path} is not there or cannot be read; name a CSV file") from None
    return "utf-8"


def _is_title(cells: Sequence[bytes], width: int) -> bool:
    """Return whether a line is no header of ``width`` cells.

    R's header may have one cell less than its rows, which must not become names.
    """
    few = max(1, min(2, width - 3))
    return width > 2 and (len(cells) <= width - 2 or sum(map(bool, cells)) <= few)


def _names(
    cells: Sequence[bytes], columns: Sequence[Texts], label: str, unit: str
) -> tuple[list[str], list[str]]:
    """Return names, empty where left out, and notes.

    Raises:
        DataError: without quoting a cell: the line may be a record.
    """
    if len(cells) < 2:
        raise DataError(
            "no delimiter is found in the first line; the table needs a header, with commas, "
            "semicolons, tabs or bars between the names"
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
            notes.append(f"'{name}': left out, more than one column has this name")
        elif name.encode() != cells[place].strip(BLANK.encode()):
            notes.append(f"'{name}': written in the header with other blanks, quotes or lines")
    for option, name in (("--label", label), ("--id", unit)):
        if name and name not in used:
            raise DataError(f"the table has no column '{name}', which {option} names")
    if label and label == unit:
        raise DataError("--label and --id name the same column; name two")
    return used, notes


def _check_no_record(number: int, name: str, texts: Texts | None) -> None:
    """Refuse numbers and dates as names, but years above other ``texts``."""
    if _is_number_or_date(name) and not _is_year(name, texts):
        raise DataError(
            f"cell {number} of the first line is a number or a date: the line looks like a "
            "record; write a header of names above it"
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


def _is_number_or_date(name: str) -> bool:
    numbers = any(np.isfinite(notation.number_in(name.encode())) for notation in _NOTATIONS)
    return numbers or is_date(name)


def _gathered(
    lines: Iterator[bytes], form: Form, header: Sequence[bytes]
) -> tuple[list[Texts], int, bool, list[LostRow]]:
    """Return columns, rows, whether more follow, and lost rows."""
    width, delimiter, rows = len(header), form.delimiter.encode(), 0
    gathered = [GatheredTexts() for _ in header]
    least = max(
        [place + 1 for place, name in enumerate(header) if header_name(name)], default=width
    )
    uncut = UncutRows(delimiter, least)
    for number, line in enumerate(islice(lines, READ)):
        cells = cut(line, delimiter)
        if not least <= len(cells) <= width:
            uncut.add(number, line, cells)
            continue
        rows += 1
        for column, cell in zip(gathered, [*cells, *[b""] * (width - len(cells))], strict=True):
            column.add(cell)
    every = {Wanted((), str(place)): place for place in range(width)}
    lost = lost_rows(uncut.lost(every, width))
    if not rows:
        longer = bool(lost) and {row.missing for row in lost} == {-1}
        raise DataError(
            "the table has no record that can be cut into the cells of its header"
            + (f": {one_cell_longer(lost)}" if longer else "")
        )
    return [column.texts() for column in gathered], rows, next(lines, None) is not None, lost


def _notation(columns: Sequence[Texts]) -> Notation:
    """Return the notation that reads most cells as numbers, first on ties."""

    def readable(notation: Notation) -> int:
        return sum(int(np.isfinite(column.numbers(notation)).sum()) for column in columns)

    return max(_NOTATIONS, key=readable)


def _present(texts: Texts, marks: set[float | bytes]) -> Mask:
    """Return a mask of rows that are not missing, shape ``(n,)``."""
    held = [value_key(text.decode(errors="replace")) not in marks for text in texts.values]
    return np.array(held, dtype=bool)[texts.rows]


_HEAD = f"""\
# Drafted by 'hdpfl-site schema --to': names and types of columns, and no value of a record.
# Replace every "{TO_CHOOSE}" by what is known in public: a guideline, a codebook, the range that is
# possible at all. NEVER by what the records hold: every site and the server get this file, and ε
# does not cover it. Remove the columns that the run does not need. Comments are sent, too.
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
            )
    return "".join(parts)


def _as_profile(
    path: Path, form: Form, marks: Sequence[str], seen: Sequence[ColumnKind], unit: str
) -> str:
    """Return profile lines that make the table readable."""
    lines = ["[data]", 'format = "csv"', f"path = {as_toml(str(path))}"]
    lines += [f"id = {as_toml(unit)}"] if unit else []
    lines += [f"encoding = {as_toml(form.encoding)}"] if form.encoding != "utf-8" else []
    lines.append(f"delimiter = {as_toml(form.delimiter)}")
    if form.notation != PLAIN:
        lines.append(f"decimal = {as_toml(form.notation.decimal)}")
    if form.notation.thousands:
        lines.append(f"thousands = {as_toml(form.notation.thousands)}")
    lines += [f"missing = {_texts(marks)}"] if marks else []
    every = [layout for column in seen for layout in column.formats]
    for column in seen:
        if column.as_written.is_scaled and column.kind == "number":
            lines.append(f"[data.columns.{as_toml(column.name)}]")
            lines += (
                [f"strip = {_texts(column.as_written.strip)}"] if column.as_written.strip else []
            )
            lines += ['below-limit = "half"  # or "limit"'] if column.as_written.below_limit else []
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


def _texts(values: Sequence[str]) -> str:
    return f"[{', '.join(map(as_toml, values))}]"
