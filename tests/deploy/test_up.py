"""An ``up`` that cannot succeed says why in one line, and leaves no site that is not there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.shared_noise.members import members_of
from hdpfl_flower.shared_noise.peers import Peer

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Two whole sites; a test spoils the second."""
    folder = tmp_path / "sources"
    for name, source in (("a", "cleveland"), ("b", "va")):
        shutil.copytree(DEPLOY / "demo" / source, folder / name)
    return folder


def up(
    home: Path, sources: Path, before: str = "", port: int = 0
) -> subprocess.CompletedProcess[str]:
    """Call ``up`` in a process of its own, in which ``before`` was executed."""
    script = (
        f"import sys; sys.path.insert(0, {str(DEPLOY)!r}); import federation; "
        f"sys.argv = ['federation.py', 'up', '--sites', {str(sources)!r}]\n{before}\n"
        "sys.exit(federation.main())"
    )
    own = {"HDPFL_HOME": str(home), "HDPFL_FEDERATION_PORT": str(port or free_port())}
    return subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **own}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def left(home: Path) -> Iterator[str]:
    """Yield what lies in the federation's folder, but for folders, the lock and logs."""
    folder = home / "federation"
    for path in sorted(folder.rglob("*")) if folder.exists() else []:
        if path.is_file() and path.name != "lock":
            yield str(path.relative_to(folder))


