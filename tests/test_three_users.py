"""Three users from their own files to a report, by the commands that the documentation shows.

Three hospitals with their exports, an engineer with folders of images, a doctoral student with an
npz.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import StrategyError
from hdpfl_tools.coordinator.commands import app as coordinator_app
from hdpfl_tools.simulation.in_process.profile_grid import ProfileGrid
from hdpfl_tools.site.commands import app as site_app
from hdpfl_tools.tables.site_data import read_site_data
from server_app.run.rounds import RunResult, run
from tests.docs.blocks import of_language, pattern_of, plain


class Shell:
    """Runs commands, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, program: str, *words: object, code: int = 0) -> str:
        self.count += 1
        app = {"hdpfl": coordinator_app, "hdpfl-site": site_app}[program]
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == code, (words, done.output, done.exception)
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


# --- three hospitals -----------------------------------------------------------------------------

SCHEMA = """
id = "patient"
[label]
column = "readmitted"
classes = [["0", "no"], ["1", "yes"]]
[[columns]]
name = "age"
type = "number"
bounds = [18, 100]
[[columns]]
name = "sex"
type = "category"
categories = [["f", "female"], ["m", "male"]]
[[columns]]
name = "hba1c"
type = "number"
bounds = [3, 15]
[[columns]]
name = "glucose"
type = "number"
bounds = [20, 400]
"""
KOELN = """
[data.columns.age]
name = "Geburtsdatum"
to = "age"
date-formats = ["%d.%m.%Y"]
reference = "Aufnahme"
[data.columns.sex]
name = "Geschlecht"
values = { w = "female" }
[data.columns.hba1c]
name = "HbA1c (%)"
[data.columns.glucose]
name = "Nüchternglukose"
below-limit = "half"
[data.columns.readmitted]
name = "Wiederaufnahme"
values = { ja = "yes", nein = "no" }
"""
LEEDS = """
[data.columns.age]
name = "age_years"
[data.columns.sex]
name = "gender"
[data.columns.hba1c]
name = "hba1c_ifcc"
strip = ["mmol/mol"]
factor = 0.09148
offset = 2.152
[data.columns.glucose]
name = "glucose_mmol_l"
factor = 18.016
[data.columns.readmitted]
name = "readmission"
values = { Y = "yes", N = "no" }
"""


def patients(seed: int, number: int) -> Iterator[tuple[int, int, str, float, float, bool]]:
    """Yield age, sex, HbA1c in %, glucose in mg/dl, and whether the patient came back."""
    draws = np.random.default_rng(seed)
    for i in range(number):
        age, sex = int(draws.integers(30, 88)), "fm"[draws.integers(2)]
        hba1c, glucose = float(draws.normal(6.6, 0.6)), float(draws.normal(110, 15))
        yield i, age, sex, hba1c, glucose, draws.normal(0, 1) < (age - 60) / 12 + (hba1c - 6.6)


def boston(folder: Path) -> Path:
    """Write a workbook with a title, mg/dl and the schema's names, and a note."""
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    book = openpyxl.Workbook()
    book.active.append(["Ward 7, last year"])
    book.active.append([])
    book.active.append(["mrn", "age", "sex", "hba1c", "glucose", "readmitted", "note"])
    for i, age, sex, hba1c, glucose, back in patients(1, 320):
        row = [f"B{i:05}", age, sex, round(hba1c, 1), round(glucose), int(back), 'seen, "stable"']
        book.active.append(row)
    book.save(folder / "export.xlsx")
    return folder / "export.xlsx"


def koeln(folder: Path) -> Path:
    """Write cp1252 with semicolons, decimal commas, dates, gaps, limits, and a patient twice."""
    lines = ["PatNr;Geburtsdatum;Geschlecht;HbA1c (%);Nüchternglukose;Wiederaufnahme;Aufnahme"]
    for i, age, sex, hba1c, glucose, back in patients(2, 280):
        percent = "k.A." if i % 25 == 0 else f"{hba1c:.1f}".replace(".", ",")
        sugar = "<60" if i % 30 == 1 else f"{glucose:.1f}".replace(".", ",")
        day = f"{1 + i % 28:02}.{1 + i % 12:02}."
        lines.append(
            f"{i + 1000};{day}{2025 - age};{'w' if sex == 'f' else 'm'};{percent};{sugar};"
            f"{'ja' if back else 'nein'};{day}2025"
        )
    (folder / "export.csv").write_bytes("\r\n".join([*lines, lines[5]]).encode("cp1252"))
    return folder / "export.csv"


