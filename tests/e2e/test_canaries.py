"""What a site keeps to itself is nowhere else: no file, log, error, argument or environment.

Three production sites over real processes: two that train, and one whose records are not there.
Their private values are rare, and everything that the run leaves behind, or shows while it goes
on, is searched for them.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.plan import Plan
from tests.client_app.messages import SCHEMA
from tests.e2e.canaries import (
    Canaries,
    Canary,
    Sampler,
    double,
    files_below,
    found_in,
    number,
    setting,
    text,
)
from tests.e2e.engines import Done, Federation, free_ports, rounds_of

pytestmark = [pytest.mark.engines, pytest.mark.story]

EPSILONS = {"alpha": 3.217391284, "beta": 0.917462853, "gamma": 1.731642857}
DELTA, BATCH, DECLARED = 7.310937264e-6, 37, 251
RECORDS = "ward-QX7731.csv"
CANARIES: Canaries = {
    **{f"epsilon of {site}": number(epsilon) for site, epsilon in EPSILONS.items()},
    **{f"cap of {site}": number(2 * epsilon) for site, epsilon in EPSILONS.items()},
    "delta": number(DELTA),
    "sampling probability": number(BATCH / DECLARED),
    "batch size": setting("batch-size", BATCH),
    "declared records": setting("declared-records", DECLARED),
    "divisor": setting("divisor", BATCH),
    "a cell": text("PATIENT-123"),
    "a path": text("QX7731"),
}
TERMS = RunConfig.parse({
    "dataset": "site", "schema": SCHEMA, "rounds": 2, "min-sites": 3, "evaluation": "none",
    "run-id": "canaries",
})  # fmt: skip
PROFILE = f"""
approval = "standing"
[budget]
epsilon = {{cap!r}}
delta = 2e-5
[run]
epsilon = {{epsilon!r}}
delta = {DELTA!r}
[training]
batch-size = {BATCH}
declared-records = {DECLARED}
torch-threads = 1
[data]
format = "csv"
path = "{RECORDS}"
[ledger]
path = "ledger.sqlite"
[state]
path = "state"
"""
PARAMETERS = 3
PAYLOAD = re.compile(
    rb"'fortran_order': False, 'shape': \(%d,\), } *\n(.{%d})" % (PARAMETERS, 4 * PARAMETERS),
    re.DOTALL,
)
"""An update as NumPy writes it."""


@dataclass(frozen=True)
class Ended:
    """A federation after its run, stopped."""

    federation: Federation
    run: Done
    folder: Path
    sampler: Sampler

    def own_files(self, site: str) -> list[Path]:
        """Return the files of a site that hold what it keeps to itself, and why that is right.

        Its profile, its records and their imported table; its ledger, which says what was charged,
        and keeps payloads.
        Nothing else: not its logs, its Flower home, its state folder, its node's configuration.
        """
        home = self.federation.folder / "sites" / site
        files = (home / "profile.toml", home / RECORDS, home / "ledger.sqlite")
        imported = sorted((home / "ledger.sqlite.table").glob("*.parquet"))
        return [path for path in (*files, *imported) if path.exists()]


def of_the_plan(ended: Ended, site: str) -> dict[str, Canary]:
    """Return the noise multiplier in a site's ledger, and the noise of one of its updates."""
    with closing(sqlite3.connect(ended.own_files(site)[2])) as ledger:
        (body,) = ledger.execute("SELECT body FROM entries WHERE kind = 'plan'").fetchone()
    plan = Plan.from_json(json.loads(body)["plan"])
    update = plan.update_noise_std(1, TERMS.terms.clip_norm, TERMS.terms.learning_rate)
    assert plan.divisor == BATCH
    return {
        f"noise multiplier of {site}": double(plan.noise_multiplier),
        f"noise of {site}'s updates": number(update),
    }


