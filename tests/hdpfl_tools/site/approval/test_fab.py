"""An app that can be approved is source code, all of it listed, and exactly that runs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import py_compile
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_app.site.app_digest import PACKAGES
from hdpfl_flower.errors import DeploymentError
from hdpfl_tools.site.approval import fab as bundles
from hdpfl_tools.site.commands.approve import differences
from tests.hdpfl_tools.site.commands.fabs import MODULE, bundle, install_bundle, pack, pyproject

ROOT = Path(bundles.__file__).parents[3]
PROJECT = pyproject(MODULE, "1").encode()
GOOD = {"pyproject.toml": PROJECT, "client_app/app.py": b"x = 1\n"}
LOADED = """
import json, runpy, sys
own = runpy.run_path(sys.argv[1] + "/bin/flwr-clientapp", run_name="launcher")
runtime = own["_import_flower"]()[1]
own["pin"](runtime)
runtime.install_from_fab(open(sys.argv[2], "rb").read())
runtime.get_load_client_app_fn()(sys.argv[3], sys.argv[4], "")
import safetensors
print(json.dumps({name: module.__file__ for name, module in list(sys.modules.items())
                  if getattr(module, "__file__", None)}))
"""
"""What the launcher does with a message, and what this process has imported after it."""


def read(tmp_path: Path, content: bytes) -> bundles.Bundle:
    path = tmp_path / "app.fab"
    path.write_bytes(content)
    return bundles.read_bundle(path)


def packed(entry: zipfile.ZipInfo, data: bytes = b"", **more: bytes) -> bytes:
    """Return a good app with one more file, as ``entry`` says."""
    files = {**GOOD, entry.filename: data}
    rows = [f"{name},{hashlib.sha256(each).hexdigest()},{8 * len(each)}"
            for name, each in files.items()]  # fmt: skip
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, each in GOOD.items():
            archive.writestr(zipfile.ZipInfo(name), each)
        archive.writestr(entry, data)
        archive.writestr(zipfile.ZipInfo(".info/CONTENT"), "\n".join(rows))
    return stream.getvalue()


def loaded_files(folder: Path, fab: Path, app: str, version: str) -> dict[str, Path]:
    """Return the file of each module that a message to the approved app loads."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOADED, str(folder), str(fab), app, version],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: Path(file) for name, file in json.loads(done.stdout.splitlines()[-1]).items()}


