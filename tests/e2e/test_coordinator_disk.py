"""A coordinator whose disk is full in mid-run: its database and its runs lie on it."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.engines import ROOT, Done, Federation, free_ports, rounds_of
from tests.e2e.faults import (
    HEART,
    check_books,
    rounds_so_far,
    wait_for_round,
    wait_for_work,
    write_hospital,
)

pytestmark = [pytest.mark.engines, pytest.mark.wards]

SITES = ("va", "hungarian")
RUN, ROUNDS, SECONDS = "disk", 6, 15.0
TERMS = {**HEART, "run-id": RUN, "rounds": ROUNDS, "min-sites": 2, "quorum": 1}


@dataclass(frozen=True)
class Ended:
    """A run over which the disk was full, how it ended, and its resumption if it needed one."""

    federation: Federation
    done: Done
    resumed: Done | None

    @property
    def folder(self) -> Path:
        return self.federation.home / "runs" / RUN


def fill(disk: Path) -> None:
    """Leave no room on a disk."""
    with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    home = tmp_path_factory.mktemp("disk") / "disk"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", str(home)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no small disk: mounting a tmpfs is not allowed here")
    sites = tmp_path_factory.mktemp("sites")
    federation = Federation(home, free_ports(len(SITES) + 1))
    (home / "federation").mkdir(mode=0o700)
    (home / "federation" / "sites").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    try:
        for name in SITES:
            write_hospital(sites / name, name, {})
        started = federation.call("up", "--sites", sites)
        assert started.returncode == 0, started.stderr
        running = subprocess.Popen(
            federation.command("run", federation.write(TERMS)), env=federation.environment,
            cwd=sites, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        folder = home / "runs" / RUN
        try:
            wait_for_round(folder, 2)
            wait_for_work(federation.profile(SITES[0]).parent / "ledger" / "ledger.sqlite")
            fill(home)
            time.sleep(SECONDS)
            (home / "ballast").unlink()
            out, err = running.communicate(timeout=900)
        finally:
            running.kill()
        done = subprocess.CompletedProcess[str]([], running.returncode, out, err)
        resumed = None
        if len(rounds_so_far(folder)) < ROUNDS:
            resumed = federation.hdpfl("resume", RUN, "hdpfl", "--app", ROOT)
        yield Ended(federation, done, resumed)
    finally:
        federation.call("down")
        subprocess.run(["umount", "-l", str(home)], check=False)


def test_the_run_has_all_its_rounds(ended: Ended) -> None:
    """By itself, or by ``hdpfl resume``, which the command names; nobody calls ``down``."""
    if ended.resumed is not None:
        assert ended.resumed.returncode == 0, ended.resumed.stdout + ended.resumed.stderr
        assert "hdpfl resume" in ended.done.stdout + ended.done.stderr
    assert [event["round"] for event in rounds_of(ended.folder)] == list(range(1, ROUNDS + 1))
    assert (ended.folder / "model.safetensors").stat().st_size > 0


@pytest.mark.parametrize("site", SITES)
def test_no_site_pays_for_the_coordinators_disk(ended: Ended, site: str) -> None:
    profile = ended.federation.profile(site)
    accepted = {event["round"] for event in rounds_of(ended.folder) if site in event["accepted"]}
    check_books(profile, profile.parent / "ledger" / "ledger.sqlite", RUN, accepted)
