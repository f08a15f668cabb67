"""``requirements.lock`` pins every file by its hash, and ``constraints.txt`` is made from it."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
AGAIN = "run: make lock"


def entries() -> dict[str, str]:
    """Return version by name; every line of the lock is a pin, or one of its hashes."""
    found: dict[str, str] = {}
    hashes = 1
    for line in LOCK.splitlines():
        pin = re.fullmatch(r"([a-z0-9-]+)==([0-9][^ ;]*)(?: ; [^\\]+)? \\", line)
        if pin:
            assert hashes, f"a pin without a hash before {line}"
            assert pin[1] not in found, f"{pin[1]} stands there twice"
            found[pin[1]], hashes = pin[2], 0
        else:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?", line), line
            hashes += 1
    assert hashes
    return found


def test_constraints_are_those_of_the_lock() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    assert pins == entries(), AGAIN


def test_the_lock_satisfies_every_dependency_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [project["dependencies"], *project["optional-dependencies"].values()]
    locked = entries()
    for requirement in map(Requirement, itertools.chain(*asked)):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked; {AGAIN}"
        assert requirement.specifier.contains(version), f"{requirement}; {AGAIN}"


def test_no_index_is_named() -> None:
    """So that it installs from whatever index, or folder, a site trusts."""
    assert "://" not in LOCK
    assert not re.search(r"^-", LOCK, re.M)
