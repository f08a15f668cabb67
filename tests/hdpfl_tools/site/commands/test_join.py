"""From an invitation to a site that waits for its first run; on to a report: ``tests/e2e``."""

from __future__ import annotations

import json
import os
import shlex
import socket
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import DeploymentError, HDPFLError
from hdpfl_flower.system.files import replace_file
from hdpfl_tools.coordinator.commands import app as coordinator
from hdpfl_tools.shell import invitation as bundle
from hdpfl_tools.site.commands import app as site
from hdpfl_tools.site.commands import join as joining
from tests.hdpfl_tools.invited import FAB, INVITE, call, fingerprint, resigned


def test_a_hospital_joins_from_one_file(invited: Path) -> None:
    rows = "".join(f"{i % 2},{i % 10},x\n" for i in range(80))
    Path("export.csv").write_text(f"y,a,c\n{rows}")
    before = {path for path in Path().rglob("*") if path.is_file()}
    words = ["join", invited, "--fingerprint", fingerprint(invited).upper(), "--offline"]
    said = call(site, *words, "--data", "export.csv", "--records", 60, "--epsilon", 2, "--cap", 8)
    home = Path("hospital-a")
    for line in ("site        hospital-a", "who asks    Dr. Ada", "purpose     Risk of readmission",
                 "localhost:8000", "noise multiplier z", "also held: hospital-a/files/b.peer",
                 "approve hospital-a/app.fab", "SHA256:"):  # fmt: skip
        assert line in said
    assert (home / "app.fab").read_bytes() == FAB
    assert RunConfig.load(home / "run.toml").terms == RunConfig.load(Path("run.toml")).terms
    assert Profile.load(home / "profile.toml").run.epsilon == 2
    assert stat.S_IMODE((home / "node.key").stat().st_mode) == 0o600
    private = serialization.load_ssh_private_key((home / "node.key").read_bytes(), None)
    written = {path for path in Path().rglob("*") if path.is_file()} - before
    assert {path.parent for path in written} == {home, home / "files", home / "units"}
    call(site, "ledger", "--init", "--profile", home / "profile.toml")
    assert private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ) in (home / "node.key.pub").read_bytes()  # fmt: skip
    key = (home / "node.key").read_bytes()
    call(site, *words)
    assert (home / "node.key").read_bytes() == key  # a second call makes no other


