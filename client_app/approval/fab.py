"""Flower's app bundles (``.fab``): read without running a line, and unpacked where they may run."""

from __future__ import annotations

import compileall
import hashlib
import io
import os
import py_compile
import shutil
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hdpfl_flower.errors import DeploymentError

MAX_BYTES = 50_000_000
"""Of all files of an app, unpacked; Flower takes 10 MB of them packed."""
CONTENT = ".info/CONTENT"
LAUNCHER, EXECUTOR = "flwr-clientapp", "flower-superexec"
_MAX_SHEBANG = 120
"""What every kernel reads of a script's first line."""


@dataclass(frozen=True)
class Bundle:
    """An app whose files are what its own list says.

    Attributes:
        app: publisher and name, as Flower writes them.
        version: as its pyproject.toml says.
        sha256: of the bundle, by which an approval knows it; hexadecimal.
        files: the bytes of each file by its name.
    """

    app: str
    version: str
    sha256: str
    files: dict[str, bytes]


def read_bundle(path: Path) -> Bundle:
    """Return the app in the file at ``path``; nothing of it is run or written.

    Raises:
        DeploymentError: no bundle, or one whose files are not what it lists.
    """
    try:
        content = path.expanduser().read_bytes()
    except OSError as error:
        raise DeploymentError(f"{path} cannot be read: {error.strerror}") from None
    try:
        files = _files(content)
        listed = [line.split(",") for line in files.pop(CONTENT).decode().splitlines() if line]
        digests = {name: digest for name, digest, _ in listed}
        project = tomllib.loads(files["pyproject.toml"].decode())
        name, version = project["project"]["name"], project["project"]["version"]
        app = f"{project['tool']['flwr']['app']['publisher']}/{name}"
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, NotImplementedError):
        raise DeploymentError(f"{path} is no app of Flower's; make one with: flwr build") from None
    if digests != {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}:
        raise DeploymentError(f"{path}: its files are not those that it lists; get it again")
    return Bundle(app, str(version), hashlib.sha256(content).hexdigest(), files)


def _files(content: bytes) -> dict[str, bytes]:
    """Return the files of a zip archive; raises ``ValueError`` where one leads out of its folder.

    A file that stands there twice is refused: which of the two counts, readers do not agree on.
    """
    files: dict[str, bytes] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        # By the archive's own list, before a file is unpacked.
        if sum(entry.file_size for entry in entries) > MAX_BYTES:
            raise ValueError("too large")
        for entry in entries:
            name = PurePosixPath(entry.filename)
            # Such a name would write outside of the app's folder.
            if name.is_absolute() or ".." in name.parts or "\\" in entry.filename:
                raise ValueError("leads out")
            if str(name) in files:
                raise ValueError("twice")
            files[str(name)] = archive.read(entry)
    return files


def install(bundle: Bundle, folder: Path) -> Path:
    """Put an app among the approved ones in ``folder``, and the launcher beside; return that.

    What is written may be read by everybody and changed by nobody but its owner. An app that is
    there stays as it is.

    Raises:
        DeploymentError: the folder cannot be written, or this Python's path is too long.
    """
    # -I: no PYTHON… variable and no user's site folder can put other code first.
    shebang = f"#!{sys.executable} -I\n"
    if len(shebang) > _MAX_SHEBANG or " " in sys.executable:
        raise DeploymentError(
            f"{sys.executable} is too long a path, or has a blank, for a script's first line; "
            "install this package in a shorter one, e.g. /srv/hdpfl/venv"
        )
    try:
        _install_app(bundle, folder / "apps")
        _install_importer(folder / "lib")
        return _install_launcher(shebang, folder / "bin")
    except OSError as error:
        raise DeploymentError(f"{error.filename} cannot be written: {error.strerror}") from None


def _install_app(bundle: Bundle, apps: Path) -> None:
    final, part = apps / bundle.sha256, apps / f".{bundle.sha256}.{os.getpid()}"
    apps.mkdir(parents=True, exist_ok=True)
    for path in (apps.parent, apps):
        path.chmod(0o755)
    if final.exists():
        return
    try:
        for name, data in bundle.files.items():
            target = part / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        _compile(part, final)
        for path in sorted(part.rglob("*"), reverse=True):
            path.chmod(0o555 if path.is_dir() else 0o444)
        part.chmod(0o755)
        # Last: an installation that breaks off never has the approved name.
        part.rename(final)
        final.chmod(0o555)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _compile(folder: Path, final: Path) -> None:
    """Compile the modules in ``folder``, which becomes ``final``.

    The node, which starts a process a message, cannot write there.
    """
    checked = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(folder, quiet=2, ddir=str(final), invalidation_mode=checked)


def _install_importer(folder: Path) -> None:
    """Write ``lib/importer.py``, which the launcher imports, compiled."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    part = folder / ".importer.py"
    part.unlink(missing_ok=True)
    part.write_bytes(Path(__file__).with_name("importer.py").read_bytes())
    part.chmod(0o444)
    part.replace(folder / "importer.py")
    _compile(folder, folder)


def _install_launcher(shebang: str, folder: Path) -> Path:
    """Write ``bin/flwr-clientapp``, a link to flower-superexec beside it, and nothing else."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    launcher, part = folder / LAUNCHER, folder / f".{LAUNCHER}"
    part.unlink(missing_ok=True)
    source = Path(__file__).with_name("launcher.py").read_text(encoding="utf-8")
    part.write_text(shebang + source, encoding="utf-8")
    part.chmod(0o555)
    part.replace(launcher)
    executor = Path(sys.executable).parent / EXECUTOR
    if executor.exists() and not (folder / EXECUTOR).is_symlink():
        (folder / EXECUTOR).symlink_to(executor)
    return launcher
