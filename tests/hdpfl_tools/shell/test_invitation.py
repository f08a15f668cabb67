"""An invitation is read as its coordinator signed it: a changed byte is refused by name."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.config.terms import MOST_TERMS
from hdpfl_flower.errors import DeploymentError
from hdpfl_tools.coordinator.commands import app as coordinator
from hdpfl_tools.shell import invitation as bundle
from hdpfl_tools.shell.invitation import read_invitation
from tests.hdpfl_tools.invited import INVITE, call, resigned


def test_nothing_in_an_invitation_is_secret(invited: Path) -> None:
    private = [path.read_bytes() for path in Path("certs").glob("*.key")]
    with zipfile.ZipFile(invited) as archive:
        contents = [archive.read(name) for name in archive.namelist()]
    assert len(private) == 2
    for content in contents:
        assert b"PRIVATE KEY" not in content
        assert not [key for key in private if key in content]


def changed(invited: Path, name: str, change: Any) -> None:
    """Write the invitation anew with another content of one file; None leaves it out."""
    with zipfile.ZipFile(invited) as archive:
        contents = {each: archive.read(each) for each in archive.namelist()}
    content = change(contents.get(name, b""))
    contents = {each: old for each, old in contents.items() if each != name}
    if content is not None:
        contents[name] = content
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for each, bytes_ in contents.items():
            archive.writestr(each, bytes_)
    invited.write_bytes(buffer.getvalue())


def flipped(content: bytes) -> bytes:
    return content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]


NAMES = (bundle.CA, bundle.APP, bundle.TERMS, "files/b.peer")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [flipped, lambda _: None], ids=["changed", "left out"])
def test_a_changed_file_is_refused_by_name(invited: Path, name: str, change: Any) -> None:
    changed(invited, name, change)
    with pytest.raises(DeploymentError, match=f"'{name}' is not as the coordinator signed it"):
        read_invitation(invited)


def with_digest(name: str, content: bytes) -> Any:
    import hashlib

    def change(manifest: bytes) -> bytes:
        facts = json.loads(manifest)
        facts["files"][name] = hashlib.sha256(content).hexdigest()
        return json.dumps(facts).encode()

    return change


def test_a_changed_manifest_is_refused(invited: Path) -> None:
    """Of an attacker who exchanges the app and its digest."""
    changed(invited, bundle.APP, lambda _: b"another app")
    changed(invited, bundle.MANIFEST, with_digest(bundle.APP, b"another app"))
    with pytest.raises(DeploymentError, match=r"'manifest\.json' is not as the coordinator"):
        read_invitation(invited)


@pytest.mark.parametrize("fact", ["site", "address", "coordinator", "purpose"])
def test_a_changed_fact_is_refused(invited: Path, fact: str) -> None:
    changed(invited, bundle.MANIFEST, lambda m: json.dumps({**json.loads(m), fact: "x"}).encode())
    with pytest.raises(DeploymentError, match=r"'manifest\.json' is not as the coordinator"):
        read_invitation(invited)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../outside", "'../outside' is not as the coordinator signed it"),
        ("files/../../outside.peer", "is not as the coordinator signed it"),
        ("extra.toml", "'extra.toml' is not as the coordinator signed it"),
    ],
)
def test_an_added_file_is_refused(invited: Path, name: str, words: str) -> None:
    changed(invited, name, lambda _: b"x")
    with pytest.raises(DeploymentError, match=words):
        read_invitation(invited)


@pytest.mark.parametrize("name", ["../outside.peer", "files/../../outside.peer", "profile.toml"])
def test_a_coordinator_cannot_write_elsewhere(invited: Path, name: str) -> None:
    """It signs what it likes; the names of files are ours."""
    asked = read_invitation(invited)
    hostile = bundle.Invitation(
        asked.site, asked.address, "", "", {**asked.files, name: b"x"}
    ).signed(Path("certs/ca.key").read_bytes())
    invited.write_bytes(hostile)
    with pytest.raises(DeploymentError, match="does not belong in an invitation"):
        read_invitation(invited)


@pytest.mark.parametrize("value", ["", "auto", f"sha256:{'0a' * 32}"])
def test_terms_may_name_weights_by_digest(invited: Path, value: str) -> None:
    terms = f'start = "{value}"\nbackbone.weights = "{value}"\nschema = "heart"\n'.encode()
    resigned(invited, {}, **{bundle.TERMS: terms})
    assert read_invitation(invited).files[bundle.TERMS] == terms


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (b"rounds = ", "is not valid TOML"),
        (b"\xff", "is not valid TOML"),
        (b"rounds = " + b"1" * 5000, "is not valid TOML"),
        (b"a = " + b"[" * 100_000, "is not valid: more than 4 brackets"),
        (b"#" * (MOST_TERMS + 1), "is longer than"),
    ],
    ids=["half", "no text", "digits", "deep", "long"],
)
def test_unreadable_terms_are_refused_by_name(invited: Path, terms: bytes, words: str) -> None:
    resigned(invited, {}, **{bundle.TERMS: terms})
    with pytest.raises(DeploymentError, match=rf"'run\.toml' {words}"):
        read_invitation(invited)


LINES = ("a\nsite b", "\x1b[2J", "\u202eb", "a" * 501)


HOSTILE = {
    "site": ("", ".", "..", "../a", "/srv/a", "a/b", "-a", "a b", "a;id", "$(id)", "a\n",
             "a\nssh-rsa A", "é", "a" * 101),
    "address": ("", "a", "a:", ":1", "a:0", "a:65536", "a b:1", "a:1\n", "a:1\nPATH=/x", "a:٣",
                "$(id):1", "[::1:1", "::1:1", "[x]:1", "[1:2]:1", "-a:1", "http://a:1"),
    "coordinator": LINES,
    "purpose": LINES,
}  # fmt: skip


@pytest.mark.parametrize("fact", HOSTILE)
def test_a_hostile_fact_is_refused_by_name(invited: Path, fact: str) -> None:
    content = invited.read_bytes()
    for text in HOSTILE[fact]:
        invited.write_bytes(content)
        resigned(invited, {fact: text})
        with pytest.raises(DeploymentError, match=f"'{fact}' is no"):
            read_invitation(invited)


@pytest.mark.parametrize(
    ("site_name", "address"),
    [("a", "a:1"), ("A.b_c-1", "flower.example.org:8000"), ("9" * 100, "[2001:db8::1]:65535")],
)
def test_a_plain_fact_is_read(invited: Path, site_name: str, address: str) -> None:
    resigned(invited, {"site": site_name, "address": address, "purpose": " Äpfel "})
    asked = read_invitation(invited)
    assert (asked.site, asked.address, asked.purpose) == (site_name, address, "Äpfel")


@pytest.mark.parametrize(
    ("words", "fault"),
    [(("../a", "--address", "localhost:8000"), "'site' is no"),
     (("a", "--address", "localhost:x"), "'address' is no")],
)  # fmt: skip
def test_a_coordinator_writes_no_hostile_invitation(invited: Path, words: Any, fault: str) -> None:
    del invited
    with pytest.raises(DeploymentError, match=fault):
        call(coordinator, "invite", *words, "--app", "app.fab", "--terms", "run.toml")
    assert not Path("../a.invitation").exists() and not Path("a.invitation").exists()


def packed(method: int, size: int, stated: int) -> bytes:
    """Return a ZIP file of a file of zeros whose list states another size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr(bundle.MANIFEST, bytes(size))
    content = bytearray(buffer.getvalue())
    listed = content.rindex(b"PK\x01\x02")
    content[listed + 24 : listed + 28] = struct.pack("<I", stated)
    return bytes(content)


