"""Flower app bundles (``.fab``): reading without execution, and unpacking."""

from __future__ import annotations

import compileall
import hashlib
import io
import os
import py_compile
import re
import shutil
import stat
import sys
import tomllib
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from client_app.site.app_digest import PACKAGES
from hdpfl_flower.config.toml_text import form_fault
from hdpfl_flower.errors import DeploymentError
from hdpfl_flower.system.paths import expanded
from hdpfl_flower.system.task_programs import LAUNCHER, task_programs

MAX_BYTES = 50_000_000
"""Most bytes of an unpacked app; Flower accepts 10 MB packed."""
_MOST_PROJECT, _MOST_PARTS = 65_536, 6
"""Characters of an app's pyproject.toml, and parts of a key in it."""
CONTENT = ".info/CONTENT"
PROJECT = "pyproject.toml"
ENTRY_POINTS = {"clientapp": "client_app.app:app", "serverapp": "server_app.app:app"}
"""Objects that Flower loads from an app; no others are allowed."""
EXECUTOR = "flower-superexec"
_MAX_SHEBANG = 120
"""Bytes of a script's first line that every kernel reads."""
_ENDINGS = (".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl")
"""Files that ``flwr build`` includes besides LICENSE: source code and text. Compiled code,
libraries and path files have other endings."""
_LONGEST_NAME = 200
_FILE = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""File name without '..', blanks or folders with a dot (x.dist-info)."""
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
"""A publisher, a name or a version."""
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_AGAIN = (
    "the coordinator must leave it out ('fab-include' in pyproject.toml) and build the app again"
)


@dataclass(frozen=True)
class Bundle:
    """App with files that match its own list.

    Attributes:
        app: publisher and name, as Flower writes them.
        version: as its pyproject.toml says.
        sha256: of the bundle, by which an approval knows it; hexadecimal.
        files: the bytes of each file by its name.
        dependencies: as its pyproject.toml says; the launcher installs none.
    """

    app: str
    version: str
    sha256: str
    files: dict[str, bytes]
    dependencies: tuple[str, ...] = ()


def read_bundle(path: Path) -> Bundle:
    """Return the app in the file at ``path``, without execution or writing.

    Guarantees:
        All that can be imported from its folder is source code, in the four packages of this app
        and one of the project's own name, which is no library's. It starts at our entry points.

    Raises:
        DeploymentError: no bundle, or its files differ from its list, or it holds something else.
    """
    try:
        with expanded(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DeploymentError(f"{path} cannot be read: {error.strerror}") from None
    try:
        files = _files(path, content)
        listed = files.pop(CONTENT).decode().split("\n")
        text = files[PROJECT].decode()
        if len(text) > _MOST_PROJECT or form_fault(text, most_parts=_MOST_PARTS):
            raise ValueError(PROJECT)
        project = tomllib.loads(text)
        name, version = project["project"]["name"], project["project"]["version"]
        app = project["tool"]["flwr"]["app"]
        words = [app["publisher"], name, version]
        if not all(_WORD.fullmatch(word) for word in words):
            raise ValueError(PROJECT)
        needs = tuple(
            str(requirement) for requirement in project["project"].get("dependencies", [])
        )
        components = dict(app["components"])
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RecursionError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ):
        raise DeploymentError(f"{path} is not a Flower app; make one with: flwr build") from None
    if sorted(listed) != sorted(
        f"{name},{hashlib.sha256(data).hexdigest()},{8 * len(data)}" for name, data in files.items()
    ):
        raise DeploymentError(
            f"{path}: the app's files are not those that it lists; get the app again"
        )
    if components != ENTRY_POINTS:
        raise DeploymentError(
            f"{path}: {PROJECT} starts other code than this app's; the coordinator must name only "
            f"{', '.join(ENTRY_POINTS.values())} in [tool.flwr.app.components]"
        )
    _check_modules(path, files, name.replace("-", "_").lower())
    return Bundle(f"{words[0]}/{name}", version, hashlib.sha256(content).hexdigest(), files, needs)


def _files(path: Path, content: bytes) -> dict[str, bytes]:
    """Return a zip archive's files, if unambiguous; else raises ``ValueError``."""
    files: dict[str, bytes] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        # By the archive's own list, before a file is unpacked.
        if len(content) > MAX_BYTES or sum(entry.file_size for entry in entries) > MAX_BYTES:
            raise ValueError("too large")
        position, seen = 0, dict[str, str]()
        for entry in entries:
            name = entry.orig_filename
            if fault := _fault_of_entry(entry) or _fault_of_name(name, seen):
                raise DeploymentError(f"{path}: {name[:_LONGEST_NAME]!r} {fault}; {_AGAIN}")
            # Each file's own head agrees with the archive's list, and no byte lies between.
            head = entry.FileHeader()
            if (entry.header_offset, content[position : position + len(head)]) != (position, head):
                raise ValueError("two lists")
            start, position = position + len(head), position + len(head) + entry.compress_size
            files[name] = _unpacked(entry, content[start:position])
        end = position + sum(46 + len(name) for name in files) + 22
        if (position, end) != (archive.start_dir, len(content)):
            raise ValueError("bytes beside the files")
    return files


def _unpacked(entry: zipfile.ZipInfo, data: bytes) -> bytes:
    """Return a file's bytes, at most its stated size; raises ``ValueError``."""
    ended = True
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
        data = unpacking.decompress(data, entry.file_size + 1)
        ended = unpacking.eof and not unpacking.unused_data
    if not ended or (len(data), zlib.crc32(data)) != (entry.file_size, entry.CRC):
        raise ValueError("another size")
    return data


