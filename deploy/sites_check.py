"""Checks of site names and files before a federation is created.

Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flower_cli import SITES, ProblemError, captured, check_free
from nodes import SUPERLINK

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STAGED = ".new-"
"""Prefix of a site's folder while its files are checked."""
MAX_PORT = 65535


def site_names(source: Path) -> list[str]:
    """Return the names of the folders in ``source``, one per site, sorted.

    Raises:
        ProblemError: there is none, or one is not a valid site name.
    """
    if not source.is_dir():
        raise ProblemError(f"{source} is no folder; name one that holds a folder a site")
    names = sorted(path.name for path in source.iterdir() if path.is_dir())
    if not names:
        raise ProblemError(f"{source} holds no folder of a site")
    for name in names:
        if not _NAME.fullmatch(name) or name == SUPERLINK:
            raise ProblemError(
                f"{source / name}: a site's name may hold letters, digits, '-', '_' and '.', "
                f"starts with a letter or a digit, and is not '{SUPERLINK}'; rename or move it"
            )
    return names


def check_ports(ports: Iterable[int]) -> None:
    """Raise ``ProblemError`` if a port is taken or invalid."""
    for port in ports:
        if port > MAX_PORT:
            raise ProblemError(
                f"port {port} is above {MAX_PORT}; set HDPFL_FEDERATION_PORT to a lower one"
            )
        check_free(port)


def check_sites(names: list[str], source: Path) -> None:
    """Refuse sites with unusable profiles or files.

    A site that already has a profile here is not checked.

    Raises:
        ProblemError: names each of them, and the change needed.
    """
    SITES.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        problems = [
            text for text in pool.map(lambda name: _problem(name, source / name), names) if text
        ]
    if problems:
        raise ProblemError("; ".join(problems))


def _problem(name: str, source: Path) -> str:
    """Return why a site cannot take part, or an empty text."""
    staged = SITES / f"{_STAGED}{name}"
    if (SITES / name / "profile.toml").exists():
        return ""
    if not (source / "profile.toml").is_file():
        return f"{source} holds no profile.toml; write one, see docs/how-to/site.md"
    try:
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(mode=0o700)
        for file in source.iterdir():
            if file.is_file():
                shutil.copyfile(file, staged / file.name)
                (staged / file.name).chmod(0o600)
        return _checked(name, staged / "profile.toml", str(source))
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _checked(name: str, profile: Path, shown: str) -> str:
    """Return ``hdpfl-site profile check``'s errors, with ``shown`` for the profile's folder."""
    done = captured("hdpfl-site", "profile", "check", "--profile", str(profile))
    if done.returncode == 0:
        return ""
    wrong = [
        line.removeprefix("error").strip()
        for line in done.stdout.splitlines()
        if line.startswith("error")
    ]
    # A missing ledger is made by 'up' itself.
    wrong = [line for line in wrong if not _is_a_new_ledger(line)]
    if not done.stdout.strip():
        wrong = done.stderr.strip().splitlines()[-1:] or ["'hdpfl-site profile check' failed"]
    text = "; ".join(line.removeprefix("error: ") for line in wrong)
    text = text.replace(str(profile.parent), shown)
    return f"site {name}: {text}" if text else ""


def _is_a_new_ledger(line: str) -> bool:
    return "ledger --init" in line
