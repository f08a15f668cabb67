"""``hdpfl new``: a project whose tests pass, whose bundle is the app, and which compare runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from hdpfl_flower.errors import HDPFLError, TermsError
from hdpfl_tools.coordinator.commands import app
from hdpfl_tools.coordinator.kinds_of_run import OPTIONAL
from hdpfl_tools.coordinator.project import APP, package_of, renew_app, write_project
from hdpfl_tools.coordinator.template.backbone import FILE, body
from hdpfl_tools.site.approval.fab import read_bundle

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("projects") / "heart-risk"
    assert write_project(folder) == "heart_risk"
    return folder


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Return a project with a backbone, whose weights lie in the test's home, too."""
    folder = tmp_path / "projects" / "scan-risk"
    assert write_project(folder, backbone=True) == "scan_risk"
    return folder


def called(*words: object, cwd: Path, home: Path) -> subprocess.CompletedProcess[str]:
    own = {
        "HDPFL_HOME": str(home), "FLWR_HOME": str(home / "flwr"), "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1", "COLUMNS": "200",
    }  # fmt: skip
    return subprocess.run(
        list(map(str, words)), cwd=cwd, env={**os.environ, **own}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_its_own_tests_pass(project: Path, tmp_path: Path) -> None:
    done = called(sys.executable, "-m", "pytest", "-q", cwd=project, home=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "9 passed" in done.stdout


def test_a_project_with_a_backbone_tests_its_numbers(scans: Path, tmp_path: Path) -> None:
    """New numbers, of no network that learned, fail them."""
    assert not (scans / "scan_risk" / "model.py").exists()
    done = called(sys.executable, "-m", "pytest", "-q", cwd=scans, home=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "9 passed" in done.stdout
    other = tmp_path / "scan-risk"
    shutil.copytree(scans, other)
    save_file(body().state_dict(), other / FILE)
    done = called(sys.executable, "-m", "pytest", "-q", cwd=other, home=tmp_path)
    assert done.returncode == 1
    assert "1 failed, 8 passed" in done.stdout
    (other / FILE).unlink()
    done = called(sys.executable, "-m", "scan_risk.backbone", cwd=other, home=tmp_path)
    assert (other / FILE).stat().st_size == (scans / FILE).stat().st_size, done.stderr


def test_its_bundle_is_the_app_with_the_users_modules(project: Path, tmp_path: Path) -> None:
    done = called(BIN / "flwr", "build", "--app", project, cwd=tmp_path, home=tmp_path)
    (file,) = tmp_path.glob("*.fab")
    bundle = read_bundle(file)
    assert bundle.app == "me/heart-risk", done.stderr
    own = {f"heart_risk/{module}.py" for module in ("__init__", "data", "model", "strategy")}
    assert own <= bundle.files.keys()
    apps = {p.relative_to(ROOT).as_posix() for name in APP for p in (ROOT / name).rglob("*.py")}
    assert apps <= bundle.files.keys()
    assert "hdpfl_flower/data/schemas/heart.toml" in bundle.files
    others = {name for name in bundle.files.keys() - own - apps if "/" not in name}
    assert others == {"pyproject.toml", "README.md", "LICENSE"}
    with zipfile.ZipFile(file) as archive:
        assert all(archive.read(name) == (ROOT / name).read_bytes() for name in apps)


def test_compare_runs_its_model_and_strategy(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["compare", "--run-config", "run.toml", "--strategies",
             "heart_risk.strategy:InverseLength", "--clients", "3", "--seeds", "1", "--rounds", "2",
             "--jobs", "1", "--out", out,
             "--csv", tmp_path / "x.csv"]  # fmt: skip
    done = called(BIN / "hdpfl", *words, cwd=project, home=tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.loads((out / "comparison.json").read_text())
    (found,) = content["results"].values()
    assert len(found["accuracy"][0]) == 2
    rows = (tmp_path / "x.csv").read_text().splitlines()
    assert rows[0].split(",")[:5] == ["strategy", "seed", "round", "measure", "value"]
    cells = [tuple(row.split(",")) for row in rows[1:]]
    assert {"accuracy", "loss", "site-accuracy-worst"} <= {row[3] for row in cells}
    last = {float(row[4]) for row in cells if row[2:4] == ("2", "accuracy")}
    assert last == {found["accuracy"][0][-1]}


@pytest.mark.parametrize("name", ["1st", "a_b", "strategies", "json", "numpy", "x" * 40, "a-"])
def test_a_name_that_flower_or_python_cannot_take_is_refused(name: str) -> None:
    with pytest.raises(TermsError, match="name"):
        package_of(name)


def test_nothing_is_overwritten_and_the_app_can_be_renewed(project: Path, tmp_path: Path) -> None:
    with pytest.raises(TermsError, match=r"is not overwritten.*--renew"):
        write_project(project)
    copy = tmp_path / "heart-risk"
    shutil.copytree(project, copy)
    (copy / "strategies" / "old.py").write_text("")
    (copy / "heart_risk" / "model.py").write_text("# mine\n")
    renew_app(copy)
    assert not (copy / "strategies" / "old.py").exists()
    assert (copy / "server_app" / "app.py").read_bytes() == (
        ROOT / "server_app/app.py"
    ).read_bytes()
    assert (copy / "heart_risk" / "model.py").read_text() == "# mine\n"


BROKEN = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 10)

    def forward(self, x):
        return self.layer(x.flatten(1))

def build(task):
    return Net()

def raises(task):
    return wrong_name
"""
COMPARE = ["compare", "--clients", "2", "--seeds", "1", "--rounds", "1", "--jobs", "1",
           "--strategies", "fedavg"]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "line", "text"),
    [
        ("build", "return self.layer(x.flatten(1))", "fails on a batch of zeros (RuntimeError)"),
        ("raises", "return wrong_name", "its function raised NameError"),
        ("nothing", "", "broken_net.py has no function 'nothing'"),
    ],
)
def test_compare_shows_the_author_the_traceback_before_any_round(
    function: str, line: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken_net.py").write_text(BROKEN)
    out = tmp_path / "out"
    words = [*COMPARE, "--model", f"broken_net:{function}", "--out", str(out)]
    done = CliRunner().invoke(app, words)
    sys.modules.pop("broken_net")
    assert isinstance(done.exception, HDPFLError)
    assert text in str(done.exception)
    assert not out.exists()
    if line:
        assert "Traceback of your code" in done.stderr
        assert line in done.stderr
        assert "hdpfl_tools" not in done.stderr.partition("broken_net.py")[0]


PLAIN = (
    'strategy = "mmse"\nmodel = "logreg"\ndataset = "site"\nschema = "heart"\nevaluation = "none"\n'
)


def files_of(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for name in APP for p in (folder / name).rglob("*.py")}


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("", ()),
        ('noise = "client"\n', ("client_app/training/client_level.py",)),
        ('[second]\nkind = "kept"\n', ("client_app/training/ditto.py",)),
        ("[after.tuning]\nsteps = 4\n", ("client_app/releases/tuning.py",)),
        ("[after.scores]\nshare = 0.2\n", ("client_app/releases/scores.py",)),
        ("[first.moments]\nshare = 0.2\n", ("client_app/releases/moments.py",)),
        ('model = "cnn"\n', ("hdpfl_flower/engines/ghost_clipping.py",)),
    ],
    ids=["plain", "client", "second", "tuning", "scores", "first", "cnn"],
)
def test_the_app_of_a_run_holds_the_kinds_that_it_names(
    project: Path, line: str, needed: tuple[str, ...]
) -> None:
    plain = PLAIN if "model" not in line else PLAIN.replace('model = "logreg"\n', "")
    (project / "run.toml").write_text(plain + line)
    renew_app(project, only=True)
    files, every = files_of(project), {file for part in OPTIONAL for file in part.files}
    assert set(needed) <= files
    if not line:
        assert not files & every
        # A run over tables of mostly categories has no first message by default.
        assert not {name for name in files if re.match(r"client_app/releases/(?!base|__)", name)}
    renew_app(project)
    assert every <= files_of(project)


def test_a_site_answers_a_plain_run_with_the_app_of_that_run(project: Path, tmp_path: Path) -> None:
    (project / "run.toml").write_text(PLAIN)
    renew_app(project, only=True)
    for file in ("tests/__init__.py", "tests/client_app/messages.py"):
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, project / file)
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from pathlib import Path\nfrom tests.client_app.messages import ask, make_site, terms_of\n"
        "site = make_site(Path(sys.argv[1]))\n"
        "for number in (1, 2):\n    assert ask(site, terms_of(), number).has_content()\n"
        "print(ask(site, terms_of(**{'run-id': 'b', 'second.kind': 'kept'})).has_content())\n"
    )
    done = called(sys.executable, "-P", "-c", code, tmp_path / "site", cwd=project, home=tmp_path)
    assert done.stdout == "False\n", done.stderr
    assert "holds no client_app.training.ditto" in done.stderr
