"""The engines under another Flower than the pinned one: ``make test-flower FLWR=latest``."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

from tests.e2e.engines import BIN, ROOT

SHORT = ["tests/e2e/test_same_arrays.py", "-k", "robust-hdp"]
"""Ray, and SuperNodes that pin the app: the launcher uses most of Flower's inner parts."""
INSTALL_SECONDS, TEST_SECONDS, STOP_SECONDS = 60, 140, 40
"""Two versions take at most the eight minutes that ``.ci/run`` has for them."""


class MissingFlowerError(Exception):
    """No such version can be installed here."""


def install(requirement: str, folder: Path, seconds: float = 300) -> Path:
    """Install another Flower over this environment; return the new environment's Python.

    It has what ``requirement`` needs anew, and the rest from here: seconds instead of gigabytes.

    Raises:
        MissingFlowerError: the package index has none, or cannot be reached.
    """
    python, here = folder / "bin" / "python", sysconfig.get_path("purelib")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "over.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    command = [str(python), "-m", "pip", "install", "--quiet", "--upgrade", requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise MissingFlowerError(f"not installed after {seconds:g} s") from None
    if done.returncode:
        raise MissingFlowerError((done.stderr.strip().splitlines() or ["pip failed"])[-1])
    for nightly in packages.glob("flwr_nightly-*.dist-info"):
        # Flower looks for its version under the name flwr, which would be the one from here.
        released = nightly.with_name(nightly.name.replace("flwr_nightly", "flwr"))
        shutil.copytree(nightly, released)
        text = (released / "METADATA").read_text()
        (released / "METADATA").write_text(text.replace("Name: flwr-nightly", "Name: flwr", 1))
    for name in ("hdpfl", "hdpfl-site", "hdpfl-patient"):
        lines = (BIN / name).read_text().splitlines(keepends=True)
        (folder / "bin" / name).write_text("".join([f"#!{python}\n", *lines[1:]]))
        (folder / "bin" / name).chmod(0o755)
    return python


def main(word: str) -> int:
    """Test ``latest``, ``nightly`` or a version, print the verdict and return pytest's status.

    A version that cannot be had, or is the pinned one, is a line and no failure.
    """
    name = "flwr-nightly" if word == "nightly" else "flwr"
    wanted = name if word in ("latest", "nightly") else f"{name}=={word}"
    try:
        python = install(wanted, ROOT / "build" / f"flower-{word}", INSTALL_SECONDS)
    except MissingFlowerError as error:
        print(f"Flower {word}: skipped, {error}")
        return 0
    code = f"from importlib.metadata import version; print(version({name!r}))"
    asked = [str(python), "-c", code]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if name == "flwr" and found == version("flwr"):
        print(f"Flower {word}: skipped, it is the pinned {found}")
        return 0
    short = ["-m", "engines and not deadline and not wards", *SHORT]
    tests = subprocess.Popen([str(python), "-m", "pytest", "-q", *short], cwd=ROOT)
    try:
        status, verdict = tests.wait(TEST_SECONDS), "fails"
    except subprocess.TimeoutExpired:
        status, verdict = _interrupt(tests), f"no verdict after {TEST_SECONDS} s"
    print(f"Flower {word}: {found}: {verdict if status else 'works'}")
    return status


def _interrupt(tests: subprocess.Popen[bytes]) -> int:
    """Interrupt pytest, whose fixtures then stop what they started; return its status."""
    tests.send_signal(signal.SIGINT)
    try:
        return tests.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        tests.kill()
        return tests.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
