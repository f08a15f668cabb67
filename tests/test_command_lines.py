"""Both command lines, command by command: help on every option, JSON of every table, one word."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from hdpfl_tools.coordinator.commands import app
from hdpfl_tools.site.commands import app as site_app

APPS = {"hdpfl": app, "hdpfl-site": site_app}
ONE_WORD = ({"--terms", "--run-config"}, {"--to", "--out"})
"""Options that are one: whoever has the first is also called by the second."""


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from leaves(each, (*path, name))


COMMANDS = {
    path: command
    for name, each in APPS.items()
    for path, command in leaves(typer.main.get_command(each), (name,))
}


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_a_command_says_what_it_and_each_option_is_for() -> None:
    assert [path for path, command in COMMANDS.items() if not command.help] == []
    silent = [
        (path, parameter.name)
        for path, command in COMMANDS.items()
        for parameter in command.params
        if not parameter.help
    ]
    assert silent == []


def test_a_command_that_prints_a_table_prints_json() -> None:
    prints = r"\b(?:table|Table|make_table|_show_all|_table|_list|_rounds_rows)\("
    without = [path for path, command in COMMANDS.items() if "--json" not in options(command)]
    assert [p for p in without if re.search(prints, inspect.getsource(COMMANDS[p].callback))] == []


def test_one_option_has_one_word() -> None:
    terms, to = ONE_WORD
    found = {path: options(command) for path, command in COMMANDS.items()}
    assert [path for path, words in found.items() if words & terms and not words >= terms] == []
    assert [path for path, words in found.items() if "--to" in words and not words >= to] == []


@pytest.mark.parametrize("name", APPS)
def test_a_shell_completes_commands(name: str) -> None:
    module = "hdpfl_tools.coordinator" if name == "hdpfl" else "hdpfl_tools.site"
    code = f"import sys; sys.argv[0] = '{name}'; from {module}.commands import main; main()"
    variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
    own = {variable: "complete_bash", "COMP_WORDS": f"{name} re", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **own},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert "report" in done.stdout.split(), done.stderr


def test_usage_errors_end_with_2_and_ours_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from hdpfl_tools.coordinator.commands import main

    for words, status in ((["compare", "--no-such"], 2), (["exporter", "--history", "no-run"], 1)):
        monkeypatch.setattr(sys, "argv", ["hdpfl", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == status


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("hdpfl_tools.coordinator.commands", {"torch", "flwr", "scipy", "sklearn", "matplotlib"}),
        # Of reports and rules: torch takes longer to import than a report to make.
        (
            "strategies, hdpfl_tools.coordinator.reports.comparison_page",
            {"torch", "scipy.stats", "sklearn", "matplotlib"},
        ),
    ],
    ids=["help", "reports and rules"],
)
def test_heavy_libraries_are_not_imported_for(modules: str, heavy: set[str]) -> None:
    code = f"import sys, {modules}; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
