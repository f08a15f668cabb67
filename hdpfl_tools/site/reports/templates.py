"""Templates of a site's texts: those of its report, of its commands, of its comparisons.

Texts of a server are among the values: each value that is filled in is made printable, so it cannot
begin a line of its own; HTML escapes it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdpfl_flower.system.printable import printable
from hdpfl_tools.site.reports.formatting import bar, ceil_digits, floor_digits, per_cent, table

if TYPE_CHECKING:
    from jinja2 import Environment


def templates(folder: Path | None = None) -> Environment:
    """Return an environment for templates in texts, or in the files of ``folder``.

    A file that ends in ``.txt.j2`` is text, as is a template in a text; other files are HTML.

    Filters round numbers up (``up``) or down (``down``) or to ``per_cent``; ``bar`` draws a share,
    ``columns`` lays rows out in lines.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=None if folder is None else FileSystemLoader(folder),
        autoescape=select_autoescape(
            disabled_extensions=["txt.j2"], default_for_string=False, default=True
        ),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_filled_in,
    )
    environment.filters |= {
        "up": ceil_digits,
        "down": floor_digits,
        "per_cent": per_cent,
        "bar": bar,
        "columns": _columns,
    }
    return environment


def _columns(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    return table([*rows])


def _filled_in(value: Any) -> Any:
    """Return a value as printable text; a macro's text, escaped before, as it is."""
    return value if hasattr(value, "__html__") else printable(str(value))
