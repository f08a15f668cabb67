"""Three users from their own files to a report, by the commands that the documentation shows.

A data manager with a messy CSV, an engineer with folders of images, a doctoral student with an npz.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from client_app.commands import app as site_app
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from server_app.commands import app as coordinator_app
from server_app.in_process.profile_grid import ProfileGrid
from server_app.run.rounds import RunResult, run

COMMANDS_TO_GREEN = 10
"""That a data manager needs at most, from the export to a check without an error."""


class Shell:
    """Runs commands, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, program: str, *words: object) -> str:
        self.count += 1
        app = {"hdpfl": coordinator_app, "hdpfl-site": site_app}[program]
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, (words, done.output, done.exception)
        return done.output


def rehearse(config: RunConfig, profiles: dict[str, Path]) -> RunResult:
    grid = ProfileGrid(profiles)
    try:
        return run(grid, config)
    finally:
        grid.close()


BUDGET = """
[budget]
epsilon = 8.0
delta = 1e-4
[run]
epsilon = 4.0
delta = 1e-5
[training]
batch-size = 32
declared-records = {records}
device = "cpu"
[ledger]
path = "ledger/ledger.sqlite"
anchor = "anchor/ledger.anchor"
[state]
path = "state"
"""


def write_private(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


# --- a data manager ------------------------------------------------------------------------------

SCHEMA = """
id = "patient"
[label]
column = "infarction"
classes = [["no", "nein"], ["yes", "ja"]]
[[columns]]
name = "age"
type = "number"
bounds = [18, 100]
[[columns]]
name = "sex"
type = "category"
categories = [["female", "w", "f"], ["male", "m"]]
[[columns]]
name = "chol"
type = "number"
bounds = [100, 400]
"""
TABLE = """
[data]
format = "csv"
path = "export.csv"
encoding = "cp1252"
decimal = ","
missing = ["k.A."]
id = "patient"
holdout = 0.25
[data.columns.patient]
name = "PatNr"
[data.columns.age]
name = "Geburtsdatum"
to = "age"
date-formats = ["%d.%m.%Y"]
reference = "2024-12-31"
[data.columns.sex]
name = "Geschlecht"
[data.columns.chol]
name = "Cholesterin (größter Wert)"
factor = 38.67
[data.columns.infarction]
name = "Infarkt"
"""


def messy_export(path: Path) -> None:
    """Write what a hospital exports: semicolons, decimal commas, umlauts, dates, gaps, a sum."""
    draws = np.random.default_rng(1)
    lines = ["PatNr;Geburtsdatum;Geschlecht;Cholesterin (größter Wert);Infarkt;Bemerkung"]
    for i in range(240):
        age, chol = draws.integers(30, 85), draws.normal(5.6, 1.1)
        sick = draws.normal(0, 1.5) < (age - 58) / 12 + (chol - 5.6)
        value = "k.A." if i % 20 == 0 else f"{chol:.2f}".replace(".", ",")
        lines.append(
            f"P{i:04};{1 + i % 28:02}.{1 + i % 12:02}.{2024 - age};{'wm'[i % 2]};{value};"
            f'{"ja" if sick else "nein"};"geprüft; Dr. Müller"'
        )
    lines.append("Summe;;;;;")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\r\n".join(lines).encode("cp1252"))


def test_a_data_manager_from_a_messy_export_to_a_page_for_the_board(tmp_path: Path) -> None:
    shell, ours = Shell(), tmp_path / "ours"
    export, schema, terms = ours / "export.csv", tmp_path / "schema.toml", tmp_path / "run.toml"
    messy_export(export)
    draft = shell("hdpfl-site", "schema", "draft", export, "--label", "Infarkt", "--id", "PatNr",
                  "--out", tmp_path / "draft.toml")  # fmt: skip
    for line in ('encoding = "cp1252"', 'decimal = ","', 'missing = ["k.A."]', "%d.%m.%Y"):
        assert line in draft  # what the profile below says
    schema.write_text(SCHEMA)
    shell("hdpfl-site", "schema", "check", schema)
    terms.write_text(
        f'run-id = "infarction-1"\ndataset = "site"\nschema = "{schema.name}"\nrounds = 2\n'
        'learning-rate = 0.5\nstrategy = "fedavg"\nevaluation = "none"\nmin-sites = 2\n'
        f'join-timeout = 0.5\npurpose = "Risk of a heart attack"\nruns-dir = "{tmp_path}"\n'
    )
    profile = write_private(ours / "profile.toml", TABLE + BUDGET.format(records=180))
    shell("hdpfl-site", "ledger", "init", "--profile", profile)
    check = shell("hdpfl-site", "profile", "check", "--profile", profile, "--terms", terms)
    assert shell.count <= COMMANDS_TO_GREEN
    found = [line.split()[0] for line in check.splitlines()]
    assert found.count("error") == 0 and found.count("ok") >= 8, check
    warned = {line.split()[1] for line in check.splitlines() if line.startswith("warning")}
    assert warned <= {"anchor:", "time:"}, check  # one disk; no 'reply-after'
    assert "ε 4" in shell("hdpfl-site", "plan", "--profile", profile, "--terms", terms)

    north = tmp_path / "north"
    messy_export(north / "export.csv")
    standing = f'approval = "standing"\n{profile.read_text()}'
    sites = {"ours": profile, "north": write_private(north / "profile.toml", standing)}
    shell("hdpfl-site", "ledger", "init", "--profile", sites["north"])
    config = RunConfig.load(terms)
    with pytest.raises(StrategyError, match="pending: ours"):
        rehearse(config, sites)
    waits = shell("hdpfl-site", "requests", "--profile", profile)
    assert "Risk of a heart attack" in waits and "price      ε 4" in waits
    shell("hdpfl-site", "approve", "1", "--yes", "--profile", profile)
    assert rehearse(config, sites).rounds[-1]["accepted"] == ["north", "ours"]

    assert "AUROC" in shell("hdpfl-site", "evaluate", "--profile", profile)
    board = tmp_path / "board.html"
    shell("hdpfl-site", "report", "--html", "--out", board, "--profile", profile)
    assert "infarction-1" in board.read_text()
    assert "PatNr" not in board.read_text() and "Müller" not in board.read_text()
    print(f"{shell.count} commands from the export to the page")


# --- an engineer ---------------------------------------------------------------------------------


def image_folder(folder: Path, seed: int) -> None:
    """Write 60 images of 8 × 8 in the folders 0 and 1: bright above, or bright below."""
    draws = np.random.default_rng(seed)
    for i in range(60):
        image = draws.integers(0, 120, (8, 8))
        image[:4] += 120 * (i % 2)
        image[4:] += 120 * (1 - i % 2)
        target = folder / str(i % 2) / f"{i}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.astype(np.uint8)).save(target)


def test_an_engineer_from_folders_of_images_to_a_run_and_its_report(tmp_path: Path) -> None:
    shell, sites = Shell(), {}
    terms = tmp_path / "run.toml"
    terms.write_text(
        'run-id = "images-1"\ndataset = "site"\ntask = "classification shape=1,8,8 classes=2"\n'
        'model = "logreg"\nstrategy = "fedavg"\nrounds = 3\nlearning-rate = 1.0\n'
        f'evaluation = "none"\nmin-sites = 3\nruns-dir = "{tmp_path}"\n'
    )
    for seed, name in enumerate(("ada", "ben", "cleo")):
        image_folder(tmp_path / name / "scans", seed)
        data = '[data]\nformat = "images"\npath = "scans"\nholdout = 0.3\n'
        text = f'approval = "standing"\n{data}{BUDGET.format(records=42)}'
        sites[name] = write_private(tmp_path / name / "profile.toml", text)
        shell("hdpfl-site", "ledger", "init", "--profile", sites[name])
        check = shell("hdpfl-site", "profile", "check", "--profile", sites[name], "--terms", terms)
        assert "records: 60 found" in check and "error" not in check, check
    result = rehearse(RunConfig.load(terms), sites)
    assert result.rounds[-1]["accepted"] == ["ada", "ben", "cleo"]
    measured = shell("hdpfl-site", "evaluate", "--profile", sites["ada"], "--json")
    assert '"auroc"' in measured
    shell("hdpfl", "report", tmp_path / "images-1", "--out", tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert all(name in page for name in sites)


# --- a doctoral student --------------------------------------------------------------------------


def called(command: str, cwd: Path, home: Path) -> str:
    """Run a line of a terminal, as its user would."""
    program, *words = shlex.split(command)
    start = f"from {'client_app' if program == 'hdpfl-site' else 'server_app'}.commands import main"
    done = subprocess.run(
        [sys.executable, "-c", f"{start}\nif __name__ == '__main__':\n    main()", *words],
        cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, "HDPFL_HOME": str(home), "COLUMNS": "300"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_doctoral_student_from_nothing_to_a_picture_and_from_an_npz_to_a_report(
    tmp_path: Path,
) -> None:
    """By the commands that ``hdpfl new`` prints; the time is printed, for machines differ."""
    began = time.monotonic()
    printed = called("hdpfl new my-idea", tmp_path, tmp_path / "home").splitlines()
    assert printed[-2] == "cd my-idea"
    project = tmp_path / "my-idea"
    table = called(f"{printed[-1]} --jobs 1", project, tmp_path / "home")
    (folder,) = re.findall(r"^(.*)/comparison\.json and comparison\.png$", table, re.M)
    assert (Path(folder) / "comparison.png").read_bytes()[:4] == b"\x89PNG"
    print(f"3 commands and {time.monotonic() - began:.0f} s from hdpfl new to a picture")

    draws = np.random.default_rng(1)
    y = np.arange(200) % 3
    x: Any = draws.normal(y[:, None], 1.0, (200, 5)).astype(np.float32)
    np.savez(project / "own.npz", x=x, y=y)
    called(
        "hdpfl compare --dataset file:own.npz --model my_idea.model:build --rounds 2 --seeds 1 "
        "--clients 3 --strategies my_idea.strategy:InverseLength,mmse --jobs 1 --out own "
        "--csv own.csv",
        project, tmp_path / "home",
    )  # fmt: skip
    called("hdpfl report own --out own.html", project, tmp_path / "home")
    page = (project / "own.html").read_text()
    assert "InverseLength" in page and "data:image/png" in page
    assert {row.split(",")[3] for row in (project / "own.csv").read_text().splitlines()} >= {
        "auroc"
    }