def leeds(folder: Path) -> Path:
    """Write a database: mmol/mol with the unit in each cell, mmol/l, words for the label."""
    with sqlite3.connect(folder / "lab.db") as database:
        database.execute(
            "CREATE TABLE lab (nhs_no INT, age_years INT, gender, hba1c_ifcc, glucose_mmol_l REAL, "
            "readmission)"
        )
        for i, age, sex, hba1c, glucose, back in patients(3, 250):
            unit = f"{(hba1c - 2.152) / 0.09148:.0f} mmol/mol"
            row = (4_000_000_000 + i, age, "female" if sex == "f" else "male", unit,
                   round(glucose / 18.016, 1), "NY"[back])  # fmt: skip
            database.execute("INSERT INTO lab VALUES (?, ?, ?, ?, ?, ?)", row)
    return folder / "lab.db"


HOSPITALS = {
    "Boston": (boston, "mrn", 270, ""),
    "Köln": (koeln, "PatNr", 240, KOELN),
    "Leeds": (leeds, "nhs_no", 210, LEEDS),
}
"""The export, its id, about the records for training, and what the site adds to its profile."""
COMMANDS_OF_A_SITE = 9
MINUTES = 10


def test_three_hospitals_from_their_exports_to_signed_pages(tmp_path: Path) -> None:
    """By the commands of ``docs/how-to/site.md``, in its order; ten minutes are counted, too."""
    began, terms = time.monotonic(), tmp_path / "run.toml"
    (tmp_path / "schema.toml").write_text(SCHEMA)
    terms.write_text(
        'run-id = "readmission-1"\ndataset = "site"\nschema = "schema.toml"\nrounds = 10\n'
        'learning-rate = 0.5\nlocal-epochs = 2\nstrategy = "mmse"\nevaluation = "none"\n'
        'min-sites = 3\njoin-timeout = 0.5\npurpose = "Risk of readmission"\n'
        f'coordinator = "Uni Köln"\nruns-dir = "{tmp_path}"\n'
    )
    shells = {name: Shell() for name in HOSPITALS}
    printed: dict[str, str] = {}
    profiles = {name: tmp_path / name / "profile.toml" for name in HOSPITALS}
    for name, (export, column, records, mapping) in HOSPITALS.items():
        shell, profile = shells[name], profiles[name]
        profile.parent.mkdir()
        data = export(profile.parent)
        at = ("--profile", profile)
        shell("hdpfl-site", "profile", "new", "--name", name, "--to", profile, "--terms", terms,
              "--data", data, "--id", column, "--records", records,
              "--epsilon", 2, "--cap", 8, "--anchor", tmp_path / f"{name}.anchor")  # fmt: skip
        shell("hdpfl-site", "ledger", "--init", *at)
        if mapping:  # what is missing is named by the schema's names, and where to write it
            found = shell("hdpfl-site", "profile", "check", "--terms", terms, *at, code=1)
            printed |= {"3. Say how the table is written": found} if name == "Köln" else {}
            (fault,) = [line for line in found.splitlines() if line.startswith("error")]
            for each in ("'age'", "'sex'", "'hba1c'", "'readmitted'", "name = … in [data.columns."):
                assert each in fault
            profile.write_text(profile.read_text().replace("[ledger]", f"{mapping}[ledger]"))
        found = shell("hdpfl-site", "profile", "check", "--terms", terms, *at)
        assert "lost: 0 of " in found and "; 0 numbers are clipped" in found, found
        warned = {line.split()[1] for line in found.splitlines() if line.startswith("warning")}
        assert warned - {"data:"} == {"anchor:", "disclosure:", "time:"}, found
        assert ("repeated id" in found) == ("data:" in warned) == (name == "Köln"), found
        price = shell("hdpfl-site", "plan", "--terms", terms, *at)
        assert "ε 2" in price
        if name == "Köln":
            printed |= {"4. Check the records": found, "5. Ask the price": price}
    for block in of_language("text"):
        if block.page == "docs/how-to/site.md" and (text := printed.pop(block.heading, "")):
            assert pattern_of(block.text).search(plain(text)), text
    assert not printed

    config = RunConfig.load(terms)
    with pytest.raises(StrategyError, match="pending: Boston, Köln, Leeds"):
        rehearse(config, profiles)
    for name, profile in profiles.items():
        waits = shells[name]("hdpfl-site", "requests", "--profile", profile)
        assert "Risk of readmission" in waits and "price      ε 2" in waits
        shells[name]("hdpfl-site", "approve", 1, "--yes", "--profile", profile)
        source = Profile.load(profile).data
        assert source is not None
        features = read_site_data(source, Schema.parse(SCHEMA).task, SCHEMA).train.features
        # Of 58.5 years, 6.6 % and 110 mg/dl in the schema's bounds, whatever the units of a table.
        off = np.abs(features.mean(0)[[0, 3, 4]] - [-0.012, -0.4, -0.526])
        assert (off < [0.12, 0.05, 0.05]).all(), (name, off)
    assert rehearse(config, profiles).rounds[-1]["accepted"] == ["Boston", "Köln", "Leeds"]

    for name, profile in profiles.items():
        shell, board = shells[name], profile.parent / "board.html"
        measured = shell("hdpfl-site", "evaluate", "--profile", profile)
        (auroc,) = re.findall(r"^AUROC +([0-9.]+)", measured, re.M)
        assert float(auroc) > 0.6
        shell("hdpfl-site", "report", "--html", "--out", board, "--profile", profile)
        page = board.read_text()
        assert name in page and "readmission-1" in page and "Risk of readmission" in page
        assert not any(each in page for each in ("PatNr", "export.", "lab.db", "Nüchternglukose"))
        assert shell.count <= COMMANDS_OF_A_SITE
    assert time.monotonic() - began < 60 * MINUTES


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
        'run-id = "images-1"\ndataset = "site"\n'
        'task.kind = "classification"\ntask.shape = "1,8,8"\ntask.classes = 2\n'
        'model = "logreg"\nstrategy = "fedavg"\nrounds = 3\nlearning-rate = 1.0\n'
        f'evaluation = "none"\nmin-sites = 3\nruns-dir = "{tmp_path}"\n'
    )
    for seed, name in enumerate(("ada", "ben", "cleo")):
        image_folder(tmp_path / name / "scans", seed)
        data = '[data]\nformat = "images"\npath = "scans"\nholdout = 0.3\n'
        text = f'approval = "standing"\n{data}{BUDGET.format(records=42)}'
        sites[name] = write_private(tmp_path / name / "profile.toml", text)
        shell("hdpfl-site", "ledger", "--init", "--profile", sites[name])
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


