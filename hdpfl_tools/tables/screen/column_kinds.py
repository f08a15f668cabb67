"""Guess of a column's kind, only for the site's own screen, as ``losses.py``."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.data_source import OwnColumn
from hdpfl_flower.config.redacted import Redacted
from hdpfl_flower.data.columns import Mask, Notation, Texts, days_in
from hdpfl_tools.tables.own_table import marked_number
from hdpfl_tools.tables.screen.cell_forms import (
    chapters_of_icd,
    factors_of_ages,
    forms_in,
    in_words,
    units_in,
)
from hdpfl_tools.tables.screen.losses import Labels, Loss, counted, loss
from hdpfl_tools.tables.sources.date_forms import CENTURY, DATES, FORMS, PARTIAL_DATES, read_by

_BEGIN = re.compile("[0-9]|[A-Za-z]{3} [0-9]")
_READABLE = 0.8
_CODES, _WORDS = 10, 20
"""Maximum distinct whole numbers, and texts, taken for categories."""
_MOST_TEXTS = 1000
_CODE = re.compile(r"-?(9+|8+|7+)(\.0*)?")
_SERIAL = (14_611, 54_789)
"""Excel's days of 1940-01-01 and 2050-01-01."""
_LIMIT = re.compile("^(<=?|>=?|\u2264|\u2265) *")
_MINUS = re.compile("[0-9][0-9.,' ]*-")
_UNIT = 0.05
"""Share of a column's cells from which a mark is a unit, and no error."""

Kind = Literal["number", "category", "date", "left out"]


@dataclass(frozen=True, repr=False, eq=False)
class ColumnKind(Redacted):
    """Guessed kind of a column, for the screen.

    Attributes:
        name: of the header.
        kind: the guess.
        note: content of the column.
        formats: of its dates.
        as_written: marks of its numbers.
        lost: cells that hold something and cannot be read so.
    """

    name: str
    kind: Kind
    note: str
    formats: tuple[str, ...] = ()
    as_written: OwnColumn = field(default_factory=OwnColumn)
    lost: Loss = field(default_factory=lambda: Loss(0, 0))


def kind_of(
    name: str, texts: Texts, held: Mask, notation: Notation, labels: Labels | None
) -> ColumnKind:
    """Return the guessed kind of a column.

    Args:
        name: of the header.
        texts: its cells.
        held: which are not missing, shape ``(n,)``.
        notation: of numbers.
        labels: of the rows; None: losses are not shown by label.
    """
    count = int(held.sum())
    said = f"'{name}': "
    if not count:
        return ColumnKind(name, "left out", f"{said}left out, because every cell is missing")
    share = f"{count} of {len(held)} hold something"
    # Dates first: 20240131 is also a number.
    if formats := _formats(texts, held):
        read = np.isfinite(texts.days(formats, CENTURY))
        lost = _lost(texts, held & ~read, held, labels)
        note = f"{said}date, {share}: {', '.join(formats)}{_two_orders(texts, held, formats)}"
        return ColumnKind(name, "date", note, formats, lost=lost)
    written, numbers, units = _as_numbers(texts, held, notation)
    is_number = np.isfinite(numbers) & held
    if is_number.sum() >= _READABLE * count:
        lost = _lost(texts, held & ~is_number, held, labels)
        share += f", {lost.lost} of them no number"
        kind, note = _numeric(numbers[is_number], share, most_frequent(texts, held))
        if written.is_marked and kind != "number":  # with a unit they are no codes and no ids
            kind, note = "number", f"number, {share}"
        marked = held & is_number & ~np.isfinite(texts.numbers(notation))
        if marked.any():
            note += f"; {int(marked.sum())} with marks: {most_frequent(texts, marked)}{units}"
        return ColumnKind(name, kind, said + note, as_written=written, lost=lost)
    if units:
        return ColumnKind(name, "number", f"{said}number, {share}{units}", as_written=written)
    different, texts_held = len(np.unique(texts.rows[held])), counted(texts, held)
    if different <= _WORDS and (2 * different <= count or different <= 2):
        note = f"{said}category, {share}: {most_frequent(texts, held)}{forms_in(texts_held)}"
        return ColumnKind(name, "category", note)
    forms = forms_in(texts_held) or ": free text, or an id (--id)"
    why = chapters_of_icd(texts_held) or f"{different} different texts{forms}"
    return ColumnKind(name, "left out", f"{said}left out, {why}")


def _lost(texts: Texts, bad: Mask, held: Mask, labels: Labels | None) -> Loss:
    return loss(bad, held, labels, counted(texts, bad))