def check_refused(done: subprocess.CompletedProcess[str], home: Path, words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert words in lines[0]
    assert list(left(home)) == []


def spoil_profile(site: Path, old: str, new: str) -> None:
    profile = site / "profile.toml"
    text = profile.read_text()
    assert old in text
    profile.write_text(text.replace(old, new))


def test_a_site_without_a_profile_is_refused_first(tmp_path: Path, sources: Path) -> None:
    """Before: a traceback, and 'status' listed both sites, one without a profile."""
    (sources / "b" / "profile.toml").unlink()
    check_refused(up(tmp_path, sources), tmp_path, f"{sources}/b holds no profile.toml")


def test_every_site_that_is_wrong_is_named(tmp_path: Path, sources: Path) -> None:
    spoil_profile(sources / "a", "batch-size", "batchsize")
    spoil_profile(sources / "b", 'path = "data.csv"', 'path = "gone.csv"')
    done = up(tmp_path, sources)
    check_refused(done, tmp_path, "did you mean 'training.batch-size'?")
    assert "site a: profile" in done.stderr
    assert "; site b: " in done.stderr
    assert f"{sources}/b/gone.csv" in done.stderr


def test_ports_are_looked_at_before_anything_is_made(tmp_path: Path, sources: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = up(tmp_path, sources, port=taken.getsockname()[1])
        check_refused(done, tmp_path, "is in use; set HDPFL_FEDERATION_PORT")


FAIL = "def fail(*words): raise federation.ProblemError('it failed')\nfederation.{} = fail"


@pytest.mark.slow
def test_a_site_that_was_there_and_one_that_started_stay(tmp_path: Path, sources: Path) -> None:
    """A ledger in which a release may stand is nothing to take back."""
    parts = (
        "federation.start_superlink = federation.start_supernode = lambda *words: None\n"
        "federation._wait = print\nfederation.register = lambda names: names\n"
        "federation.processes.stop = lambda names, folder: []\n"
    )
    shutil.move(sources / "b", tmp_path / "b")
    assert up(tmp_path, sources, parts).returncode == 0
    mine = tmp_path / "federation" / "sites" / "a"
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    assert (mine / "ledger" / "ledger.sqlite") in before
    shutil.move(tmp_path / "b", sources / "b")
    assert up(tmp_path, sources, parts + FAIL.format("register")).returncode == 1
    assert {p: p.read_bytes() for p in mine.rglob("*") if p.is_file()} == before
    assert not (mine.parent / "b").exists()
    started = parts + (
        "def fail(*words): raise federation.ProblemError('it failed')\n"
        "federation.listens = fail\nfederation._wait = lambda ready, *_: ready()\n"
        "federation.answers = lambda port: True\n"
    )
    done = up(tmp_path, sources, started)
    assert done.stderr.strip() == "error: it failed"
    assert (mine.parent / "b" / "ledger" / "ledger.sqlite").exists()


# --- the terms of a run ----------------------------------------------------------------------


def named(home: Path, terms: Path) -> subprocess.CompletedProcess[str]:
    """Write the copy of ``terms`` that ``run`` submits, in a process of its own."""
    home.mkdir(exist_ok=True)
    script = (
        f"import sys; sys.path.insert(0, {str(DEPLOY)!r}); import federation; "
        "from pathlib import Path\n"
        f"print(federation._named_terms(Path({str(terms)!r}), Path({str(home)!r}))[0])"
    )
    return subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "HDPFL_HOME": str(home)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_terms_that_are_submitted_are_those_of_the_file_with_a_run_id(tmp_path: Path) -> None:
    """Also a strategy's settings, as a table or with a dot; Flower reads the copy as TOML."""
    given = RunConfig.load(DEPLOY / "clusters" / "run.toml")
    assert given.settings == {"r-dpcfl": {"clusters": 2}}
    done = named(tmp_path, DEPLOY / "clusters" / "run.toml")
    assert done.returncode == 0, done.stderr
    submitted = RunConfig.load(Path(done.stdout.strip()))
    assert submitted.terms.run_id
    assert submitted.updated(run_id="") == given


def test_a_schemas_path_starts_at_the_terms_that_name_it(tmp_path: Path) -> None:
    """The copy lies in another folder, and the ServerApp, which reads the file, starts there."""
    text = (ROOT / "hdpfl_flower/data/schemas/heart.toml").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.toml").write_text(text)
    (tmp_path / "mine" / "run.toml").write_text('schema = "own.toml"\n')
    done = named(tmp_path / "home", tmp_path / "mine" / "run.toml")
    assert done.returncode == 0, done.stderr
    assert RunConfig.load(Path(done.stdout.strip())).terms.schema_text == text


def test_shared_noise_names_the_sites_whose_keys_were_exchanged(tmp_path: Path) -> None:
    """Terms that list members keep them."""
    folder, keys = tmp_path / "home" / "federation" / "certs" / "peers", {}
    folder.mkdir(parents=True)
    for number, name in enumerate(("a", "b", "c")):
        peer = Peer(name, bytes([number]) * 32)
        (folder / f"{name}.peer").write_text(peer.line())
        keys[name] = peer.fingerprint
    terms = tmp_path / "run.toml"
    for more, names in (("", "abc"), (f'members = "x={keys["a"]}"', "x")):
        terms.write_text(f'noise = "shared"\n{more}\n')
        done = named(tmp_path / "home", terms)
        assert done.returncode == 0, done.stderr
        members = members_of(RunConfig.load(Path(done.stdout.strip())).terms.members)
        assert members == dict(zip(names, keys.values(), strict=False))
    terms.write_text('noise = "records"\n')
    done = named(tmp_path / "home", terms)
    assert RunConfig.load(Path(done.stdout.strip())).terms.members == ""


@pytest.mark.slow
def test_keys_are_exchanged_once_and_of_sites_that_allow_it(tmp_path: Path, sources: Path) -> None:
    shutil.copytree(sources / "a", sources / "c")
    spoil_profile(sources / "c", "shared-noise = true", "shared-noise = false")
    parts = (
        "federation.start_superlink = federation.start_supernode = lambda *words: None\n"
        "federation._wait = print\nfederation.register = lambda names: names\n"
    )
    folder = tmp_path / "federation"

    def keys() -> dict[str, bytes]:
        files = folder.glob("sites/*/ledger/*.peers/*")
        return {f"{file.parents[2].name}/{file.name}": file.read_bytes() for file in files}

    assert up(tmp_path, sources, parts).returncode == 0
    before = keys()
    assert sorted(before) == ["a/b.peer", "a/own.key", "b/a.peer", "b/own.key"]
    assert up(tmp_path, sources, parts).returncode == 0
    assert keys() == before
    assert sorted(path.stem for path in (folder / "certs" / "peers").iterdir()) == ["a", "b"]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_run_without_superlink_names_the_resume_command(tmp_path: Path, checkpoint: bool) -> None:
    folder = tmp_path / "runs" / "r"
    folder.mkdir(parents=True)
    if checkpoint:
        (folder / "checkpoint.safetensors").touch()
    script = (
        f"import sys; sys.path.insert(0, {str(DEPLOY)!r}); import federation\n"
        "from pathlib import Path\n"
        "def dead(*words): raise federation.ProblemError('Connection to the SuperLink')\n"
        f"federation.flwr = dead\nfederation._end_of('1', Path({str(folder)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "HDPFL_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stderr.strip().splitlines()[-1]
    link = tmp_path / "federation" / "superlink"
    command = f"FLWR_HOME={link} {Path(sys.executable).parent}/hdpfl resume {folder} hdpfl --app"
    assert "Connection to the SuperLink" in said
    assert (f"; to resume it, with the SuperLink running: {command} {ROOT}" in said) == checkpoint
