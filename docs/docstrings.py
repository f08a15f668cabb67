"""Markdown of public names, from their signatures and Google-style docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
WIDTH = 88
"""Of a line of a signature: what the site's column shows without scrolling."""
_ROLE = re.compile(r":(?:func|class|meth|data|mod|attr|exc|const):(?=`)")
_DOCTEST = re.compile(r"^>>> .*\n?(?:.+\n?)*", re.MULTILINE)
_STARS = {"variadic positional": "*", "variadic keyword": "**"}


def as_markdown(text: str) -> str:
    """Return a docstring's text for Markdown: doctests as code, no Sphinx roles.

    A doctest is everything from ``>>>`` to the next blank line.
    """
    fenced = _DOCTEST.sub(lambda doctest: f"```pycon\n{doctest[0].rstrip()}\n```\n", text)
    return _ROLE.sub("", fenced).replace("``", "`").replace("````", "```")


@cache
def package(name: str) -> Any:
    """Return a package of this repository, read without importing it."""
    return griffe.load(name, search_paths=[str(ROOT)], docstring_parser="google")


def described(path: str, heading: str) -> str:
    """Return the section of the public name at ``path``, below a heading of level 3."""
    room, _, inner = path.partition(".")
    public = package(room)[inner]
    parts = [f"### `{heading}`\n", f"`{path}`\n"]
    if public.is_module:
        parts += [*_text(public), *(line for m in _members(public) for line in _member(m))]
    else:
        parts += [_code(public, heading), *_text(public)]
        if public.is_class:
            parts += [line for m in _members(public) for line in _member(m)]
    return "\n".join(parts)


def _members(documented: Any) -> Iterator[Any]:
    for name, member in documented.members.items():
        if name.startswith("_") or member.is_alias or not member.docstring:
            continue
        if member.is_function or member.is_class or "property" in member.labels:
            yield member


def _member(member: Any) -> list[str]:
    owner = member.parent.name
    lines = [f"#### `{owner}.{member.name}`\n"]
    if "property" not in member.labels:
        lines.append(_code(member, member.name))
    return [*lines, *_text(member)]


def _code(documented: Any, name: str) -> str:
    """Return the signature as a block of code, on several lines where it is long."""
    words, kind = [], ""
    for parameter in documented.parameters:
        if parameter.name in ("self", "cls"):
            continue
        now = parameter.kind.value if parameter.kind else ""
        if now == "keyword-only" != kind and kind != "variadic positional":
            words.append("*")
        kind = now
        word = _STARS.get(now, "") + parameter.name
        word += f": {parameter.annotation}" if parameter.annotation else ""
        words.append(word + (f" = {parameter.default}" if _shown(parameter, now) else ""))
    returns = getattr(documented, "returns", None)
    end = f") -> {returns}" if documented.is_function and returns is not None else ")"
    line = f"{name}({', '.join(words)}{end}"
    if len(line) > WIDTH:
        line = "\n".join([f"{name}(", *(f"    {word}," for word in words), end])
    return f"```python\n{line}\n```\n"


def _shown(parameter: Any, kind: str) -> bool:
    return parameter.default is not None and kind not in _STARS


def _text(documented: Any) -> list[str]:
    """Return the docstring section by section."""
    return [text for section in documented.docstring.parsed for text in _section(section)]


def _section(section: Any) -> list[str]:
    kind, value = section.kind.value, section.value
    if kind == "text":
        return [as_markdown(value) + "\n"]
    if kind == "admonition":
        title = (section.title or value.annotation).rstrip(".:").capitalize()
        return [f"**{title}**: {as_markdown(value.description)}\n"]
    if kind == "examples":
        return [
            f"```pycon\n{text}\n```\n" if how.value == "examples" else f"{text}\n"
            for how, text in value
        ]
    lines = [f"**{(section.title or kind).capitalize()}**\n"]
    if kind == "returns":
        return [*lines, " ".join(as_markdown(item.description) for item in value) + "\n"]
    for item in value:
        name = getattr(item, "name", "") or (str(item.annotation) if kind == "raises" else "")
        said = " ".join(as_markdown(item.description).split())
        lines.append(f"* `{name}`: {said}" if name else f"* {said}")
    return [*lines, ""]
