"""Numbers and tables on a terminal, with the direction of rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from hdpfl_flower.system.printable import printable

ROUNDING = "ε, δ and noise are rounded up in the last digit; what is left is rounded down."

_DIGITS = 4
_BAR = 30
"""Characters of a bar."""
_WIDEST = 10_000
"""No table is cut or wrapped to a terminal's width: rows are there to be searched and copied."""
_SAME = Context(prec=12)
"""Two floats that agree to 12 digits are one number: 0.1 + 0.2 is 0.3, not 0.3001 rounded up."""


def ceil_digits(value: float) -> str:
    """Return ``value`` with four significant digits, rounded up.

    >>> ceil_digits(1.23401), ceil_digits(0.1 + 0.2), ceil_digits(1e-5), ceil_digits(math.inf)
    ('1.235', '0.3', '1e-05', 'inf')
    """
    return _rounded(value, ROUND_CEILING)


def floor_digits(value: float) -> str:
    """Return ``value`` with four significant digits, rounded down.

    >>> floor_digits(1.23499), floor_digits(5 - 4.7)
    ('1.234', '0.3')
    """
    return _rounded(value, ROUND_FLOOR)


def per_cent(share: float) -> str:
    """Return a share in per cent, rounded up at one digit."""
    return f"{math.ceil(min(share, 1.0) * 1000 - 1e-9) / 10:g} %"


def bar(share: float) -> str:
    """Return a bar of the used promise in per cent, rounded up.

    >>> bar(0.333)
    '[##########....................] 33.3 %'
    """
    filled = min(_BAR, math.ceil(share * _BAR - 1e-9))
    return f"[{'#' * filled}{'.' * (_BAR - filled)}] {per_cent(share)}"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield ``rows`` as lines in columns: the first to the left, the others to the right.

    Cells may hold text of a server's, so each is shown as :func:`printable` has it.

    >>> list(table([("run", "ε"), ("a", "0.5")]))
    ['run    ε', 'a    0.5']
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for number in range(len(rows[0])):
        grid.add_column(justify="right" if number else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*map(Text, [printable(cell) for cell in row]))
    # Lines, not a table for this terminal: they stand in reports and files, too.
    console = Console(width=_WIDEST, color_system=None)
    for line in console.render_lines(grid, pad=False):
        yield "".join(segment.text for segment in line).rstrip()


def _rounded(value: float, mode: str) -> str:
    if not math.isfinite(value):
        return str(value)
    number = Context(prec=_DIGITS, rounding=mode).plus(_SAME.create_decimal(repr(value)))
    if number == 0 or Decimal("1e-4") <= abs(number) < Decimal("1e7"):
        text = f"{number:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{float(number):.{_DIGITS}g}"
