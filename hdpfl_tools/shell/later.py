"""Commands imported at their first use, to keep help fast."""

from __future__ import annotations

import importlib
from collections import UserDict
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import click
import typer
from typer.core import TyperGroup


class Later(NamedTuple):
    """Command by name.

    Attributes:
        module: its module.
        attribute: its function, or the command line of a group.
        brief: the first paragraph of its help, for the list of commands.
    """

    module: str
    attribute: str
    brief: str


class _Commands(UserDict[str, click.Command]):
    """Commands by name, imported when first read, not when listed."""

    def __init__(self, table: Mapping[str, Later]) -> None:
        super().__init__(
            {name: click.Command(name, help=command.brief) for name, command in table.items()}
        )
        self._table, self._loaded = table, dict[str, click.Command]()
        self.listed = False

    def __getitem__(self, name: str) -> click.Command:
        if self.listed or name not in self._table:
            return super().__getitem__(name)
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._table[name])
        return self._loaded[name]


class LaterGroup(TyperGroup):
    """Command line; its commands are imported when they run."""

    table: ClassVar[Mapping[str, Later]] = {}

    def __init__(self, **attributes: Any) -> None:
        """Create the group with the commands of the table."""
        super().__init__(**attributes)
        self._later = _Commands(self.table)
        self.commands = self._later

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help with the brief texts of the commands."""
        self._later.listed = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._later.listed = False


def group_of(table: Mapping[str, Later]) -> type[LaterGroup]:
    """Return the class of a command line with these commands."""
    return type("Group", (LaterGroup,), {"table": table})


def _load(name: str, later: Later) -> click.Command:
    app = getattr(importlib.import_module(later.module), later.attribute)
    if not isinstance(app, typer.Typer):
        function, app = app, typer.Typer(add_completion=False, rich_markup_mode="markdown")
        app.command(name)(function)
    command = typer.main.get_command(app)
    command.name = name
    return command
