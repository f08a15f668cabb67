"""Forms of dates tried on an unknown column."""

from __future__ import annotations

import re

import numpy as np

from hdpfl_flower.data.columns import PARTIAL, days_in

_TIMES = (  # noqa: SIM905 - a list of them would be a page
    "| %H:%M| %H:%M:%S|T%H:%M:%S| %H:%M:%S.%f|T%H:%M:%S.%f|T%H:%M%z|T%H:%M:%S%z|T%H:%M:%S.%f%z"
    "| %H:%M:%S%z| %H:%M:%S.%f%z| %H:%M:%S %z| %H:%M:%S.%f %z| %H:%M:%S UTC| %H:%M:%S.%f UTC"
    "|:%H:%M:%S|:%H:%M:%S.%f"
).split("|")
_DAYS = (  # noqa: SIM905 - a list of them would be a page
    "%Y-%m-%d|%d.%m.%Y|%d/%m/%Y|%m/%d/%Y|%Y%m%d|%Y/%m/%d|%d-%m-%Y|%m-%d-%Y|%d%b%Y|%d-%b-%Y|%d %b %Y"
    "|%d%b%y|%d-%b-%y|%d.%m.%y|%d/%m/%y|%m/%d/%y|%m.%d.%Y|%b %d %Y|%b %d, %Y"
).split("|")
DATES = tuple(f"{day}{time}" for day in _DAYS for time in _TIMES)
PARTIAL_DATES = tuple(PARTIAL)
"""Forms tried beside whole dates alone: a year by itself is a number."""
CENTURY = 1930
"""First year of two digits in a draft; the site chooses."""
_SHAPES = {"%Y": "[0-9]{4}", "%y": "[0-9]{2}", "%b": "[A-Za-z]{3}", "%f": "[0-9]+"}
_SHAPES |= {"%z": "(?:Z|[+-][0-9]{2}:?[0-9]{2})"}


def _shape(form: str) -> re.Pattern[str]:
    pieces = (
        _SHAPES.get(piece, "[0-9]{1,2}") if piece[:1] == "%" else re.escape(piece)
        for piece in re.split("(%.)", form)
    )
    return re.compile("".join(pieces))


FORMS = {form: _shape(form) for form in (*DATES, *PARTIAL_DATES)}


def read_by(form: str, values: dict[str, int]) -> list[str]:
    """Return those of ``values`` that ``form`` reads."""
    shape = FORMS[form]
    return [
        value
        for value in values
        if shape.fullmatch(value) and np.isfinite(days_in(value.encode(), (form,), CENTURY))
    ]


def is_date(text: str) -> bool:
    """Return whether any known format reads ``text``."""
    return any(read_by(form, {text: 1}) for form in DATES)