def test_the_modules_that_run_are_those_of_the_bundle(tmp_path: Path) -> None:
    """And a file beside them that Python would import is no part of an app (below)."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    code = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files}
    content = pack({**code, "pyproject.toml": PROJECT})
    approved = read(tmp_path, content)
    folder = tmp_path / "approved"
    bundles.install(approved, folder)
    app = folder / "apps" / approved.sha256
    loaded = loaded_files(folder, tmp_path / "app.fab", approved.app, approved.version)
    mine = {path.relative_to(app).as_posix() for path in loaded.values() if app in path.parents}
    assert {"client_app/app.py", "hdpfl_flower/wire.py"} <= mine
    for name in mine:
        assert (app / name).read_bytes() == approved.files[name]
    assert not [path for path in loaded.values() if ROOT in path.parents and path.is_relative_to(
        ROOT / "client_app")], "none of the package that is installed here"  # fmt: skip
    files = {path.relative_to(app).as_posix() for path in app.rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} == approved.files.keys()


def test_a_module_in_place_of_a_library_is_refused_and_would_run(tmp_path: Path) -> None:
    """The test of the test: the same files, approved by force, do run."""
    source, compiled = tmp_path / "x.py", tmp_path / "safetensors.pyc"
    source.write_text("planted = True\n")
    py_compile.compile(str(source), cfile=str(compiled))
    code = b"from flwr.clientapp import ClientApp\napp = ClientApp()\n"
    content = pack({**GOOD, "client_app/app.py": code, "safetensors.pyc": compiled.read_bytes()})
    with pytest.raises(DeploymentError, match=r"'safetensors\.pyc' is neither source code"):
        read(tmp_path, content)
    install_bundle(content, tmp_path / "approved")
    loaded = loaded_files(tmp_path / "approved", tmp_path / "app.fab", "hdpfl/hdpfl-flower", "1")
    assert loaded["safetensors"].name == "safetensors.pyc"


@pytest.mark.parametrize(
    "name",
    [
        "safetensors.pyc", "client_app/x.pyc", "client_app/x.pyo", "client_app/x.so",
        "client_app/x.cpython-311-x86_64-linux-gnu.so", "x.pyd", "x.dll", "x.dylib", "x.PYC",
        "client_app/__pycache__/app.cpython-311.pyc", "client_app/__pycache__/x.py",
        "client_app/__PyCache__/x.py", "client_app/x.pth", "x.pth", "x.egg-link", "x.egg", "x.zip",
        "x.whl", "x.dist-info/entry_points.txt", "x.dist-info/x.json", "x.egg-info/x.toml",
        "sitecustomize.py", "usercustomize.py", "usercustomize/__init__.py", "safetensors.py",
        "json.py", "json/__init__.py", "numpy/__init__.py", "opacus/__init__.py", "opacus.py",
        "yaml/x.json",  "__main__.py", "x.py", "client_app/LICENSE",
        "client_app/x", "client_app/x.py.", "client_app/x.py ", "../x.py", "client_app/../x.py",
        "client_app/..", "client_app/.hidden.py", "./client_app/x.py", "client_app//x.py",
        "client_app/./x.py", "/x.py", "/client_app/x.py", "client_app\\x.py", "..\\x.py", "C:x.py",
        "client_app/x.py\n", "client_app/\x1b[2J.py", "client_app/\u202ex.py", "client_app/é.py",
        "client_app/x y.py", "client_app/x/", "Client_app/x.py", "client_app/APP.py",
        "client_app/app.py/x.py", "client_app", "client_app.py", ".info/x.toml", ".info/CONTENT2",
        ".flwr/x.toml", "pyproject.toml/x.py", "client_app/x,y.py",
    ],
)  # fmt: skip
def test_an_unlisted_source_that_could_run_is_refused_by_name(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, pack(GOOD))
    with pytest.raises(DeploymentError) as found:
        read(tmp_path, pack({**GOOD, name: b""}))
    assert repr(name) in str(found.value), found.value
    assert "the coordinator must " in str(found.value)


def test_a_module_that_a_package_hides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"'client_app/app\.py' is hidden by a folder"):
        read(tmp_path, pack({**GOOD, "client_app/app/__init__.py": b""}))


@pytest.mark.parametrize("name", ["client_app/new.py", "client_app/a/b/c.toml", "NOTES.md"])
def test_source_code_and_text_may_be_added_and_are_listed(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, pack({**GOOD, name: b"1"}))
    assert f"added    {name}" in list(differences(found))


@pytest.mark.parametrize(
    ("name", "project", "taken"),
    [("heart_risk", "heart-risk", False), ("json", "json", True), ("numpy", "numpy", True),
     ("studies", "studies", True), ("this", "this", True), ("other", "heart-risk", True),
     ("1x", "1x", True), ("heart-risk", "heart-risk", True)],
)  # fmt: skip
def test_a_package_named_as_project(tmp_path: Path, name: str, project: str, taken: bool) -> None:
    text = PROJECT.replace(b"hdpfl-flower", project.encode())
    content = pack({**GOOD, "pyproject.toml": text, f"{name}/model.py": b""})
    if taken:
        with pytest.raises(DeploymentError, match=f"'{name}/model.py'"):
            read(tmp_path, content)
    else:
        found = read(tmp_path, content)
        assert found.app == "hdpfl/heart-risk"
        assert f"added    {name}/model.py" in list(differences(found))


def test_a_file_and_a_folder_of_one_name_are_refused(tmp_path: Path) -> None:
    """On a file system that ignores case; the others have other letters than a file's."""
    project = PROJECT.replace(b"hdpfl-flower", b"license")
    files = {**GOOD, "pyproject.toml": project, "license/model.py": b""}
    assert read(tmp_path, pack(files))
    with pytest.raises(DeploymentError, match=r"'LICENSE' is both a file and a folder"):
        read(tmp_path, pack({**files, "LICENSE": b""}))