def write_site(folder: Path, epsilon: float) -> None:
    """Write a profile and its records: PATIENT-123 as a number, a label and a note."""
    folder.mkdir(parents=True)
    (folder / "profile.toml").write_text(PROFILE.format(epsilon=epsilon, cap=2 * epsilon))
    rows = [f"{20 + i % 60},{i % 10},{'yes' if i % 3 else 'no'},fine" for i in range(DECLARED)]
    rows += ["PATIENT-123,1,yes,fine", "30,4,PATIENT-123,fine", "30,4,no,PATIENT-123"]
    (folder / RECORDS).write_text("\n".join(["age,dose,sick,note", *rows]) + "\n")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """Two rounds, watched; temporary files and the user's home lie in the searched folder, too."""
    folder = tmp_path_factory.mktemp("canaries")
    for site, epsilon in EPSILONS.items():
        write_site(folder / "sources" / site, epsilon)
    federation = Federation(folder / "home", free_ports(len(EPSILONS) + 1))
    database = federation.folder / "superlink" / "state.db"
    files = (database, database.with_name("state.db-wal"))
    with (
        pytest.MonkeyPatch.context() as patch,
        Sampler(CANARIES, str(federation.home).encode(), files, PAYLOAD) as sampler,
    ):
        for variable, name in (("TMPDIR", "tmp"), ("HOME", "user")):
            (federation.home / name).mkdir(parents=True)
            patch.setenv(variable, str(federation.home / name))
        try:
            started = federation.call("up", "--pin", "--sites", folder / "sources")
            assert started.returncode == 0, started.stderr
            for copy in (folder / "sources", federation.folder / "sites"):
                (copy / "gamma" / RECORDS).unlink()  # from now on, gamma fails
            run, done = federation.run(TERMS)
        finally:
            federation.call("down")
    yield Ended(federation, done, run, sampler)


def test_the_run_is_one_worth_searching(ended: Ended) -> None:
    """Two sites trained in every round, the third failed in every round, each said so."""
    assert ended.run.returncode == 0, ended.run.stdout + ended.run.stderr
    for event in rounds_of(ended.folder):
        assert event["accepted"] == ["alpha", "beta"]
        assert event["rejected"] == {"gamma": "failed"}
    assert "failed: 'data.path' cannot be read" in ended.federation.log("gamma")


def test_no_file_of_the_federation_holds_a_canary(ended: Ended) -> None:
    spared = [path for site in EPSILONS for path in ended.own_files(site)]
    searched = list(files_below(ended.federation.home, spared))
    canaries = {**CANARIES, **of_the_plan(ended, "alpha"), **of_the_plan(ended, "beta")}
    found = {str(path): found_in(path.read_bytes(), canaries) for path in searched}
    assert {path: names for path, names in found.items() if names} == {}
    names = {path.name for path in searched}
    assert names >= {"state.db", "superlink.log", "alpha.log", "beta.log", "gamma.log",
                     "journal.jsonl", "result.json", "model.safetensors", "run.png"}  # fmt: skip


def test_what_was_said_to_the_user_holds_no_canary(ended: Ended) -> None:
    assert found_in((ended.run.stdout + ended.run.stderr).encode(), CANARIES) == set()


def test_nothing_seen_while_the_run_went_on_holds_a_canary(ended: Ended) -> None:
    """No argument and no environment of a process, and nothing in the SuperLink's database."""
    assert ended.sampler.found == {}
    assert ended.sampler.samples > 100
    assert ended.sampler.commands >= {"flower-superlink", "flower-supernode", "flwr-clientapp",
                                      "flwr-serverapp", "flwr"}  # fmt: skip


def test_every_update_was_seen_in_the_database_that_was_searched(ended: Ended) -> None:
    """The search covers what sites sent: their sealed updates pass by in it, unencrypted."""
    for site in ("alpha", "beta"):
        with closing(sqlite3.connect(ended.own_files(site)[2])) as ledger:
            sealed = [blob for (blob,) in ledger.execute("SELECT blob FROM blobs")]
        assert len(sealed) == 3  # the first message, and two updates
        sealed = [blob for blob in sealed if PAYLOAD.search(blob)]
        assert len(sealed) == 2
        assert {blob[-4 * PARAMETERS :] for blob in sealed} <= ended.sampler.payloads


def test_no_number_of_a_model_is_a_private_one(ended: Ended) -> None:
    private = [*EPSILONS.values(), DELTA, BATCH / DECLARED, BATCH, DECLARED]
    for path in ended.federation.home.rglob("model.safetensors"):
        numbers = np.concatenate([array.ravel() for array in load_file(path).values()])
        assert numbers.size == PARAMETERS
        assert not np.isin(numbers, np.array(private, np.float32)).any()


