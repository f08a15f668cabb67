"""A report as sections of text, bullets and tables, printed for a terminal or as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from client_app.reports.formatting import table
from hdpfl_flower.system.printable import printable

WIDTH = 92


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Bullet:
    """A point of a list."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of cells, the first of them the header."""

    rows: tuple[tuple[str, ...], ...]


Part = Text | Bullet | Table


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: tuple[Part, ...]


def as_text(title: str, sections: Iterable[Section]) -> str:
    """Return the report for a terminal."""
    lines = [title.upper()]
    for number, section in enumerate(sections):
        lines += ["", section.title] if section.title else [""] if number else []
        for part in section.parts:
            lines += _text_of(part)
    return "\n".join(lines) + "\n"


def as_markdown(title: str, sections: Iterable[Section]) -> str:
    """Return the report as Markdown, with tables as GitHub and Pandoc read them."""
    blocks = [f"# {title}"]
    for section in sections:
        if section.title:
            blocks.append(f"## {_escaped(section.title)}")
        bullets: list[str] = []
        for part in section.parts:
            if isinstance(part, Bullet):
                bullets.append(f"- {_escaped(part.text)}")
                continue
            if bullets:
                blocks.append("\n".join(bullets))
                bullets = []
            blocks.append(_markdown_of(part))
        if bullets:
            blocks.append("\n".join(bullets))
    return "\n\n".join(blocks) + "\n"


def _text_of(part: Part) -> Iterator[str]:
    if isinstance(part, Table):
        for line in table(part.rows):
            yield f"  {line}"
        return
    first, rest = ("  - ", "    ") if isinstance(part, Bullet) else ("  ", "  ")
    # A path or a name longer than a line is not cut: it is there to be copied.
    yield from textwrap.wrap(
        printable(part.text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _markdown_of(part: Text | Table) -> str:
    if isinstance(part, Text):
        return _escaped(part.text)
    header, *rows = part.rows
    lines = [header, ("---",) * len(header)]
    cells = [lines[1], *([_escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [[*map(_escaped, header)], *cells])


def _escaped(text: str) -> str:
    """Return ``text`` so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", printable(text))
