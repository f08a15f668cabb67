"""A coordinator whose Flower is one version behind its sites, then one ahead of them.

docs/how-to/upgrade.md#versions-of-flower. Site "0" has the coordinator's version. The other Flower
is the previous minor version, or the requirement in HDPFL_OTHER_FLOWER (``make test-pairs``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from tests.e2e.engines import (
    SITES,
    Done,
    Federation,
    command_of,
    digest,
    free_ports,
    processes,
    rounds_of,
    seeded_terms,
    write_seeded_site,
)
from tests.e2e.other_flower import MissingFlowerError, install

pytestmark = [pytest.mark.engines, pytest.mark.wards]

PINNED = Version(version("flwr"))
OTHER = os.environ.get("HDPFL_OTHER_FLOWER", f"flwr=={PINNED.major}.{PINNED.minor - 1}.*")
TERMS = seeded_terms(strategy="robust-hdp", rounds=2)


@dataclass
class Story:
    """What was seen of a federation whose coordinator was upgraded between two runs.

    Attributes:
        runs: folder of the run with the coordinator ``behind`` and ``ahead``.
        programs: what ran then, a command line a node.
        superexec: what a SuperExec of the older version said to a SuperNode of the newer.
        back: how the older SuperLink started on the upgraded database, and on its copy.
        log: the SuperLink's at the first of these.
        version: of the newer Flower.
    """

    newer: Federation
    older: Federation
    version: Version
    runs: dict[str, Path] = field(default_factory=dict)
    programs: dict[str, list[str]] = field(default_factory=dict)
    superexec: Done | None = None
    back: list[Done] = field(default_factory=list)
    log: str = ""

    def run(self, name: str, coordinator: Federation, sites: Federation) -> None:
        """Start SuperLink and site 0 from one environment, the others from another, and run."""
        for starts, folder in ((coordinator, "first"), (sites, "sites")):
            started = starts.call("up", "--sites", starts.home / folder)
            assert started.returncode == 0, started.stderr
        self.runs[name], done = sites.run(TERMS.updated(run_id=name))
        assert done.returncode == 0, done.stdout + done.stderr
        pids = [processes.find(node, sites.folder / "pids") for node in ("superlink", *"0123")]
        self.programs[name] = [command_of(pid or 0) for pid in pids]

    def database(self) -> dict[Path, bytes]:
        """Return the files of the SuperLink's database and what they hold."""
        found = (self.newer.folder / "superlink").glob("state.db*")
        return {path: path.read_bytes() for path in found}

    def go_back(self) -> None:
        """Start the older SuperLink and site 0."""
        self.back.append(self.older.call("up", "--sites", self.older.home / "first"))


def version_of(python: Path) -> Version:
    """Return the version of the Flower that ``python`` imports."""
    code = "from flwr.supercore.version import package_version; print(package_version)"
    asked = [str(python), "-c", code]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return Version(said.strip())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    try:
        other = install(OTHER, tmp_path_factory.mktemp("other"))
    except MissingFlowerError as error:
        pytest.skip(f"{OTHER}: {error}")
    home = tmp_path_factory.mktemp("versions")
    for index in range(SITES):
        write_seeded_site(home / "sites" / str(index), TERMS, index, SITES)
    shutil.copytree(home / "sites" / "0", home / "first" / "0")
    versions = {version_of(python): python for python in (Path(sys.executable), other)}
    older, newer = (versions[number] for number in sorted(versions))
    now = Federation(home, free_ports(SITES + 1), str(newer))
    told = Story(now, replace(now, python=str(older)), max(versions))
    try:
        told.run("behind", told.older, now)
        told.superexec = start_superexec(older.parent, now.port + 2)
        now.call("down")
        before = told.database()
        told.run("ahead", now, told.older)
        now.call("down")
        told.go_back()
        told.log = now.log("superlink")
        for path in told.database():
            path.unlink()
        for path, content in before.items():
            path.write_bytes(content)
        told.go_back()
        yield told
    finally:
        now.call("down")


def start_superexec(programs: Path, port: int) -> Done:
    """Start what runs a SuperNode's tasks, as its unit does; it ends by itself where refused."""
    command = [str(programs / "flower-superexec"), "--runtime-api-address", f"127.0.0.1:{port}"]
    return subprocess.run(
        [*command, "--insecure"], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("coordinator", ["behind", "ahead"])
def test_two_versions_give_the_same_bits(story: Story, coordinator: str, tmp_path: Path) -> None:
    """And neither side learns of it: Flower drops its warning on the way that SuperNodes take."""
    paths = [str(Path(story.newer.python).parent), str(Path(story.older.python).parent)]
    first, second = paths if coordinator == "ahead" else paths[::-1]
    names = ("flower-superlink", "flower-supernode")
    lines = [line.split() for line in story.programs[coordinator]]
    found = [next(word for word in line if Path(word).name in names) for line in lines]
    nodes = [f"{first}/flower-superlink", f"{first}/flower-supernode"]
    assert found == [*nodes, *[f"{second}/flower-supernode"] * 3]
    events = rounds_of(story.runs[coordinator])
    assert [event["accepted"] for event in events] == [["0", "1", "2", "3"]] * 2
    here = run_in_process(TERMS.updated(run_id="here", runs_dir=str(tmp_path)), SITES)
    assert digest(story.runs[coordinator]) == digest(here.folder)
    for name in ("superlink", "0", "2", "3"):  # 1 was shown a SuperExec
        assert "mismatch" not in story.newer.log(name)


def test_a_supernode_refuses_tasks_of_another_version(story: Story) -> None:
    assert story.superexec is not None
    said = story.superexec.stdout + story.superexec.stderr
    assert "Exit Code: 606" in said
    assert f"SuperNode version {story.version} detected a runtime version mismatch" in said
    assert "detected a runtime version mismatch" in story.newer.log("1")


def test_an_upgraded_database_is_refused_and_its_copy_of_before_is_not(story: Story) -> None:
    refused, taken = story.back
    assert refused.returncode == 1
    assert "Can't locate revision identified by" in story.log
    assert taken.returncode == 0, taken.stderr