def test_what_holds_canaries_is_for_its_owner_alone(ended: Ended) -> None:
    """Each spared file does hold one, so the search sees through its format."""
    for site in EPSILONS:
        for path in ended.own_files(site):
            mine = found_in(path.read_bytes(), CANARIES)
            assert mine, path
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            others = {f"epsilon of {other}" for other in EPSILONS if other != site}
            assert not mine & others, path
    assert len(ended.own_files("alpha")) == len(ended.own_files("beta")) == 4


# The search can fail.

PLANTED = [
    *((f"epsilon of {site}", f"{value:.8g}".encode()) for site, value in EPSILONS.items()),
    ("epsilon of alpha", b"spends 3.217391284 of"),
    ("epsilon of alpha", b"{'epsilon': 3.2173912839999998}"),
    ("epsilon of alpha", repr(float(np.float32(3.217391284))).encode()),
    ("epsilon of alpha", f"{3.217391284:e}".encode()),
    ("epsilon of alpha", np.float64(3.217391284).tobytes()),
    ("epsilon of alpha", np.float64(3.217391284).byteswap().tobytes()),
    ("epsilon of alpha", (3.217391284).hex().encode()),
    ("cap of alpha", b"6.434782568"),
    ("delta", b"7.310937264e-06"),
    ("delta", b"0.000007310937264"),
    ("delta", b"7.3109373e-6"),
    ("delta", np.float64(DELTA).tobytes()),
    ("sampling probability", str(BATCH / DECLARED).encode()),
    ("batch size", b"batch-size = 37"),
    ("batch size", b'"batch_size": 37,'),
    ("declared records", b'"declared-records":251}'),
    ("divisor", b'"divisor": 37.0'),
    ("a cell", b"invalid value 'PATIENT-123'"),
    ("a cell", "PATIENT-123".encode("utf-16-le")),
    ("a path", b"/srv/ward-QX7731.csv"),
]


@pytest.mark.parametrize(("name", "planted"), PLANTED)
def test_a_planted_canary_is_found(ended: Ended, tmp_path: Path, name: str, planted: bytes) -> None:
    """In the middle of a copy of the SuperLink's database, at an odd place."""
    content = (ended.federation.folder / "superlink" / "state.db").read_bytes()
    middle = len(content) // 2 | 1
    copy = tmp_path / "state.db"
    copy.write_bytes(content[:middle] + b" " + planted + b" " + content[middle:])
    (path,) = files_below(tmp_path, [])
    assert found_in(path.read_bytes(), CANARIES) == {name}


def test_a_canary_in_an_argument_or_in_the_environment_is_seen(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "input()", "--epsilon", "3.217391284"]
    environment = {**os.environ, "NOTE": "PATIENT-123", "HDPFL_HOME": str(tmp_path)}
    with Sampler(CANARIES, str(tmp_path).encode()) as sampler:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
        try:
            while sampler.samples < 5:
                time.sleep(0.05)
        finally:
            process.communicate(b"\n")
    assert sampler.found[f"arguments of {process.pid}"] == {"epsilon of alpha"}
    assert sampler.found[f"environment of {process.pid}"] == {"a cell"}


def test_a_canary_across_two_blocks_of_a_file_is_seen_when_it_comes(tmp_path: Path) -> None:
    """What a file held before is searched once; what comes, wherever it comes, is searched."""
    file, content = tmp_path / "state.db", bytearray(12_288)
    file.write_bytes(content)
    with Sampler(CANARIES, b"no process", (file,)) as sampler:
        for name, planted, place in (
            ("epsilon of alpha", b" 3.217391284 ", 4_090),
            ("delta", b"7.310937264e-06", 12_287),
        ):
            assert name not in sampler.found.get("state.db", set())
            content[place : place + len(planted)] = planted
            file.write_bytes(content)
            looked = sampler.samples
            while sampler.samples < looked + 7:
                time.sleep(0.05)
            assert name in sampler.found["state.db"]
