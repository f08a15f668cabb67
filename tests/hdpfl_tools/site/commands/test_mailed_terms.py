"""Terms that a coordinator mailed make no command of a site open a file outside of their folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.main

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import HDPFLError, TermsError
from hdpfl_tools.site.commands import app
from tests.hdpfl_tools.site.commands.conftest import SCHEMA


def with_terms() -> list[tuple[str, ...]]:
    """Return every command of a site that takes the terms of a run."""
    named: list[tuple[str, ...]] = []
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for outer, command in commands.items():
        for inner, leaf in getattr(command, "commands", {"": command}).items():
            if any("--terms" in parameter.opts for parameter in leaf.params):
                named.append((outer, inner) if inner else (outer,))
    return named


def named_by(key: str, path: object, site: Path) -> Path:
    (site / "mailed").mkdir(exist_ok=True)
    terms = site / "mailed" / "run.toml"
    terms.write_text(f'{key} = "{path}"\n')
    return terms


@pytest.fixture(name="outside")
def file_outside(site) -> Path:
    path = site.folder / "outside.toml"
    path.write_text(SCHEMA)
    return path


@pytest.mark.parametrize("key", ["schema", "start", "backbone.weights"])
@pytest.mark.parametrize("form", ["absolute", "upwards", "link"])
def test_a_file_outside_is_not_opened(
    site, outside: Path, monkeypatch: pytest.MonkeyPatch, key: str, form: str
) -> None:
    monkeypatch.setenv("HDPFL_HOME", str(site.folder / "home"))
    path = {"absolute": outside, "upwards": "../outside.toml", "link": "link.toml"}[form]
    terms = named_by(key, path, site.folder)
    (site.folder / "mailed" / "link.toml").symlink_to(outside)
    with pytest.raises(TermsError, match=f"'{key}' names a file outside .* put the file beside"):
        RunConfig.load(terms, mailed=True)
    assert not (site.folder / "home").exists()


@pytest.mark.parametrize("command", with_terms())
def test_every_command_of_a_site_refuses_it(
    opened, site, outside: Path, command: tuple[str, ...]
) -> None:
    del opened
    terms = named_by("schema", outside, site.folder)
    words = ("--data", site.folder / "records.csv", "--to", site.folder / "new.toml")
    more = words if command == ("profile", "new") else ()
    call = site.bare if command in {("profile", "new"), ("audit",)} else site
    error = call(*command, *more, "--terms", terms).error()
    assert "'schema' names a file outside of this run config's folder" in error


@pytest.mark.parametrize("name", ["schema.toml", "sub/schema.toml", "./sub/../schema.toml"])
def test_a_file_beside_the_terms_is_read(site, name: str) -> None:
    terms = named_by("schema", name, site.folder)
    (terms.parent / "sub").mkdir()
    (terms.parent / name).write_text(SCHEMA)
    assert RunConfig.load(terms, mailed=True).terms.schema_text == SCHEMA


@pytest.mark.parametrize("digest", ["sha256:../../records.csv", "sha256:/etc/passwd", "sha256:~"])
def test_a_digest_is_no_path(site, digest: str) -> None:
    with pytest.raises(HDPFLError):
        RunConfig.load(named_by("start", digest, site.folder), mailed=True)


def test_a_coordinator_names_any_file_of_its_own(site, outside: Path) -> None:
    terms = named_by("schema", "../outside.toml", site.folder)
    assert RunConfig.load(terms).terms.schema_text == outside.read_text()
