"""``report --sign`` and ``hdpfl verify``: every byte counts, offline, for any recipient."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest

from client_app.reports.signature import key_path

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def report(opened):
    opened.charge("run-1", rounds=1)
    path = opened.folder / "board.html"
    made = opened("report", "--html", "--sign", "--out", path)
    assert made.code == 0, made.err
    return path


def test_a_report_as_signed_is_verified_without_a_site(opened, report) -> None:
    shutil.move(opened.ledger_path, opened.folder / "gone")
    found = opened.bare("verify", report, program="hdpfl")
    assert found.code == 0 and found.out.startswith("verified: ")
    known = opened.bare("verify", report, "--key", f"{report}.pub", program="hdpfl")
    assert known.code == 0 and "came with the report" in found.out
    assert "came with the report" not in known.out
    assert report.stat().st_mode & 0o777 == 0o600


def test_one_changed_byte_anywhere_fails_in_one_line(opened, report) -> None:
    draw = random.Random(1)
    signature = report.with_name(f"{report.name}.sig")
    for path in (report, signature):
        content = path.read_bytes()
        places = {0, len(content) - 1, *draw.sample(range(len(content)), 12)}
        for at in sorted(places):
            changed = bytearray(content)
            changed[at] ^= 1
            path.write_bytes(changed)
            assert (
                "is NOT as it was signed" in opened.bare("verify", report, program="hdpfl").error()
            )
        for other in (content + b"\n", content[:-1], b""):
            path.write_bytes(other)
            assert (
                "is NOT as it was signed" in opened.bare("verify", report, program="hdpfl").error()
            )
        path.write_bytes(content)
    assert opened.bare("verify", report, program="hdpfl").code == 0


def test_another_sites_key_does_not_verify(opened, report) -> None:
    other = opened.folder / "other.txt"
    shutil.move(key_path(opened.ledger_path), opened.folder / "kept")
    assert opened("report", "--sign", "--out", other).code == 0
    assert "NOT" in opened.bare("verify", report, "--key", f"{other}.pub", program="hdpfl").error()
    (opened.folder / "no.pub").write_text("-----BEGIN PUBLIC KEY-----\n")
    wrong = opened.bare("verify", report, "--key", opened.folder / "no.pub", program="hdpfl")
    assert "no Ed25519 key" in wrong.error()
    assert (
        "cannot be read" in opened.bare("verify", opened.folder / "none", program="hdpfl").error()
    )


def test_the_key_is_made_once_for_its_owner_alone(opened, report) -> None:
    key = key_path(opened.ledger_path)
    before = key.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
    assert opened("report", "--json", "--sign", "--out", opened.folder / "r.json").code == 0
    assert key.read_bytes() == before
    key.write_bytes(b"PATIENT-123")
    again = opened("report", "--sign", "--out", opened.folder / "again.txt")
    assert "no Ed25519 key" in again.error()
    assert key.read_bytes() == b"PATIENT-123"
    assert opened("report", "--sign").code == 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_agrees(opened, report) -> None:
    words = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", f"{report}.pub", "-rawin",
             "-in", str(report), "-sigfile", f"{report}.sig"]  # fmt: skip
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    report.write_bytes(report.read_bytes().replace(b"most", b"least", 1))
    assert subprocess.run(words, capture_output=True, check=False).returncode != 0