@pytest.mark.parametrize(
    ("method", "stated", "words"),
    [
        (zipfile.ZIP_BZIP2, 10, "another method than deflate"),
        (zipfile.ZIP_LZMA, 10, "another method than deflate"),
        (zipfile.ZIP_DEFLATED, 10, "damaged"),
        (zipfile.ZIP_DEFLATED, 2**26 + 1, "too large"),
    ],
    ids=["bzip2", "lzma", "deflate", "stated"],
)
def test_unpacking_takes_no_more_memory_than_is_stated(
    tmp_path: Path, method: int, stated: int, words: str
) -> None:
    size = 2**23
    path = tmp_path / "x.invitation"
    path.write_bytes(packed(method, size, stated))
    tracemalloc.start()
    try:
        with pytest.raises(DeploymentError, match=words):
            read_invitation(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / 8


def test_a_file_of_any_size_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.invitation"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(DeploymentError, match="too large"):
        read_invitation(path)
    with pytest.raises(DeploymentError, match="damaged"):
        read_invitation(Path("/dev/zero"))


def test_a_long_list_of_files_is_not_read(invited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_MOST_LISTED", 100)
    monkeypatch.setattr(zipfile, "ZipFile", lambda _: pytest.fail("it was read"))
    with pytest.raises(DeploymentError, match="too many files"):
        read_invitation(invited)


@pytest.mark.parametrize("manifest", [b"[" * 200_000, b" " * 2**21, b"1" * 5000, b"[]", b"\xff"])
def test_an_odd_manifest_is_refused(invited: Path, manifest: bytes) -> None:
    changed(invited, bundle.MANIFEST, lambda _: manifest)
    with pytest.raises(DeploymentError, match=r"'manifest\.json' is damaged"):
        read_invitation(invited)


def test_a_flip_of_any_byte_is_refused_or_changes_nothing(invited: Path, tmp_path: Path) -> None:
    """Such as of a date, which ZIP has and nobody reads."""
    asked = read_invitation(invited)
    small = bundle.Invitation(
        "a", "a:1", "", "", {**asked.files, bundle.TERMS: b"rounds = 1\n", "files/b.peer": b"x"}
    )
    content = small.signed(Path(invited.parent, "certs/ca.key").read_bytes())
    path, refused = tmp_path / "flipped.invitation", 0
    for place in range(len(content)):
        flip = bytes([content[place] ^ (1 << place % 8)])
        path.write_bytes(content[:place] + flip + content[place + 1 :])
        try:
            assert read_invitation(path) == small
        except DeploymentError:
            refused += 1
    assert refused > len(content) / 2


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "damaged"), (b"PK\x03\x04" + bytes(100), "damaged"), (b"hello", "damaged")],
)
def test_another_file_is_no_invitation(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.invitation"
    path.write_bytes(content)
    with pytest.raises(DeploymentError, match=words):
        read_invitation(path)
    with pytest.raises(DeploymentError, match="No such file"):
        read_invitation(tmp_path / "none")


def test_an_invitation_that_unpacks_to_too_much_is_refused(
    invited: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES", 1000)
    with pytest.raises(DeploymentError, match="too large"):
        read_invitation(invited)
    monkeypatch.setattr(bundle, "MOST_BYTES", 2**20)
    monkeypatch.setattr(bundle, "MOST_FILES", 3)
    with pytest.raises(DeploymentError, match="too many files"):
        read_invitation(invited)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--address", "elsewhere:8000"), "does not name 'elsewhere'"),
        (("--app", "none.fab"), r"none\.fab cannot be read"),
        (("--certs", "none"), "cannot be read"),
        ((), "exists already"),
    ],
)
def test_a_coordinators_mistake_is_named(invited: Path, words: Any, fault: str) -> None:
    del invited
    with pytest.raises(DeploymentError, match=fault):
        call(coordinator, *INVITE, *words)


def test_keys_of_two_federations_are_refused(invited: Path) -> None:
    del invited
    call(coordinator, "certs", "other", "--host", "localhost")
    Path("other/ca.key").replace("certs/ca.key")
    with pytest.raises(DeploymentError, match="belong to two federations"):
        call(coordinator, *INVITE, "--to", "again.invitation")
