"""Numbers and tables as a terminal shows them; numbers that protect someone say how they round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from hdpfl_flower.printable import printable

ROUNDING = "ε, δ and noise are rounded up in the last digit, what is left is rounded down."

_DIGITS = 4
_SAME = Context(prec=12)
"""Two floats that agree to 12 digits are one number: 0.1 + 0.2 is 0.3, not 0.3001 rounded up."""


def up(value: float) -> str:
    """Return ``value`` with four significant digits, rounded up (after float64's own rounding).

    >>> up(1.23401), up(0.1 + 0.2), up(1e-5), up(math.inf)
    ('1.235', '0.3', '1e-05', 'inf')
    """
    return _rounded(value, ROUND_CEILING)


def down(value: float) -> str:
    """Return ``value`` with four significant digits, rounded down.

    >>> down(1.23499), down(5 - 4.7)
    ('1.234', '0.3')
    """
    return _rounded(value, ROUND_FLOOR)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield ``rows`` as lines in columns: the first to the left, the others to the right.

    Cells may hold text of a server's, so each is shown as :func:`printable` has it.

    >>> list(table([("run", "ε"), ("a", "0.5")]))
    ['run    ε', 'a    0.5']
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for first, *others in shown:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()


def _rounded(value: float, mode: str) -> str:
    if not math.isfinite(value):
        return str(value)
    number = Context(prec=_DIGITS, rounding=mode).plus(_SAME.create_decimal(repr(value)))
    if number == 0 or Decimal("1e-4") <= abs(number) < Decimal("1e7"):
        text = f"{number:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{float(number):.{_DIGITS}g}"
