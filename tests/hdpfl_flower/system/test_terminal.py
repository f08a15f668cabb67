"""Help of both command lines: every word that a command and its parameters are described by."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import typer
from typer.testing import CliRunner

from client_app.commands import app as hdpfl_site
from hdpfl_flower.system.terminal import new_app
from server_app.commands import app as hdpfl

APPS = {"hdpfl": hdpfl, "hdpfl-site": hdpfl_site}


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


EVERY = [
    (name, path) for name, app in APPS.items() for path in commands(typer.main.get_command(app))
]


def found(text: str) -> str:
    return re.sub(r"[\s│╭╮╰╯─]", "", text)


def test_help_has_every_word_brackets_too_and_no_escapes() -> None:
    """Rich takes ``[budget]`` for markup where it may, and typer may lose an argument's help."""
    wrong = []
    for name, path in EVERY:
        result = CliRunner().invoke(APPS[name], [*path, "--help"], env={"COLUMNS": "200"})
        command = typer.main.get_command(APPS[name])
        for word in path:
            command = command.commands[word]  # type: ignore[attr-defined]
        shown = found(result.output)
        described = [command.help, *(getattr(p, "help", None) for p in command.params)]
        lost = [text for text in filter(None, described) if found(text) not in shown]
        if result.exit_code or "\x1b" in result.output or lost:
            wrong.append((name, *path, *lost))
    assert wrong == []


def test_a_group_without_a_version_has_no_such_option() -> None:
    app = new_app("A group.")
    app.command("one")(lambda: None)
    app.command("two")(lambda: None)
    assert CliRunner().invoke(app, ["--version"]).exit_code == 2