def _fault_of_entry(entry: zipfile.ZipInfo) -> str:
    """Return a deviation of an archive's file from ``flwr build``, or empty."""
    if entry.flag_bits & 1:
        return "is encrypted"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG) or entry.external_attr & 0xFF:
        return "is not a file but a link, a folder or another thing"
    if entry.flag_bits or entry.extra or entry.compress_type not in _PACKED:
        return "is packed in another way than flwr build packs files"
    return ""


def _fault_of_name(name: str, seen: dict[str, str]) -> str:
    """Return the reason against a file name; empty if allowed.

    Args:
        name: as it stands in the archive.
        seen: files and folders before it, by their names in small letters; ``name`` is added.
    """
    parts = name.split("/")
    if name != CONTENT:
        # Checked before its folders: their comparison is quadratic in the length of a name.
        if len(name) > _LONGEST_NAME:
            return "has too long a name"
        if not _FILE.fullmatch(name) or "__pycache__" in name.lower().split("/"):
            return "has a name that could lead to another place"
        if name != "LICENSE" and not name.endswith(_ENDINGS):
            return "is neither source code nor text that this command compares"
    if seen.get(name.lower()) == name:
        return "is there twice"
    for count in range(1, len(parts) + 1):
        prefix = "/".join(parts[:count]) + "/" * (count < len(parts))
        if seen.setdefault(prefix.lower().rstrip("/"), prefix) != prefix:
            return "is both a file and a folder, or differs from another name only by capitals"
    return ""


def _check_modules(path: Path, files: Collection[str], project: str) -> None:
    """Refuse modules that would shadow another module in Python.

    Args:
        path: of the bundle, for errors.
        files: the names of its files.
        project: its package, beside the packages of the app.

    Raises:
        DeploymentError: names the file.
    """
    folders = {name.rpartition("/")[0] for name in files}
    for name in files:
        root, _, rest = name.partition("/")
        if name.endswith(".py") and name.removesuffix(".py") in folders:
            raise DeploymentError(f"{path}: {name!r} is hidden by a folder of its name; {_AGAIN}")
        if root not in (*PACKAGES, project) if rest else name.endswith(".py"):
            raise DeploymentError(
                f"{path}: {name!r} could be imported in place of a library; the coordinator must "
                f"move it into the package {project}"
            )
        if rest and root not in PACKAGES and _is_taken(root):
            raise DeploymentError(
                f"{path}: {name!r} would be imported in place of a library that is installed "
                "here; the coordinator must give the project another name"
            )


def _is_taken(module: str) -> bool:
    standard = module in sys.stdlib_module_names
    return standard or not module.isidentifier() or find_spec(module) is not None


def install(bundle: Bundle, folder: Path) -> Path:
    """Store an app with its launcher in ``folder``; return its folder.

    All users may read the written files, their owner alone may change them. An app that is there
    already is written anew: nothing else lies in its folder.

    Raises:
        DeploymentError: the folder cannot be written, or this Python's path is too long.
    """
    # -I: no PYTHON… variable and no user's site folder can put other code first.
    shebang = f"#!{sys.executable} -I\n"
    if len(shebang) > _MAX_SHEBANG or " " in sys.executable:
        raise DeploymentError(
            f"the path {sys.executable} is too long for a script's first line, or holds a blank; "
            "install this package at a shorter path, such as /srv/hdpfl/venv"
        )
    try:
        _install_app(bundle, folder / "apps")
        return _install_launcher(shebang, folder / "bin")
    except OSError as error:
        raise DeploymentError(f"{error.filename} cannot be written: {error.strerror}") from None


def _install_app(bundle: Bundle, apps: Path) -> None:
    final, unfinished = apps / bundle.sha256, apps / f".{bundle.sha256}.{os.getpid()}"
    old = unfinished.with_name(f"{unfinished.name}.old")
    apps.mkdir(parents=True, exist_ok=True)
    for path in (apps.parent, apps):
        path.chmod(0o755)
    try:
        for name, data in bundle.files.items():
            target = unfinished / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        _compile(unfinished, final)
        for path in sorted(unfinished.rglob("*"), reverse=True):
            path.chmod(0o555 if path.is_dir() else 0o444)
        unfinished.chmod(0o755)
        # Last: an installation that breaks off never has the approved name.
        if final.exists():
            final.chmod(0o755)
            final.rename(old)
        unfinished.rename(final)
        final.chmod(0o555)
    finally:
        for left in (unfinished, old):
            for path in (left, *left.rglob("*")):
                if path.is_dir() and not path.is_symlink():
                    path.chmod(0o755)  # else its content cannot be removed
            shutil.rmtree(left, ignore_errors=True)


def _compile(folder: Path, final: Path) -> None:
    """Compile the modules in ``folder``, which becomes ``final``.

    The node, which starts a process a message, cannot write there.
    """
    checked = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(folder, quiet=2, force=True, ddir=str(final), invalidation_mode=checked)


def _install_launcher(shebang: str, folder: Path) -> Path:
    """Write ``bin/flwr-clientapp``, and links to it and to the adjacent flower-superexec.

    Each program that a task of Flower's can start is a link to the launcher, which refuses it.
    """
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    launcher, unfinished = folder / LAUNCHER, folder / f".{LAUNCHER}"
    unfinished.unlink(missing_ok=True)
    source = Path(__file__).with_name("launcher.py").read_text(encoding="utf-8")
    unfinished.write_text(shebang + source, encoding="utf-8")
    unfinished.chmod(0o555)
    unfinished.replace(launcher)
    executor = Path(sys.executable).parent / EXECUTOR
    targets = dict.fromkeys(task_programs() - {LAUNCHER}, Path(LAUNCHER))
    for name, target in {**targets, **({EXECUTOR: executor} if executor.exists() else {})}.items():
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(target)
        unfinished.replace(folder / name)
    return launcher
