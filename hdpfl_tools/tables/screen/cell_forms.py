"""Forms of cells beside numbers, with remedies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np

from hdpfl_flower.data.columns import Notation
from hdpfl_flower.data.values import plain

_N = r"[0-9]+(?:[.,][0-9]+)?"
FORMS = {
    "a minus after the number": (
        rf" *{_N} ?-",
        "'trailing-minus = true' reads it as SAP means it",
    ),
    "a negative number in parentheses": (rf"\( *{_N} *\)", "export it with a minus"),
    "a number with a mark before three digits": (
        r"[+-]?[1-9][0-9]{0,2}(?:[,. '][0-9]{3})+(?:[.,][0-9]*)?",
        "'thousands' or 'decimal' in [data], as the site means the mark",
    ),
    "a range": (
        rf"{_N} ?(?:-|to|bis|\.\.) ?{_N}[^0-9]*",
        "export its two ends as two columns, or its middle",
    ),
    "a ratio, a titre or a time": (
        rf"{_N} ?: ?{_N}[^0-9]*",
        "export one number, such as that after the colon",
    ),
    "a fraction, or two numbers in one cell": (
        rf"{_N} ?(?:[/\\+\u00b1] ?|[a-z]+ ){_N}[^0-9]*",
        "export two columns, or one number of both",
    ),
    "a formula": (r"=.*", "export its value"),
    "a number behind a mark": (
        rf"[^-+0-9.,()<>\u2264\u2265][^-+0-9,()<>\u2264\u2265]{{0,5}}[+-]?{_N}",
        "name the mark in 'strip', such as 'strip = [\"ca.\"]'",
    ),
    "a date of which a part is unknown": (
        r"(?=.*(?:-00|UN|NK|X))(?:[0-9]{4}|UNK?|X+)(?:-(?:[0-9]{2}|UNK?|NK|X+)){2}",
        "export only the known part, such as 2019-05 or 2019",
    ),
    "a percentage": (rf"[+-]?{_N} ?%", "'strip = [\"%\"]'"),
    "a limit of measurement": (
        rf"(?:<=?|>=?|\u2264|\u2265) ?{_N}.*",
        '\'below-limit\' = "half" or "limit"',
    ),
    "part of a date": (
        r"[0-9]{4}(?:-[0-9]{2})?",
        'add "%Y-%m" and "%Y" to \'date-formats\': the middle counts',
    ),
}
"""Patterns of forms, with remedies; the first that fits counts."""
_MARKED = re.compile(r"[+-]?[0-9][0-9.,' ]*?([^0-9.,' +\-].{0,15})", re.DOTALL)
_SECOND = re.compile(r"[^\w%^]+[0-9].*|\w+ [0-9].*", re.DOTALL)
"""A second number: no unit."""
_ICD = re.compile(r"[A-TV-Z][0-9][0-9AB](\.?[0-9A-Z]{1,4})?")
_AGES = {"D": 1 / 365.25, "W": 7 / 365.25, "M": 1 / 12, "Y": 1.0}
"""Letters of an age of DICOM, with their years."""
_SHARE = 0.05


def forms_in(texts: Mapping[str, int], *, dates: bool = False) -> str:
    """Return forms of unreadable texts with remedies.

    Args:
        texts: how often each is written.
        dates: whether they are of a column of dates, in which alone parts of dates are.
    """
    counts: Counter[str] = Counter()
    for text, count in texts.items():
        form = next((f for f, (shape, _) in FORMS.items() if re.fullmatch(shape, plain(text))), "")
        if form and (form != "part of a date" or dates):
            counts[form] += count
    parts = [f"{count} are {form} ({FORMS[form][1]})" for form, count in counts.most_common()]
    return f": {'; '.join(parts)}" if parts else ""


def units_in(texts: Mapping[str, int], notation: Notation) -> dict[str, list[float]]:
    """Return the numbers before each frequent unit.

    A text that is written once is no unit but an error.
    """
    units: dict[str, list[float]] = {}
    for text, count in texts.items():
        match = _MARKED.fullmatch(text)
        unit = match[1].strip() if match else ""
        if _SECOND.fullmatch(unit):
            continue
        number = notation.number_in(text.removesuffix(unit).strip().encode())
        if np.isfinite(number):
            units.setdefault(unit, []).extend([number] * count)
    total = sum(texts.values())
    return {unit: numbers for unit, numbers in units.items() if len(numbers) >= _SHARE * total}


def in_words(units: Mapping[str, list[float]]) -> str:
    """Return units with counts and medians."""
    return ", ".join(
        f"'{unit}' {len(numbers)} (median {float(np.median(numbers)):.4g})"
        if unit
        else f"without unit {len(numbers)} (median {float(np.median(numbers)):.4g})"
        for unit, numbers in sorted(units.items(), key=lambda item: -len(item[1]))
    )


def factors_of_ages(units: Mapping[str, list[float]]) -> dict[str, float]:
    """Return years per letter of ages such as ``011M``."""
    return {unit: _AGES[unit] for unit in units} if units.keys() <= _AGES.keys() else {}


def chapters_of_icd(texts: Mapping[str, int]) -> str:
    """Return a note on ICD codes by chapter."""
    codes = {text: count for text, count in texts.items() if _ICD.fullmatch(text)}
    if len(codes) < 0.9 * len(texts) or len(codes) < 5:
        return ""
    letters = Counter[str]()
    for code, count in codes.items():
        letters[code[0]] += count
    listed = ", ".join(f"{letter} {count}" for letter, count in letters.most_common(10))
    return (
        f"ICD codes, by chapter: {listed}; a category needs few values: take the chapter, which "
        "is the first letter (in 'data.query': left(code, 1)), or your own groups"
    )