def test_a_text_that_differs_is_listed_whatever_its_ending(tmp_path: Path) -> None:
    files = {
        "LICENSE": b"other",
        "README.md": b"other",
        "hdpfl_flower/data/schemas/heart.toml": b"",
    }
    found = list(differences(read(tmp_path, pack({**GOOD, **files}))))
    assert {f"changed  {name}" for name in files} <= set(found)
    assert "missing  hdpfl_flower/engines/engines.py" in found
    assert not any("hdpfl_tools/site/audit.py" in line for line in found), "of the wheel alone"


@pytest.mark.parametrize(
    "change",
    [
        (b'clientapp = "client_app.app:app"', b'clientapp = "hdpfl_tools.site.audit:app"'),
        (b'clientapp = "client_app.app:app"', b'clientapp = "client_app.app:app.other"'),
        (b'serverapp = "server_app.app:app"', b'serverapp = "strategies.x:app"'),
        (b'serverapp = "server_app.app:app"', b""),
        (
            b'serverapp = "server_app.app:app"',
            b'serverapp = "server_app.app:app"\nagentapp = "x:y"',
        ),
    ],
)
def test_an_app_starting_elsewhere_is_refused(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    assert change[0] in PROJECT
    with pytest.raises(DeploymentError, match=r"pyproject\.toml starts other code"):
        read(tmp_path, pack({**GOOD, "pyproject.toml": PROJECT.replace(*change)}))


@pytest.mark.parametrize("key", ["name", "version", "publisher"])
def test_a_name_cannot_draw_lines_of_its_own(tmp_path: Path, key: str) -> None:
    lines = PROJECT.decode().splitlines()
    text = "\n".join(f'{key} = "a\\nSHA-256 0"' if line.startswith(key) else line for line in lines)
    with pytest.raises(DeploymentError, match="not a Flower app"):
        read(tmp_path, pack({**GOOD, "pyproject.toml": text.encode()}))


def entry_of(**attributes: Any) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo("client_app/x.py")
    for name, value in attributes.items():
        setattr(entry, name, value)
    return entry


@pytest.mark.parametrize(
    "entry",
    [
        entry_of(external_attr=(stat.S_IFLNK | 0o777) << 16),
        entry_of(external_attr=(stat.S_IFIFO | 0o644) << 16),
        entry_of(external_attr=(stat.S_IFDIR | 0o755) << 16),
        entry_of(external_attr=0x10),
        entry_of(compress_type=zipfile.ZIP_BZIP2),
        entry_of(compress_type=zipfile.ZIP_LZMA),
        entry_of(extra=b"\x75\x70\x04\x00evil"),
    ],
)
def test_an_entry_not_a_plain_file_is_refused(tmp_path: Path, entry: zipfile.ZipInfo) -> None:
    assert read(tmp_path, packed(entry_of(external_attr=(stat.S_IFREG | 0o644) << 16), b"x"))
    with pytest.raises(DeploymentError, match=r"'client_app/x\.py' is "):
        read(tmp_path, packed(entry, b"../../elsewhere"))


def flagged(content: bytes, flags: int) -> bytes:
    """Return an archive of one stored file, with other flags in both of its lists."""
    at = content.index(b"PK\x01\x02")
    local, central = bytearray(content), struct.pack("<H", flags)
    local[6:8], local[at + 8 : at + 10] = central, central
    return bytes(local)


@pytest.mark.parametrize(("flags", "word"), [(1, "is encrypted"), (8, "is packed in another way")])
def test_encrypted_or_streamed_entries_are_refused(tmp_path: Path, flags: int, word: str) -> None:
    with pytest.raises(DeploymentError, match=word):
        read(tmp_path, flagged(pack(GOOD), flags))


def test_a_file_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        content = packed(zipfile.ZipInfo("client_app/app.py"), b"other")
    with pytest.raises(DeploymentError, match=r"'client_app/app\.py' is there twice"):
        read(tmp_path, content)


def other_name(content: bytes) -> bytes:
    return content.replace(b"client_app/app.py", b"client_app/abc.py", 1)


def other_time(content: bytes) -> bytes:
    return content[:10] + b"\1\1" + content[12:]


def before(content: bytes) -> bytes:
    return b"#!/bin/sh\n" + content


def behind(content: bytes) -> bytes:
    return content + b"more"


def comment(content: bytes) -> bytes:
    return content[:-2] + struct.pack("<H", 4) + b"more"


def between(content: bytes) -> bytes:
    """Return it with bytes before the list that no file owns."""
    end, at = bytearray(content[-22:]), content.index(b"PK\x01\x02")
    end[16:20] = struct.pack("<L", at + 4)
    return content[:at] + b"more" + content[at:-22] + bytes(end)


@pytest.mark.parametrize("change", [other_name, other_time, before, behind, comment, between])
def test_ambiguous_archives_are_refused(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(DeploymentError, match="is not a Flower app"):
        read(tmp_path, change(pack(GOOD)))


@pytest.mark.parametrize("says", [10, 10**5])
def test_unpacking_is_bounded(tmp_path: Path, says: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 20 MB packed in 20 kB, of which the list says less, with the right checksum."""
    monkeypatch.setattr(bundles, "MAX_BYTES", 1_000_000)
    real = b"\0" * 20_000_000
    packing = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packing.compress(real) + packing.flush()
    entry = zipfile.ZipInfo("client_app/x.py")
    content = packed(entry, data)
    fixed = {14: zlib.crc32(real[:says]), 22: says}
    made = bytearray(content)
    for start, shift in ((content.index(b"client_app/x.py") - 30, 0),
                         (content.rindex(b"client_app/x.py") - 46, 2)):  # fmt: skip
        made[start + 8 + shift : start + 10 + shift] = struct.pack("<H", zipfile.ZIP_DEFLATED)
        for at, value in fixed.items():
            made[start + at + shift : start + at + shift + 4] = struct.pack("<L", value)
    del real
    tracemalloc.start()
    with pytest.raises(DeploymentError, match="is not a Flower app"):
        read(tmp_path, bytes(made))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_name_costs_no_more_than_its_size(tmp_path: Path) -> None:
    long = f"client_app/{'a' * 186}.py"
    assert len(long) == 200 and long in read(tmp_path, pack({**GOOD, long: b""})).files
    content = pack({**GOOD, "client_app/" + "a/" * 10_000 + "x.py": b""})
    tracemalloc.start()
    with pytest.raises(DeploymentError, match="has too long a name") as found:
        read(tmp_path, content)
    assert len(str(found.value)) < 1_000
    assert tracemalloc.get_traced_memory()[1] < 60_000_000  # 50 million to read any app
    tracemalloc.stop()
    with pytest.raises(DeploymentError, match="has too long a name"):
        read(tmp_path, pack({**GOOD, f"{long[:-3]}a.py": b""}))


def deflated(files: dict[str, bytes]) -> bytes:
    """Return an app as ``flwr build`` packs it."""
    stream, plain = io.BytesIO(), zipfile.ZipFile(io.BytesIO(pack(files)))
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in plain.namelist():
            archive.writestr(zipfile.ZipInfo(name), plain.read(name), zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def test_a_packed_app_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {**GOOD, "client_app/empty.py": b"", "client_app/long.py": b"# long\n" * 10_000}
    content = deflated(files)
    assert read(tmp_path, content).files == files
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    assert len(content) < size
    monkeypatch.setattr(bundles, "MAX_BYTES", size)
    assert read(tmp_path, content).files == files
    monkeypatch.setattr(bundles, "MAX_BYTES", size - 1)
    with pytest.raises(DeploymentError):
        read(tmp_path, content)


@pytest.mark.parametrize("shift", [14, 22], ids=["checksum", "size"])
def test_a_file_with_another_checksum_or_size_is_refused(tmp_path: Path, shift: int) -> None:
    """In both of the archive's lists alike, so that other programs would not unpack it."""
    content = bytearray(pack(GOOD))
    for at in (shift, content.index(b"PK\x01\x02") + shift + 2):
        content[at] ^= 1
    with pytest.raises(DeploymentError, match="is not a Flower app"):
        read(tmp_path, bytes(content))


@pytest.mark.parametrize("path", ["/srv/a b/python", f"/{'x' * 115}/python"])
def test_bad_pythons_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    approved = read(tmp_path, pack(GOOD))
    monkeypatch.setattr(sys, "executable", path)
    with pytest.raises(
        DeploymentError, match="too long for a script's first line, or holds a blank"
    ):
        bundles.install(approved, tmp_path / "to")
    assert not (tmp_path / "to").exists()
    monkeypatch.setattr(sys, "executable", f"/{'x' * 100}/python")
    assert bundles.install(approved, tmp_path / "to").is_file()


def test_apps_up_to_50_mb_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundles.MAX_BYTES == 50_000_000
    monkeypatch.setattr(bundles, "MAX_BYTES", len(pack(GOOD)))
    assert read(tmp_path, pack(GOOD))
    monkeypatch.setattr(bundles, "MAX_BYTES", len(pack(GOOD)) - 1)
    with pytest.raises(DeploymentError):
        read(tmp_path, pack(GOOD))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("client_app/x.py", b"\0" * 10_000)
    monkeypatch.setattr(bundles, "_unpacked", lambda *_: pytest.fail("it was unpacked"))
    monkeypatch.setattr(bundles, "MAX_BYTES", 9_999)
    with pytest.raises(DeploymentError):
        read(tmp_path, stream.getvalue())


def test_an_app_that_is_there_is_written_anew(tmp_path: Path) -> None:
    """Nothing stays that an earlier approval, or another program, left in its folder."""
    content = bundle(MODULE, "1")
    approved = read(tmp_path, content)
    folder = tmp_path / "to"
    bundles.install(approved, folder)
    app = folder / "apps" / approved.sha256
    for path in (app, *app.rglob("*")):
        path.chmod(0o755)
    before = {path: path.read_bytes() for path in app.rglob("*") if path.is_file()}
    (compiled,) = (path for path in before if path.suffix == ".pyc")
    compiled.write_bytes(b"other")
    (app / "client_app" / "app.py").write_text("other")
    (app / "safetensors.py").write_text("")
    (app / "json").symlink_to(tmp_path)
    bundles.install(approved, folder)
    assert {path: path.read_bytes() for path in app.rglob("*") if path.is_file()}.keys() == (
        before.keys()
    )
    assert (app / "client_app" / "app.py").read_bytes() == approved.files["client_app/app.py"]
    assert compiled.read_bytes() != b"other"
    assert [path.name for path in (folder / "apps").iterdir()] == [approved.sha256]
    assert stat.S_IMODE(app.stat().st_mode) == 0o555 and tmp_path.exists()
    for name in ("", "apps", "bin"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o755
    assert os.access(tmp_path, os.W_OK)


def test_a_broken_installation_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approved = read(tmp_path, bundle(MODULE, "1"))
    bundles.install(approved, tmp_path / "to")
    before = sorted((tmp_path / "to" / "apps").rglob("*"))

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bundles, "_compile", fail)
    with pytest.raises(KeyboardInterrupt):
        bundles.install(approved, tmp_path / "to")
    assert sorted((tmp_path / "to" / "apps").rglob("*")) == before
