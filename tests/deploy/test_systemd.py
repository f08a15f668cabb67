"""``deploy/systemd``: units that systemd reads, with what the documents promise of them."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main

from hdpfl_tools.site.commands import app

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.service"))
TASKS = [unit for unit in UNITS if unit.stem.endswith("-tasks")]
PARSERS = {
    "flower-superlink": ("flwr.superlink.cli.flower_superlink", "_parse_args_run_superlink"),
    "flower-supernode": ("flwr.supernode.cli.flower_supernode", "_parse_args_run_supernode"),
    "flower-superexec": ("flwr.supercore.cli.flower_superexec", "_parse_args"),
}
"""Flower's own parsers, of the version that is pinned."""


def commands(unit: Path) -> list[list[str]]:
    """Return the command lines that a unit starts."""
    text = unit.read_text().replace("\\\n", " ")
    return [program_of(shlex.split(line)) for line in re.findall(r"^Exec\w+=(.*)$", text, re.M)]


def program_of(words: list[str]) -> list[str]:
    """Return the program that runs, by its name, and its words."""
    patient = Path(words[0]).name == "hdpfl-patient"
    return [Path(words[patient]).name, *words[1 + patient :]]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_every_unit_is_hardened_and_tells_nobody(unit: Path) -> None:
    lines = unit.read_text().splitlines()
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "UMask=0077"):
        assert line in lines, line
    assert "FLWR_TELEMETRY_ENABLED=0" in unit.read_text()
    user = "User=hdpfl" if unit in TASKS else "User=hdpfl-node"
    assert user in lines, "the one that holds the key is not the one that reads the records"


def options_of(program: str, words: list[str]) -> set[str]:
    """Return the options that the installed program takes."""
    if program == "hdpfl-site":
        command = typer.main.get_command(app)
        for word in words[: 1 + (words[0] == "profile")]:
            command = command.commands[word]  # type: ignore[attr-defined]
        return {option for parameter in command.params for option in parameter.opts}
    module, function = PARSERS[program]
    parser = getattr(importlib.import_module(module), function)()
    return set(parser._option_string_actions)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_every_option_is_one_of_the_program(unit: Path) -> None:
    for program, *words in commands(unit):
        given = {word for word in words if word.startswith("--")}
        assert given <= options_of(Path(program).name, words), program


def test_tasks_of_a_site_find_the_launcher_alone_and_talk_to_nobody() -> None:
    text = next(unit for unit in TASKS if "supernode" in unit.name).read_text()
    assert re.search(r"^Environment=PATH=/srv/hdpfl/approved/bin HOME", text, re.M)
    assert "IPAddressDeny=any\nIPAddressAllow=localhost\n" in text


def test_no_secret_is_an_argument() -> None:
    for unit in UNITS:
        for command in commands(unit):
            for option in ("--ssl-keyfile", "--auth-supernode-private-key"):
                if option in command:
                    assert command[command.index(option) + 1].startswith("%d/")
            if "--superexec-auth-secret-file" in command:
                assert "%d/superexec.secret" in command


def test_systemd_reads_them(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: the units are not verified")
    for unit in UNITS:
        text = re.sub(r"/srv/hdpfl/venv/bin/[a-z-]+", "/bin/true", unit.read_text())
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.glob("*.service")))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()
