"""Blocks of all pages: commands can be called, Python runs, TOML is read by its own parser."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import HDPFLError
from strategies import SETTINGS_OWNERS, check_strategy
from strategies.settings import check_settings
from studies import STUDIES
from tests.docs.blocks import BLOCKS, Block, commands_of, lines_of, of_language, pattern_of, plain
from tests.docs.runs import TUTORIAL, is_run
from tests.test_docs import ROOT

OTHERS = re.compile(
    "activate|cd|chmod|cp|curl|docker|echo|git|head|install|jq|journalctl|loginctl|mkdir|mv|nginx|"
    r"pip|prometheus|python3\.11|ray|rm|sha256sum|systemctl|useradd"
)
"""Programs of others: their lines are not parsed."""


def test_every_block_has_a_language_that_is_checked() -> None:
    assert {block.language for block in BLOCKS} == {"python", "toml", "console", "text"}
    assert len(BLOCKS) > 200


# --- console -------------------------------------------------------------------------------------


def program(name: str) -> click.Command | None:
    """Return the command line of a program of this package, or of Flower."""
    places = {
        "hdpfl": "hdpfl_tools.coordinator.commands",
        "hdpfl-site": "hdpfl_tools.site.commands",
        "flwr": "flwr.cli.app",
    }
    if name not in places:
        return None
    return typer.main.get_command(importlib.import_module(places[name]).app)


def parse(command: click.Command, words: list[str]) -> None:
    """Parse the words of a command line as the program does; call nothing."""
    parent = None
    while True:
        context = command.make_context(command.name, words, parent=parent)
        if not isinstance(command, click.Group):
            return
        words = [*context._protected_args, *context.args]
        _, inner, words = command.resolve_command(context, words)
        assert inner is not None
        command, parent = inner, context


@pytest.mark.parametrize("block", of_language("console"), ids=str)
def test_every_command_of_a_page_can_be_called(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options and arguments are those of the program that is installed."""
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    federation = importlib.import_module("federation")
    for action in ("up", "down", "run", "status"):
        monkeypatch.setattr(federation, action, lambda *_, **__: None)
    monkeypatch.setattr(os, "umask", lambda _: 0)  # that of this process stays
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    titles = {other.title for other in BLOCKS if other.page == block.page}
    assert lines_of(block), "a console block shows at least one command"
    for name, *words in commands_of(block):
        try:
            if (command := program(name)) is not None:
                parse(command, ["1" if word == "ID" else word for word in words])
            elif name == "make":
                assert {word for word in words if "=" not in word} <= targets
            elif name == "python" and words[0] == "deploy/federation.py":
                monkeypatch.setattr(sys, "argv", words)
                federation.main()
            else:
                assert OTHERS.fullmatch(name) or (name == "python" and words[0] in titles), name
        except (click.ClickException, SystemExit) as error:
            pytest.fail(f"{name} {' '.join(words)}: {getattr(error, 'message', error)}")


@pytest.mark.parametrize("words", [["plan", "--no-such"], ["profile", "none"], ["schema"]])
def test_a_wrong_command_is_noticed(words: list[str]) -> None:
    command = program("hdpfl-site")
    assert command is not None
    with pytest.raises(click.UsageError):
        parse(command, words)


class Reached(Exception):  # noqa: N818 - no error
    """The first run would start."""


STARTED = [
    (block, words)
    for block in of_language("console")
    for name, *words in commands_of(block)
    if name == "hdpfl" and words[0] in {"compare", "reproduce"} and not is_run(block)
    if "surgery.toml" not in words  # its files are those of schema.md: test_compare_tables.py
]


