"""Units and a Compose file of a site: values stay words, and systemd and Compose read them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hdpfl_flower.errors import DeploymentError
from hdpfl_tools.site.service_files import Services, plain_word
from tests.deploy.test_systemd import commands, options_of
from tests.hdpfl_tools.site.commands.conftest import PROFILE


@pytest.fixture(name="services")
def services_of_a_site(tmp_path: Path) -> Services:
    """A site in a folder with a space and a letter that is not ASCII."""
    home = tmp_path / "Köln 1"
    home.mkdir()
    for name in ("ca.crt", "node.key", "node.toml", "superexec.secret", "records.csv"):
        (home / name).write_text("x")
    profile = home / "profile.toml"
    profile.write_text(PROFILE)
    profile.chmod(0o600)
    return Services("hospital-a", "[2001:db8::1]:8000", home, profile)


HOSTILE = (
    "a\nExecStartPre=/bin/sh", "a\rb", "a%h", "a$HOME", "a$(id)", "a`id`", 'a" b', "a' b", "a\\nb",
    "a;id", "a&b", "a|b", "a#b", "a{b}", "a\0", "a\tb", "a\u2028b", "a\u202eb", "*", "a~", "<a", "",
)  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("place", ["site", "address", "home", "profile"])
def test_a_hostile_value_adds_no_directive_and_no_word(
    services: Services, monkeypatch: pytest.MonkeyPatch, place: str, hostile: str
) -> None:
    """Even where a value comes past the checks of an invitation."""
    is_path = place in ("home", "profile")
    value = Path(f"/srv/{hostile}/x") if is_path else hostile
    if hostile == "" and is_path:
        return
    values = {**vars(services), place: value}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DeploymentError, match="could read as a command"):
        Services(**values).units()
    if place in ("address", "home"):
        with pytest.raises(DeploymentError, match="could read as a command"):
            Services(**values).compose()


@pytest.mark.parametrize("text", ["/srv/a b", "host:1", "[::1]:80", "PATH=/ä/b", "- a", "a: b"])
def test_a_plain_value_is_one_word_everywhere(text: str) -> None:
    assert shlex.split(plain_word(text)) == [text] == [yaml.safe_load(plain_word(text))]


def test_units_name_programs_options_and_files_that_exist(
    services: Services, tmp_path: Path
) -> None:
    for name, text in services.units().items():
        path = tmp_path / name
        path.write_text(text)
        for program, *words in commands(path):
            given = {word for word in words if word.startswith("--")}
            assert given <= options_of(program, words), program
    node = next(text for name, text in services.units().items() if "node" in name)
    assert "records" not in node and "profile.toml" not in node
    assert f'PATH={services.home}/approved/bin"' in node


def test_systemd_reads_the_units(services: Services, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: the units are not verified")
    for name, text in services.units().items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", *map(str, tmp_path.glob("*.service"))],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr


def test_a_container_sees_its_own_files_alone(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    parts = yaml.safe_load(services.compose())["services"]
    seen = {
        name: {Path(volume["source"]).name: volume["read_only"] for volume in part["volumes"]}
        for name, part in parts.items()
    }
    own = {"ledger": False, "state": False, "anchor": False}
    assert seen == {
        "node": dict.fromkeys(("ca.crt", "node.key", "node.toml", "superexec.secret"), True),
        "tasks": {"superexec.secret": True, "profile.toml": True, "records.csv": True, **own},
        "site-exporter": {"profile.toml": True, **own},
    }
    assert all((services.home / folder).is_dir() for folder in own)


def test_compose_reads_the_file(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    if (program := shutil.which("docker-compose")) is None:
        pytest.skip("docker-compose is not installed: the file is not read by it")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (services.home / "compose.yml").write_text(services.compose())
    done = subprocess.run(
        [program, "--profile", "exporter", "-f", "compose.yml", "config"],
        cwd=services.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "warn" not in done.stderr.lower(), done.stderr
    read = yaml.safe_load(done.stdout)["services"]
    assert services.address in shlex.split(read["node"]["command"][2])
    assert str(services.profile) == read["tasks"]["environment"]["HDPFL_PROFILE"]


def test_containers_do_not_run_as_root(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(DeploymentError, match="none may run as root"):
        services.compose()