def _as_numbers(
    texts: Texts, held: Mask, notation: Notation
) -> tuple[OwnColumn, npt.NDArray[np.float64], str]:
    """Return marks of numbers, the numbers (n,), and a note on units."""
    numbers = texts.numbers(notation)
    bad = held & ~np.isfinite(numbers)
    if not bad.any():
        return OwnColumn(), numbers, ""
    # Of ASCII signs: a trailing minus of Unicode is one, too.
    plain = Texts(texts.plain, texts.rows)
    odd = {text: count for text, count in counted(plain, bad).items() if not text.endswith("…")}
    limits = [text for text in odd if _LIMIT.match(text)]
    minus = sum(count for text, count in odd.items() if _MINUS.fullmatch(text))
    bare = Counter[str]()
    for text, count in odd.items():
        bare[_LIMIT.sub("", text)] += count
    units = units_in(bare, notation)
    units.pop("", None)
    units = {unit: of for unit, of in units.items() if len(of) >= _UNIT * held.sum()}
    bare_numbers = {"": numbers[held & ~bad].tolist()} if (held & ~bad).any() else {}
    keys: dict[str, Any] = {
        "below-limit": "half" if limits else "",
        "trailing-minus": minus >= _UNIT * held.sum(),
    }
    note = ""
    if len(units) > 1:
        # Never stripped together: values may lie tenfold apart.
        note = (
            f"; {len(units)} units: {in_words(units | bare_numbers)}: give each a factor in 'units'"
        )
        keys["units"] = factors_of_ages(units) or dict.fromkeys(units, math.nan)
    elif units:
        keys["strip"] = [*units]
        if bare_numbers:
            note = f"; only some cells have a unit: {in_words(units | bare_numbers)}: is it that of"
            note += " the others, too?"
    written = OwnColumn.model_construct(**{key.replace("-", "_"): of for key, of in keys.items()})
    values = [marked_number(text, written, notation) for text in texts.plain]
    return written, np.array(values, dtype=np.float64)[texts.rows], note


def _numeric(numbers: npt.NDArray[np.float64], share: str, values: str) -> tuple[Kind, str]:
    """Return the kind of a number column, and its note."""
    different, counts = np.unique(numbers, return_counts=True)
    whole = bool((different == np.floor(different)).all())
    codes = _likely_codes(different, counts)
    if whole and len(different) <= _CODES:
        return "category", f"category of codes, {share}: {values}{codes}"
    low, high = different[0], different[-1]
    is_serial = _SERIAL[0] <= low and high <= _SERIAL[1]
    serial = "; a spreadsheet's days since 1900? Export dates as texts" if is_serial else ""
    if whole and len(different) == len(numbers) and len(numbers) > _WORDS:
        return "left out", f"left out, every number is different: is it an id (--id)?{serial}"
    return "number", f"number, {share}, from {low:g} to {high:g}{codes}{serial}"


def _likely_codes(different: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> str:
    """Return likely codes of missing: -9, -99, 999.

    They consist of one digit (9, 8 or 7), and lie apart from all other values by more than a
    quarter of their range, or are the only negative ones.
    """
    codes: list[str] = []
    rest = different
    for _ in range(6):
        for end, near in ((0, 1), (-1, -2)):
            if len(rest) < 3 or not _CODE.fullmatch(f"{rest[end]:g}"):
                continue
            others = np.delete(rest, end)
            is_apart = abs(rest[end] - rest[near]) > 0.25 * (others[-1] - others[0])
            if is_apart or rest[end] < 0 <= others[0]:
                codes.append(f"{rest[end]:g} ({counts[different == rest[end]][0]} times)")
                rest = others
                break
    marks = ", ".join(codes)
    return f"; {marks} may be codes of a missing value: then add them to 'missing'" if codes else ""


def _sample(texts: Texts, held: Mask) -> dict[str, int]:
    """Return counts of some distinct texts."""
    used = np.unique(texts.rows[held])
    counts = np.bincount(texts.rows[held], minlength=len(texts.values))
    return {
        texts.plain[row].decode(errors="replace"): int(counts[row]) for row in used[:_MOST_TEXTS]
    }


def _formats(texts: Texts, held: Mask) -> tuple[str, ...]:
    """Return the date formats that read most cells; none for too few."""
    values = _sample(texts, held)
    total = sum(values.values())
    # Every format begins with a digit or a month: most columns are ruled out at once.
    begun = (count for value, count in values.items() if _BEGIN.match(value))
    if sum(begun) < _READABLE * total:
        return ()
    left, formats = dict(values), list[str]()
    while left:
        tried = (*DATES, *PARTIAL_DATES) if formats else DATES
        read = {form: read_by(form, left) for form in tried}
        best = max(tried, key=lambda form: sum(values[value] for value in read[form]))
        if sum(values[value] for value in read[best]) < 0.05 * total:
            break
        formats.append(best)
        left = {value: count for value, count in left.items() if value not in {*read[best]}}
    dated = total - sum(left.values())
    return tuple(formats) if dated >= _READABLE * total else ()


def _two_orders(texts: Texts, held: Mask, formats: tuple[str, ...]) -> str:
    """Return a note on dates of two orders."""
    values = _sample(texts, held)
    for form in formats:
        other = form.replace("%d", "%_").replace("%m", "%d").replace("%_", "%m")
        if other not in FORMS or other == form:
            continue
        mine, theirs = {*read_by(form, values)}, {*read_by(other, values)}
        shared = {value: value.encode() for value in mine & theirs}
        twice = sum(
            values[value]
            for value, text in shared.items()
            if days_in(text, (form,), CENTURY) != days_in(text, (other,), CENTURY)
        )
        if other in formats:
            return (
                f"; two orders of day and month fit: {twice} cells are ambiguous, export them again"
            )
        if mine <= theirs and twice:
            return "; ambiguous: no day is above 12, so the order of day and month is not known"
    return ""


def most_frequent(texts: Texts, held: Mask) -> str:
    """Return the most frequent texts and counts."""
    counts = counted(texts, held)
    shown = ", ".join(f"'{text}' {count}" for text, count in counts.most_common(_CODES))
    return shown + (", …" if len(counts) > _CODES else "")
