"""Texts of the site's commands: the Jinja templates in this folder."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from jinja2 import Environment

from hdpfl_flower.system.printable import printable
from hdpfl_tools.site.reports.templates import templates

WIDTH = 84
"""Characters of a line beside its label; the rest follows on marked lines."""


def text_of(template: str, **facts: object) -> str:
    """Return the text of ``<template>.txt.j2`` without its last line break.

    Beside the filters of :func:`templates`: ``digits`` rounds to four, ``quoted`` shows a text of
    the server, ``labelled`` a long text beside a label, ``filled`` one of several lines.

    Guarantees:
        Each value is shown as :func:`printable` has it, so no text of a server adds a line.
    """
    return _templates().get_template(f"{template}.txt.j2").render(**facts).removesuffix("\n")


def quoted(text: object) -> str:
    r"""Return a server's text quoted and escaped, on one line.

    >>> print(quoted("run-1', approved" + chr(10)))
    'run-1\', approved\n'
    """
    return "'" + printable(str(text).replace("\\", "\\\\").replace("'", "\\'")) + "'"


@cache
def _templates() -> Environment:
    environment = templates(Path(__file__).parent)
    environment.filters |= {
        "digits": lambda number: f"{number:.4g}",
        "quoted": quoted,
        "labelled": _labelled,
        "filled": lambda text, width: textwrap.wrap(printable(text), width),
    }
    return environment


def _labelled(text: str, label: str) -> Iterator[str]:
    """Yield a labelled line; long text follows on marked lines, without loss."""
    while len(text) > WIDTH:
        end = text.rfind(" ", 0, WIDTH) + 1 or WIDTH
        yield f"  {label:<11}{text[:end]}"
        label, text = "...", text[end:]
    yield f"  {label:<11}{text}"