def test_students_from_nothing_to_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the commands that ``hdpfl new`` prints; the time is printed, for machines differ."""
    began, shell = time.monotonic(), Shell()
    monkeypatch.setenv("HDPFL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # a command adds the folder that it is called in
    monkeypatch.chdir(tmp_path)
    printed = shell("hdpfl", "new", "my-idea").splitlines()
    assert printed[-2] == "cd my-idea"
    project = tmp_path / "my-idea"
    monkeypatch.chdir(project)
    table = shell(*shlex.split(printed[-1]), "--jobs", 1)
    (folder,) = re.findall(r"^(.*)/comparison\.json and comparison\.png$", table, re.M)
    assert (Path(folder) / "comparison.png").read_bytes()[:4] == b"\x89PNG"
    print(f"3 commands and {time.monotonic() - began:.0f} s from hdpfl new to a picture")

    draws = np.random.default_rng(1)
    y = np.arange(200) % 3
    x: Any = draws.normal(y[:, None], 1.0, (200, 5)).astype(np.float32)
    np.savez(project / "own.npz", x=x, y=y)
    command = (
        "hdpfl compare --dataset file:own.npz --model my_idea.model:build --rounds 2 --seeds 1 "
        "--clients 3 --strategies my_idea.strategy:InverseLength,mmse --jobs 1 --out own "
        "--csv own.csv"
    )
    shell(*shlex.split(command))
    shell("hdpfl", "report", "own", "--out", "own.html")
    page = (project / "own.html").read_text()
    assert "InverseLength" in page and "data:image/png" in page
    assert {row.split(",")[3] for row in (project / "own.csv").read_text().splitlines()} >= {
        "auroc"
    }
