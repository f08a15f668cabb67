"""``docs/profile.md`` has the keys of the models, ``docs/site.md`` the commands that there are."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import typer.main
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from client_app.commands import app
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.validation import kebab

DOCS = Path(__file__).parents[3] / "docs"


def sections(model: type[BaseModel]) -> dict[str, tuple[type[BaseModel], list[str]]]:
    """Return the sections of a profile, and the keys in each; '' is the top level."""
    found: dict[str, tuple[type[BaseModel], list[str]]] = {"": (model, [])}
    for name, field in model.model_fields.items():
        parts = [t for t in (field.annotation, *get_args(field.annotation)) if isinstance(t, type)]
        table = next((t for t in parts if issubclass(t, BaseModel)), None)
        if table is None:
            found[""][1].append(name)
        else:
            found[kebab(name)] = (table, list(table.model_fields))
    return found


def limits(field: Any) -> dict[str, float]:
    """Return the bounds of a number: gt, ge, lt."""
    return {
        name: getattr(item, name)
        for item in field.metadata
        for name in ("gt", "ge", "lt", "le")
        if getattr(item, name, None) is not None
    }


def kind(annotation: Any, bounds: dict[str, float]) -> str:
    """Return a field's type as the document writes it."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        annotation = next(a for a in get_args(annotation) if a is not types.NoneType)
        return kind(getattr(annotation, "__origin__", annotation), bounds)
    if origin is Literal:
        names = [f"`{value}`" for value in get_args(annotation)]
        return " or ".join([", ".join(names[:-1]), names[-1]])
    if origin is tuple:
        of = get_args(annotation)[0]
        values = ", ".join(f"`{v}`" for v in get_args(of))
        return f"list of {values}" if get_origin(of) is Literal else "list of texts"
    words = {
        int: "whole number",
        float: "number",
        str: "text",
        Path: "path",
        bool: "true or false",
    }[annotation]
    if "ge" in bounds:
        words += f" from {bounds['ge']:g}"
    if "gt" in bounds:
        words += f" above {bounds['gt']:g}"
    if "lt" in bounds:
        words += f", below {bounds['lt']:g}"
    return words


def default_of(field: Any) -> str:
    if field.default is PydanticUndefined:
        return ""
    if field.default is None:
        return "none"
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{json.dumps(value)}`"


def documented() -> dict[str, dict[str, list[str]]]:
    """Return section → key → [type, default, meaning] of the document."""
    tables: dict[str, dict[str, list[str]]] = {}
    section = None
    for line in (DOCS / "profile.md").read_text().splitlines():
        if line.startswith("## "):
            found = re.fullmatch(r"## (?:`\[([a-z-]+)\]`|Top level)", line)
            assert found, line
            section = tables.setdefault(found[1] or "", {})
        elif line.startswith("| `") and section is not None:
            key, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            section[key.strip("`")] = cells
    return tables


def test_every_key_of_the_profile_is_documented_as_it_is() -> None:
    expected = {}
    for section, (model, names) in sections(Profile).items():
        expected[section] = {}
        for name in names:
            field = model.model_fields[name]
            words = kind(field.annotation, limits(field))
            if name == "epsilon":
                words += ", or `inf`"
            expected[section][kebab(name)] = [words, default_of(field)]
    found = {s: {k: cells[:2] for k, cells in keys.items()} for s, keys in documented().items()}
    assert found == expected
    assert all(cells[2] for keys in documented().values() for cells in keys.values())


def test_the_example_is_a_profile(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", (DOCS / "profile.md").read_text(), re.DOTALL)
    path = tmp_path / "profile.toml"
    path.write_text(example)
    path.chmod(0o600)
    profile = Profile.load(path)
    assert profile.ledger is not None
    assert profile.data is not None


def test_the_guide_shows_every_command_and_none_that_is_not_there() -> None:
    text = (DOCS / "site.md").read_text()
    commands: dict[tuple[str, ...], set[str]] = {}
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        for inner, leaf in getattr(command, "commands", {"": command}).items():
            options = {option for parameter in leaf.params for option in parameter.opts}
            commands[(name, inner) if inner else (name,)] = options
    shown = set()
    for line in re.findall(r"^\$ hdpfl-site (.*)$", text, re.MULTILINE):
        words = line.split()
        name = tuple(words[:2]) if tuple(words[:2]) in commands else tuple(words[:1])
        assert name in commands, line
        assert {word for word in words if word.startswith("--")} <= commands[name], line
        shown.add(name)
    assert shown == set(commands)
