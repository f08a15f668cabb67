"""Three of four sites are asked for a run: two operators approve it, one refuses; it ends with two.

The run config lists the three by the keys with which Flower registered their nodes.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import read_journal
from strategies.core.roster import fingerprint_of
from tests.client_app.messages import PROFILE, SCHEMA
from tests.e2e.engines import Federation, free_ports, rounds_of

pytestmark = pytest.mark.engines

SITES = ("ada", "ben", "cleo")
NOT_MEANT = "dora"
TERMS = RunConfig.parse({
    "dataset": "site", "schema": SCHEMA, "rounds": 2, "min-sites": 2, "evaluation": "none",
    "run-id": "inbox", "strategy": "fedavg", "join-timeout": 300.0,
    "purpose": "Which dose is safe", "coordinator": "Dr. Grace, grace@example.org",
})  # fmt: skip
EPSILON = "1.2345678"


def write_site(folder: Path) -> None:
    folder.mkdir(parents=True)
    text = PROFILE.format(disclose="[]", holdout=0.0, more="")
    (folder / "profile.toml").write_text(text.replace('approval = "standing"\n', ""))
    rows = [f"{20 + i % 60},{i % 10},{'yes' if i % 3 else 'no'}" for i in range(61)]
    (folder / "records.csv").write_text("\n".join(["age,dose,sick", *rows]) + "\n")


@pytest.fixture(name="federation")
def federation_of_three(tmp_path: Path) -> Iterator[Federation]:
    for site in (*SITES, NOT_MEANT):
        write_site(tmp_path / "sources" / site)
    (tmp_path / "home").mkdir()
    federation = Federation(tmp_path / "home", free_ports(5))
    try:
        started = federation.call("up", "--pin", "--sites", tmp_path / "sources")
        assert started.returncode == 0, started.stderr
        yield federation
    finally:
        federation.call("down")


def requests_at(federation: Federation, site: str, seconds: float = 300.0) -> str:
    """Return what ``hdpfl-site requests`` shows once a run waits at ``site``."""
    waiting = federation.profile(site).with_name("ledger.sqlite.requests")
    until = time.monotonic() + seconds
    while not waiting.exists() and time.monotonic() < until:
        time.sleep(0.2)
    return federation.hdpfl_site(site, "requests")


def sites_of(federation: Federation) -> str:
    """Return the fingerprints of the sites' keys, as their operators tell them."""
    keys = [(federation.folder / "certs" / "sites" / f"{site}.pub").read_bytes() for site in SITES]
    pems = [load_ssh_public_key(key).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            for key in keys]  # fmt: skip
    return ",".join(map(fingerprint_of, pems))


def test_a_run_ends_with_the_sites_whose_operators_approved(federation: Federation) -> None:
    terms = federation.write({**TERMS.as_config(), "sites": sites_of(federation)})
    with subprocess.Popen(
        federation.command("run", terms), env=federation.environment, cwd=federation.home,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as coordinator:  # fmt: skip
        try:
            refuse = ("requests", "--refuse", "inbox")
            commands = (("approve", "1"), ("approve", "1"), refuse)
            for site, command in zip(SITES, commands, strict=True):
                shown = requests_at(federation, site)
                assert "Which dose is safe" in shown and "ε 1.235" in shown, shown
                federation.hdpfl_site(site, *command, "--yes", "--by", "Dr. Who")
            output, _ = coordinator.communicate(timeout=600)
        finally:
            coordinator.kill()
    assert coordinator.returncode == 0, output
    folder = federation.home / "runs" / "inbox"
    assert [event["accepted"] for event in rounds_of(folder)] == [["ada", "ben"]] * 2
    events = read_journal(folder / "journal.jsonl")
    decisions = [(e["site"], e["status"]) for e in events if e["event"] == "approval"]
    assert sorted(decisions) == [
        ("ada", "approved"), ("ada", "pending"), ("ben", "approved"), ("ben", "pending"),
        ("cleo", "pending"), ("cleo", "refused"),
    ]  # fmt: skip
    for site, decision in zip(SITES, ("approved", "approved", "refused"), strict=True):
        found = json.loads(federation.hdpfl_site(site, "requests", "--json"))
        assert [each["decision"] for each in found["decided"]] == [decision]
        assert "(Dr. Who)" in found["decided"][0]["by"]
        # The price and the reason stay where the operator is.
        assert EPSILON not in federation.log(site) + output
    assert "Dr. Who" not in output
    assert "'sites': 1 online nodes are not listed" in output
    others = json.loads(federation.hdpfl_site(NOT_MEANT, "requests", "--json"))
    assert others == {"pending": [], "decided": []}
    report = federation.hdpfl("report", folder, "--out", "report.html")
    assert report.returncode == 0, report.stderr
    page = (federation.home / "report.html").read_text()
    assert "cleo" in page and "refused" in page
