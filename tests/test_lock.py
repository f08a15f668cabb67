"""``requirements.lock`` pins every file by its hash, and ``constraints.txt`` is made from it."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK, SITE_LOCK = (
    (ROOT / name).read_text() for name in ("requirements.lock", "requirements-site.lock")
)
AGAIN = "run: make lock"


def entries(lock: str = LOCK) -> dict[str, str]:
    """Return version by name; every line of the lock is a pin, or one of its hashes."""
    found: dict[str, str] = {}
    hashes = 1
    for line in lock.splitlines():
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


def test_what_builds_the_images_is_locked() -> None:
    locked = entries((ROOT / "docker" / "tools.lock").read_text())
    for text in (ROOT / "docker" / "tools.in").read_text().splitlines():
        requirement = Requirement(text)
        assert requirement.specifier.contains(locked[requirement.name]), AGAIN


def test_the_lock_satisfies_every_dependency_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    locked = entries()
    asked = [project["dependencies"], *extras.values()]
    for requirement in map(Requirement, itertools.chain(*asked)):
        if requirement.name == project["name"]:  # an extra made of others
            assert requirement.extras <= set(project["optional-dependencies"])
            continue
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked; {AGAIN}"
        assert requirement.specifier.contains(version), f"{requirement}; {AGAIN}"


def test_the_sites_lock_is_a_part_of_the_whole_without_the_extras_it_does_not_need() -> None:
    """A site that trains on CSV and has an exporter."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    needed |= {canonicalize_name(Requirement(text).name) for text in extras["metrics"]}
    site = entries(SITE_LOCK)
    assert needed <= site.keys(), AGAIN
    assert site.items() <= entries().items(), AGAIN
    others = {name for name in extras if name not in ("metrics", "all", "dev")}
    for requirement in (Requirement(text) for name in others for text in extras[name]):
        if not requirement.extras:
            assert canonicalize_name(requirement.name) not in site, AGAIN


def test_no_index_is_named() -> None:
    """So that it installs from whatever index, or folder, a site trusts."""
    for lock in (LOCK, SITE_LOCK):
        assert "://" not in lock
        assert not re.search(r"^-", lock, re.M)
