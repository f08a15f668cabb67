"""Griffe extension of the API pages: doctests become code, Sphinx roles plain code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|meth|data|mod|attr|exc|const):(?=`)")
_DOCTEST = re.compile(r"^>>> .*\n?(?:.+\n?)*", re.MULTILINE)


def as_markdown(text: str) -> str:
    """Return a docstring for Markdown.

    A doctest is everything from ``>>>`` to the next blank line.
    """
    fenced = _DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
    return _ROLE.sub("", fenced)


class Docstrings(griffe.Extension):
    """Rewrites every docstring of a package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the docstrings below ``pkg``."""
        self._rewrite(pkg)

    def _rewrite(self, obj: Any) -> None:
        if obj.is_alias:
            return
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
        for member in obj.members.values():
            self._rewrite(member)