@pytest.mark.parametrize("start", ["systemd", "compose"])
def test_the_next_steps_can_be_copied(
    invited: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """A second call writes the other form, and nothing that is there."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    Path("an export.csv").write_text("y,a,c\n" + "".join(f"{i % 2},{i},x\n" for i in range(80)))
    words = ["join", invited, "--fingerprint", fingerprint(invited), "--offline", "--folder", "a b",
             "--data", "an export.csv", "--records", 60, "--epsilon", 2, "--cap", 8]  # fmt: skip
    call(site, *words)
    before = {path: path.read_bytes() for path in Path("a b").rglob("*") if path.is_file()}
    said = call(site, *words, "--start", start)
    steps = [line.partition(". ")[2] for line in said.splitlines() if line[:1].isdigit()]
    assert steps[1].startswith("hdpfl-site profile check --terms 'a b/run.toml'")
    home = Path("a b").absolute()
    if start == "compose":
        assert shlex.split(steps[2]) == ["docker", "compose", "-f", "a b/compose.yml", "up", "-d"]
        assert stat.S_IMODE((home / "compose.yml").stat().st_mode) == 0o600
        assert (home / "state").is_dir()
    else:
        assert shlex.split(steps[2])[1:5] == ["approve", "a b/app.fab", "--to", "a b/approved"]
        units = shlex.split(steps[3])[4:]
        assert [Path(unit).parent for unit in units] == [home / "units"] * 3
        assert all(Path(unit).is_file() for unit in units)
    assert {path: path.read_bytes() for path in before} == before
    assert (home / "superexec.secret").stat().st_size == 32
    assert stat.S_IMODE((home / "superexec.secret").stat().st_mode) == 0o600
    assert tomllib.loads((home / "node.toml").read_text())["profile"] == str(home / "profile.toml")


def test_a_unit_that_exists_is_not_replaced(invited: Path) -> None:
    Path("export.csv").write_text("y,a,c\n" + "".join(f"{i % 2},{i},x\n" for i in range(80)))
    Path("hospital-a/units").mkdir(parents=True)
    Path("hospital-a/units/hdpfl-hospital-a-tasks.service").write_text("of its own")
    words = ["join", invited, "--fingerprint", fingerprint(invited), "--offline"]
    with pytest.raises(HDPFLError, match=r"tasks\.service exists already"):
        call(site, *words, "--data", "export.csv", "--records", 60, "--epsilon", 2, "--cap", 8)


def test_a_folder_that_a_unit_cannot_name_is_refused_before_anything_is_written(
    invited: Path,
) -> None:
    words = ["join", invited, "--fingerprint", fingerprint(invited), "--offline"]
    with pytest.raises(DeploymentError, match="name another --folder"):
        call(site, *words, "--folder", "a$(id)")
    assert not Path("a$(id)").exists()


def test_the_connection_is_tested(invited: Path) -> None:
    """At a port where no one listens; wrong certificates: ``test_health.py``."""
    with socket.create_server(("localhost", 0)) as closed:
        port = closed.getsockname()[1]
    resigned(invited, {"address": f"localhost:{port}"})
    said = call(site, "join", invited, "--fingerprint", fingerprint(invited))
    assert f"warning: localhost:{port} does not answer (Connection refused)" in said


@pytest.mark.parametrize("crash", [joining.KEY, joining.PUBLIC])
def test_a_call_goes_on_after_a_crash_between_the_keys(
    invited: Path, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    """Of whichever of the two files is being written."""
    words = ("join", invited, "--fingerprint", fingerprint(invited), "--offline")

    def crashing(path: Path, content: bytes, **options: Any) -> None:
        if path.name == crash:
            raise OSError(5, "crash")
        replace_file(path, content, **options)

    monkeypatch.setattr(f"{joining.__name__}.replace_file", crashing)
    with pytest.raises(HDPFLError, match="crash"):
        call(site, *words)
    monkeypatch.undo()
    monkeypatch.chdir(invited.parent)
    call(site, *words)
    private = serialization.load_ssh_private_key(Path("hospital-a/node.key").read_bytes(), None)
    public = serialization.load_ssh_public_key(Path("hospital-a/node.key.pub").read_bytes())
    assert private.public_key() == public


def test_another_federation_has_another_fingerprint(invited: Path, tmp_path: Path) -> None:
    """Whoever signs anew needs another CA, whose fingerprint was not read out."""
    heard = fingerprint(invited)
    call(coordinator, "certs", "other", "--host", "localhost")
    call(coordinator, *INVITE, "--certs", "other", "--to", "other.invitation")
    with pytest.raises(DeploymentError, match="is not that of '--fingerprint'"):
        call(site, "join", "other.invitation", "--fingerprint", heard, "--offline")
    with pytest.raises(DeploymentError, match="nothing was written"):
        call(site, "join", "other.invitation", "--offline", given="n\n")
    assert not Path("hospital-a").exists()


@pytest.mark.parametrize("form", ["{key} = {value}", "[{table}]\n{name} = {value}"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "/etc/a.toml"),
        ("schema", "~/a.toml"),
        ("start", "/data/export.csv"),
        ("start", "/dev/zero"),
        ("start", "sha256:../../export.csv"),
        ("backbone.weights", "export.csv"),
    ],
)
def test_terms_cannot_name_a_file_of_the_site(
    invited: Path, monkeypatch: pytest.MonkeyPatch, form: str, key: str, value: str
) -> None:
    table, _, name = key.rpartition(".")
    if not table and "[" in form:
        form = "\ufeff{key} = {value}"
    terms = form.format(key=key, table=table, name=name, value=json.dumps(value))
    resigned(invited, {}, **{bundle.TERMS: terms.encode()})
    monkeypatch.setattr(RunConfig, "load", lambda _: pytest.fail("it was opened"))
    with pytest.raises(
        DeploymentError, match=f"'run.toml' names a file of this machine by '{key}'"
    ):
        call(site, "join", invited, "--offline", given="y\n")
    assert not Path("hospital-a").exists()


def test_a_file_of_ones_own_is_never_replaced(invited: Path) -> None:
    Path("hospital-a").mkdir()
    Path("hospital-a/run.toml").write_text("rounds = 1\n")
    with pytest.raises(HDPFLError, match=r"run\.toml exists already with other content"):
        call(site, "join", invited, "--fingerprint", fingerprint(invited), "--offline")
