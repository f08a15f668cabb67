"""A site's table is replaced in mid-run: it declines in one line, and nothing is charged."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import DataError
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.monitoring.journal import read_journal
from tests.client_app.messages import PROFILE, SCHEMA
from tests.e2e.engines import Federation, free_ports, rounds_of

pytestmark = pytest.mark.engines

REPLACED, *OTHERS = SITES = ("ada", "ben", "cleo")
ROUNDS = 5
TERMS = RunConfig.parse({
    "dataset": "site", "schema": SCHEMA, "rounds": ROUNDS, "min-sites": 2, "evaluation": "none",
    "run-id": "replaced", "strategy": "fedavg", "join-timeout": 300.0,
})  # fmt: skip
LINE = "the table of [data] is not the one that was checked"


def write_site(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "profile.toml").write_text(PROFILE.format(disclose="[]", holdout=0.0, more=""))
    rows = [f"{20 + i % 60},{i % 10},{'yes' if i % 3 else 'no'}" for i in range(61)]
    (folder / "records.csv").write_text("\n".join(["age,dose,sick", *rows]) + "\n")


@pytest.fixture(name="federation")
def federation_of_three(tmp_path: Path) -> Iterator[Federation]:
    for site in SITES:
        write_site(tmp_path / "sources" / site)
    (tmp_path / "home").mkdir()
    federation = Federation(tmp_path / "home", free_ports(5))
    try:
        started = federation.call("up", "--sites", tmp_path / "sources")
        assert started.returncode == 0, started.stderr
        yield federation
    finally:
        federation.call("down")


def wait_for_round(folder: Path, seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if any(event["event"] == "round" for event in read_journal(folder / "journal.jsonl")):
                return
        except DataError:
            pass
        time.sleep(0.05)
    pytest.fail("no round ended")


def releases(federation: Federation, site: str) -> int:
    """Return how many updates the ledger of a site has reserved."""
    with Chain(federation.profile(site).with_name("ledger.sqlite")).transaction() as entries:
        reserved = [entry.body["kind"] for entry in entries if entry.kind == "reserved"]
        return reserved.count("update")


def test_a_replaced_table_declines_until_it_is_imported(federation: Federation) -> None:
    folder = federation.home / "runs" / "replaced"
    table = federation.profile(REPLACED).with_name("records.csv")
    with subprocess.Popen(
        federation.command("run", federation.write(TERMS.as_config())),
        env=federation.environment, cwd=federation.home,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as coordinator:  # fmt: skip
        try:
            wait_for_round(folder)
            content = table.read_text()
            table.write_text(content[: len(content) // 4])
            output, _ = coordinator.communicate(timeout=600)
        finally:
            coordinator.kill()
    assert coordinator.returncode == 0, output
    accepted = [event["accepted"] for event in rounds_of(folder)]
    assert accepted[0] == [*SITES] and accepted[-1] == OTHERS and len(accepted) == ROUNDS
    taken = sum(REPLACED in sites for sites in accepted)
    assert releases(federation, REPLACED) == taken < ROUNDS == releases(federation, OTHERS[0])
    lines = [line for line in federation.log(REPLACED).splitlines() if LINE in line]
    assert lines and all("hdpfl-site data import" in line for line in lines)
    counts = json.dumps([event.get("rejections") for event in rounds_of(folder)])
    assert "declined" in counts and "checked" not in counts + output
    assert "imported" in federation.hdpfl_site(REPLACED, "data", "import")
