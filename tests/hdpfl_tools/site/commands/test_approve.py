"""``hdpfl-site approve``: approved apps run, bit by bit; of any other not a line does."""

from __future__ import annotations

import hashlib
import re
import runpy
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

from hdpfl_flower.errors import DeploymentError
from hdpfl_flower.system.task_programs import task_programs
from hdpfl_tools.site.approval import fab as bundles
from hdpfl_tools.site.approval import launcher
from hdpfl_tools.site.commands.approve import differences
from tests.hdpfl_tools.site.commands.conftest import SiteFolder
from tests.hdpfl_tools.site.commands.fabs import (
    CODE,
    MODULE,
    MODULES,
    bundle,
    install_bundle,
    pack,
    pyproject,
    run_what_is_sent,
    supernode_runtime,
)

VERSION = "0.1.0"


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "app.fab"
    path.write_bytes(content)
    return path


@pytest.fixture(name="this_app", scope="module")
def bundle_of_this_app() -> bytes:
    return build_fab_from_disk(Path(launcher.__file__).parents[3])


@pytest.fixture
def pinned(
    tmp_path: Path, site: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """A SuperNode's runtime under our launcher, with one approved app: ``own_app``."""
    runtime = supernode_runtime()
    for name in ("install_from_fab", "get_load_client_app_fn"):  # undone after the test
        monkeypatch.setattr(runtime, name, getattr(runtime, name))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setattr(launcher, "APPROVED", tmp_path / "approved")
    install_bundle(bundle("own_app", VERSION), tmp_path / "approved")
    launcher.pin(runtime)
    yield runtime
    for name in MODULES:
        sys.modules.pop(name, None)


def test_an_approved_app_runs_from_the_sites_own_folder(pinned: ModuleType, tmp_path: Path) -> None:
    fab = bundle("own_app", VERSION)
    found = run_what_is_sent(pinned, fab, VERSION)
    digest = hashlib.sha256(fab).hexdigest()
    assert found == str(tmp_path / "approved" / "apps" / digest / "own_app.py")
    assert not (tmp_path / "flwr").exists(), "what was sent is not even unpacked"


def test_the_launcher_looks_for_apps_where_approve_puts_them(
    tmp_path: Path, site: SiteFolder
) -> None:
    """From the file itself, in its place; the other tests name the folder to it."""
    fab, folder = bundle(MODULE, VERSION), tmp_path / "approved"
    assert site.bare("approve", written(tmp_path, fab), "--to", folder, "--yes").code == 0
    own = runpy.run_path(str(folder / "bin" / "flwr-clientapp"), run_name="launcher")
    assert own["APPROVED"] == folder.resolve()
    apps = own["APPROVED"] / "apps"
    assert own["refusal"](apps / hashlib.sha256(fab).hexdigest()) == ""
    assert "is not approved" in own["refusal"](apps / hashlib.sha256(b"other").hexdigest())


def test_a_changed_app_does_not_run(
    pinned: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Same name, same version, one line more; and the same, led out of the folder of apps."""
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w')\n{CODE}".encode()
    for version in (VERSION, f"{VERSION}.1a2b3c4d/../../elsewhere"):
        changed = bundle("own_app", version, own_app=code)
        with pytest.raises(pinned.LoadClientAppError, match=r"^not approved$"):
            run_what_is_sent(pinned, changed, version)
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith("error: the app of this run is not approved, SHA-256 ")
        assert hashlib.sha256(changed).hexdigest() in said
    assert not mark.exists()
    assert not (tmp_path / "flwr").exists(), "nothing was unpacked"
    assert not set(MODULES) & set(sys.modules)


def test_an_app_is_known_by_all_of_its_digest(pinned: ModuleType, tmp_path: Path) -> None:
    """Another one with the same first digits is found in 2^32 trials."""
    changed = bundle("sent_app", VERSION)
    digest = hashlib.sha256(changed).hexdigest()
    (approved,) = (tmp_path / "approved" / "apps").iterdir()
    approved.rename(approved.with_name(digest[:8] + approved.name[8:]))
    with pytest.raises(pinned.LoadClientAppError):
        run_what_is_sent(pinned, changed, VERSION)


@pytest.mark.parametrize("path", [".", "apps", "apps/*"])
def test_a_folder_that_others_can_write_to_is_refused(
    pinned: ModuleType, tmp_path: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = (tmp_path / "approved").glob(path) if path != "." else [tmp_path / "approved"]
    folder.chmod(0o775)
    with pytest.raises(pinned.LoadClientAppError):
        run_what_is_sent(pinned, bundle("own_app", VERSION), VERSION)
    assert f"others can write to {folder}; run: chmod go-w {folder}" in capsys.readouterr().err


def test_what_is_approved_can_be_changed_by_nobody_but_its_owner(
    pinned: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "approved"
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert path.is_symlink() or not mode & 0o022, path
        assert path.is_symlink() or mode & 0o004, f"{path}: the node's user reads it"
        if path.is_file() and "apps" in path.parts:
            assert mode == 0o444
    programs = {path.name for path in (folder / "bin").iterdir()}
    assert programs == {"flower-superexec", *task_programs()}
    assert list(folder.rglob("*.pyc")), "compiled, since the node cannot"


@pytest.mark.parametrize("program", sorted(TASK_TYPE_TO_COMMAND.values()))
@pytest.mark.parametrize("installs", [False, True])
def test_only_a_client_app_is_answered_and_nothing_installed(
    pinned: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], *, program: str, installs: bool,
) -> None:  # fmt: skip
    """A task of any type that the server states; its message gets Flower's error in each case."""
    mine, answers = bundle("own_app", VERSION), []

    def answer() -> None:
        try:
            answers.append(run_what_is_sent(pinned, mine, VERSION))
        except pinned.LoadClientAppError as error:
            answers.append(str(error))
        answers.append(launcher.INSTALLS in sys.argv)

    pinned.get_load_client_app_fn = get_load_client_app_fn  # Flower's own again
    flower = SimpleNamespace(flwr_clientapp=answer), pinned
    monkeypatch.setattr(launcher, "_import_flower", lambda: flower)
    monkeypatch.setattr(sys, "argv", [f"/x/{program}", "--token", "x"])
    if installs:
        sys.argv.append(launcher.INSTALLS)
    launcher.main()
    if program == "flwr-clientapp" and not installs:
        assert answers[0].endswith("own_app.py")
    else:
        assert answers == ["not approved", False]
        assert capsys.readouterr().err.startswith("error: ")


def test_every_program_of_a_task_is_the_launcher(pinned: ModuleType, tmp_path: Path) -> None:
    """Started by name, as flower-superexec does, with the folder alone in its PATH."""
    folder = tmp_path / "approved" / "bin"
    assert task_programs() >= set(TASK_TYPE_TO_COMMAND.values())
    for program in task_programs():
        found = shutil.which(program, path=str(folder))
        assert found is not None
        assert Path(found).resolve() == folder / "flwr-clientapp"
    done = subprocess.run(
        ["flwr-agentapp", "--help"], env={"PATH": str(folder)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "Run a Flower ClientApp" in done.stdout


def test_a_program_that_flower_adds_is_linked_and_has_to_be_reviewed(
    pinned: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new name in this set is a new thing that a server can start: read what it does."""
    reviewed = {f"flwr-{name}app" for name in ("agent", "client", "server")}
    reviewed |= {"flwr-connector", "flwr-model", "flwr-simulation"}
    assert task_programs() == reviewed
    monkeypatch.setattr(bundles, "task_programs", lambda: {*reviewed, "flwr-new"})
    install_bundle(bundle("own_app", VERSION), tmp_path / "approved")
    assert (tmp_path / "approved" / "bin" / "flwr-new").resolve().name == "flwr-clientapp"


def test_it_says_what_differs_and_asks(site: SiteFolder, tmp_path: Path) -> None:
    root = Path(launcher.__file__).parents[3]
    name = "client_app/site/consent.py"
    files = {
        "pyproject.toml": pyproject(MODULE, VERSION).encode(),
        name: (root / name).read_bytes() + b"# more\n",
        "client_app/new.py": b"",
        "client_app/site/site.py": (root / "client_app/site/site.py").read_bytes(),
    }
    app, folder = written(tmp_path, pack(files)), tmp_path / "approved"
    asked = site.bare("approve", app, "--to", folder, answer="n\n")
    assert "nothing was approved" in asked.error()
    assert not folder.exists()
    assert f"  changed  {name}\n" in asked.out
    assert "  added    client_app/new.py\n" in asked.out
    assert "  missing  client_app/app.py\n" in asked.out
    assert "client_app/site/site.py" not in asked.out
    assert site.bare("approve", app, "--to", folder, answer="y\n").code == 0
    assert len(list((folder / "apps").iterdir())) == 1


def test_the_digest_that_the_coordinator_told_is_held_against_it(
    site: SiteFolder, tmp_path: Path
) -> None:
    fab = bundle(MODULE, VERSION)
    app, folder = written(tmp_path, fab), tmp_path / "approved"
    digest = hashlib.sha256(fab).hexdigest()
    for other in ("00", digest[:8], digest[:-1], f"{digest}0"):
        wrong = site.bare("approve", app, "--to", folder, "--yes", "--sha256", other)
        assert "is not the expected app: its SHA-256 is" in wrong.error()
    assert not folder.exists()
    right = site.bare("approve", app, "--to", folder, "--yes", "--sha256", digest.upper())
    assert right.code == 0, right.err
    again = site.bare("approve", app, "--to", folder, "--yes")
    assert again.code == 0, again.err
    assert [path.name for path in (folder / "apps").iterdir()] == [digest]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no zip", "is not a Flower app"),
        (pack({"x.py": b""}), "is not a Flower app"),
        (bundle(MODULE, VERSION)[:-30], "is not a Flower app"),
        (
            pack({"pyproject.toml": b"", "a.py": b"1"}, {"pyproject.toml": b"", "a.py": b"2"}),
            "is not a Flower app",
        ),
    ],
)
def test_what_is_no_app_is_one_clear_line(
    site: SiteFolder, tmp_path: Path, content: bytes, words: str
) -> None:
    done = site.bare("approve", written(tmp_path, content), "--to", tmp_path / "to", "--yes")
    assert words in done.error()
    assert not (tmp_path / "to").exists()


def test_files_that_are_not_those_listed_are_refused(tmp_path: Path) -> None:
    good = bundles.read_bundle(written(tmp_path, bundle(MODULE, VERSION))).files
    for files, listed in (
        ({**good, "client_app/app.py": b"other"}, good),
        ({**good, "client_app/unlisted.py": b""}, good),
        (good, {**good, "client_app/unshipped.py": b""}),
    ):
        with pytest.raises(DeploymentError, match="not those that it lists"):
            bundles.read_bundle(written(tmp_path, pack(files, listed)))


def test_the_app_of_this_very_package_differs_in_nothing(this_app: bytes, tmp_path: Path) -> None:
    found = differences(bundles.read_bundle(written(tmp_path, this_app)))
    # The installed copy of the README is as old as the installation.
    assert [line for line in found if "README.md" not in line] == []


def test_the_files_that_run_here_are_counted_and_opened_in_order(
    site: SiteFolder, this_app: bytes, tmp_path: Path
) -> None:
    app = written(tmp_path, this_app)
    opened = site("approve", app, "--read").out
    names = re.findall(r"^=== \d+ of \d+: (\S+), \d+ lines$", opened, re.M)
    assert names[0].startswith("client_app/")
    assert not [name for name in names if name.startswith(("strategies/", "server_app/"))]
    assert opened.index("A message arrives") < opened.index("The ledger is charged")
    counted = site("approve", app, "--to", tmp_path / "to", "--yes").out
    assert f"{len(names)} of these files can run here" in counted


def test_a_source_cannot_write_to_the_terminal(site: SiteFolder, tmp_path: Path) -> None:
    app = written(tmp_path, bundle(MODULE, VERSION, **{"client_app.x": b"x = '\x1b[2J'\n"}))
    opened = site("approve", app, "--read").out
    assert "\x1b" not in opened
    assert "x = '\\x1b[2J'" in opened