@pytest.mark.parametrize(("block", "words"), STARTED, ids=str)
def test_every_comparison_of_a_page_can_start(
    block: Block, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strategies, columns, keys and values are known: it stops where the first run would start."""
    del block

    def reached(*_: Any, **__: Any) -> None:
        raise Reached

    monkeypatch.setattr("hdpfl_tools.simulation.in_process.comparison.compare", reached)
    for study in STUDIES.values():
        monkeypatch.setattr(type(study), "conduct", reached)
    monkeypatch.setattr("hdpfl_tools.coordinator.commands.reproduce._use", lambda _: None)
    monkeypatch.setenv("HDPFL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    command = program("hdpfl")
    assert command is not None
    with pytest.raises(Reached):
        command.main(words, standalone_mode=False)


# --- Python --------------------------------------------------------------------------------------

PACKAGES = ("client_app", "server_app", "strategies")
"""Names of our packages that a user's own files may have."""
OF_THE_READER = """\
import functools
import torch
from flwr.clientapp import ClientApp
app = ClientApp()
Net = functools.partial(torch.nn.Linear, 5, 2)
load = lambda context: torch.utils.data.TensorDataset(torch.zeros(180, 5), torch.zeros(180).long())
"""
"""What README's client takes from the app of its reader."""
PYTHON = [
    page
    for page in dict.fromkeys(block.page for block in of_language("python"))
    if page != TUTORIAL
]


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON)
def test_the_python_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    """A file a title, or else a heading; in a clean folder, beside a user's files of our names."""
    files: dict[str, str] = {}
    for block in of_language("python"):
        if block.page == page:
            name = block.title or f"{block.heading}.py"
            files[name] = files.get(name, "") + block.text
    if page == "README.md":
        files["client_app.py"] = OF_THE_READER + files["client_app.py"]
    code = "\n".join(files.values())
    for package in PACKAGES:
        if not re.search(rf"^from {package}\b", code, re.M):
            (tmp_path / f"{package}.py").write_text("raise RuntimeError")
    for number, text in enumerate(files.values()):
        (tmp_path / f"block{number}.py").write_text(text.replace("/tmp/", f"{tmp_path}/"))
    names = [f"block{number}.py" for number in range(len(files))]
    script = "import runpy, sys\nfor name in sys.argv[1:]: runpy.run_path(name)"
    done = subprocess.run(
        [sys.executable, "-c", script, *names],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for shown in of_language("text"):
        if shown.page == page and BLOCKS[BLOCKS.index(shown) - 1].language == "python":
            assert pattern_of(shown.text).search(plain(done.stdout)), (shown.text, done.stdout)


# --- TOML ----------------------------------------------------------------------------------------

BASE_PROFILE = """
[budget]
epsilon = inf
delta = 1e-4
[run]
epsilon = 1.0
delta = 1e-5
[training]
batch-size = 10
declared-records = 100
"""
BASE_COLUMN = '[[columns]]\nname = "a"\ntype = "number"\nbounds = [0, 1]\n'


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return two tables in one; the second one's keys count."""
    both = {**base, **more}
    for key in base.keys() & more.keys():
        if isinstance(base[key], dict) and isinstance(more[key], dict):
            both[key] = merged(base[key], more[key])
    return both


def read_profile(text: str) -> None:
    given = merged(tomllib.loads(BASE_PROFILE), tomllib.loads(text))
    if "data" in given and not given["data"].keys() & {"path", "query", "connection"}:
        given["data"]["path"] = "export.csv"
    Profile.parse(given)


def read_terms(text: str) -> None:
    config = RunConfig.parse(tomllib.loads(text))
    own = check_strategy(config.terms.strategy)
    check_settings(config, SETTINGS_OWNERS, running=[own])


def read_schema(text: str) -> None:
    Schema.parse(text if "[[columns]]" in text else text + BASE_COLUMN)


def read_connection(text: str) -> None:
    """Read Flower's own file of its SuperLinks."""
    if set(tomllib.loads(text)) != {"superlink"}:
        raise HDPFLError("it names no SuperLink")


READERS: dict[str, Callable[[str], None]] = {
    "profile": read_profile,
    "run config": read_terms,
    "schema": read_schema,
    "~/.flwr/config.toml": read_connection,
}
WORDS = {
    r"profile|at (?:this|each) site|\bsite": "profile",
    r"terms|run config|run\.toml|coordinator": "run config",
    r"schema": "schema",
    r"config\.toml": "~/.flwr/config.toml",
}
SHORTENED = {
    '"SHA256:…': f'"SHA256:{"A" * 43}', ",SHA256:…": f",SHA256:{'E' * 43}",
    "=3f9a…": f"={'3' * 32}", "=77b0…": f"={'7' * 32}", "east=…": f"east={'e' * 32}",
    "west=…": f"west={'a' * 32}", '"resnet18.pth"': f'"sha256:{"0" * 64}"',
    '"runs/last-year/model.safetensors"': f'"sha256:{"0" * 64}"', '"schema.toml"': '"heart"',
}  # fmt: skip
"""Texts that stand for longer ones, or for files."""


@pytest.mark.parametrize("block", of_language("toml"), ids=str)
def test_every_toml_block_is_read_by_its_parser(block: Block) -> None:
    """By that of a profile, a run config or a schema, and the words before it name which."""
    text = block.text
    for short, whole in SHORTENED.items():
        text = text.replace(short, whole)
    faults, readers = {}, []
    for kind, read in READERS.items():
        try:
            read(text)
            readers.append(kind)
        except HDPFLError as error:
            faults[kind] = str(error)
    assert readers, faults
    first = block.text.partition("\n")[0]
    said = " ".join((block.page, block.title, block.heading, block.before, first))
    named = {kind for words, kind in WORDS.items() if re.search(words, said, re.I)}
    assert named & set(readers), f"it is of a {readers}; the words before it say {named}"
