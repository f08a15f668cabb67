"""An invitation of a hospital, and changes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.shared_noise.peers import Peer
from hdpfl_tools.coordinator.commands import app as coordinator
from hdpfl_tools.shell import invitation as bundle
from hdpfl_tools.shell.invitation import read_invitation
from tests.hdpfl_tools.site.commands.conftest import SCHEMA

FAB = b"an app's bytes"

RUN = """
schema = "schema.toml"
dataset = "site"
purpose = "Risk of readmission"
coordinator = "Dr. Ada"
rounds = 5
[after.scores]
share = 0.2
"""

INVITE = ("invite", "hospital-a", "--address", "localhost:8000", "--app", "app.fab",
          "--terms", "run.toml")  # fmt: skip


def call(program: Any, *words: object, given: str = "", code: int = 0) -> str:
    done = CliRunner().invoke(program, [str(word) for word in words], input=given)
    if isinstance(done.exception, HDPFLError):
        raise done.exception
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def invitation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An invitation of hospital-a in the current folder, with a peer's key."""
    monkeypatch.chdir(tmp_path)
    call(coordinator, "certs", "certs", "--host", "localhost")
    Path("app.fab").write_bytes(FAB)
    Path("schema.toml").write_text(SCHEMA)
    Path("run.toml").write_text(RUN)
    Path("b.peer").write_text(Peer("hospital-b", bytes(range(32))).line())
    said = call(coordinator, *INVITE, "--with", "b.peer")
    assert "hospital-a.invitation: send it to hospital-a" in said
    return tmp_path / "hospital-a.invitation"


def fingerprint(invited: Path) -> str:
    return read_invitation(invited).fingerprint


def resigned(invited: Path, facts: dict[str, str], **files: bytes) -> None:
    """Sign another invitation with the coordinator's key, whatever it says."""
    asked = read_invitation(invited)
    hostile = bundle.Invitation(asked.site, asked.address, "", "", {**asked.files, **files})
    for name, text in facts.items():
        object.__setattr__(hostile, name, text)
    invited.write_bytes(hostile.signed(Path("certs/ca.key").read_bytes()))
