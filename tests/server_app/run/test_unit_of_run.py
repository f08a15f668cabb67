"""Everything the server writes of a run names the unit that its sites protected."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest
from flwr.app import RecordDict

from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_tools.coordinator.commands.promises import promises_table, read_promises
from hdpfl_tools.coordinator.reports.run_page import make_report
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.sites import InProcessContext
from server_app.run.resume import JOURNAL
from server_app.run.rounds import run, write_result
from tests.client_app.messages import CLIENT_NOISE, SCHEMA, config_of, make_site

PERSON = "all that lies under one value of column 'patient' at one client"
ONE, ANY = "add or remove one such unit", "change, add or remove any of these records"


class Sites(LocalGrid):
    """Deployed sites, each with a profile of its own, in this process."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(number)
        for index, node in enumerate(self._contexts):
            config = {"profile": str(folder / str(index) / "profile.toml")}
            self._contexts[node] = InProcessContext(1, node, config, RecordDict(), {})


def make_sites(folder: Path, number: int, own: str) -> None:
    for index in range(number):
        profile = make_site(folder / str(index), more=CLIENT_NOISE)
        text = profile.read_text().replace('"records.csv"', f'"records.csv"\nid = "{own}"')
        profile.write_text(text)
        rows = [f"p{i},{20 + i},{i % 10},{'yes' if i % 3 else 'no'}" for i in range(61)]
        table = "\n".join(["patient,age,dose,sick", *rows, ""])
        (folder / str(index) / "records.csv").write_text(table)


@pytest.mark.usefixtures("guessed_noise")
@pytest.mark.parametrize(
    ("own", "noise", "unit", "relation"),
    [
        ("patient", "records", PERSON, ONE),
        ("", "records", "one record of one client", ONE),
        ("patient", "client", "all records of one client", ANY),
    ],
    ids=["id", "record", "client"],
)
def test_the_schema_rules(tmp_path: Path, own: str, noise: str, unit: str, relation: str) -> None:
    make_sites(tmp_path, 2, own)
    schema = f'id = "{own}"\n{SCHEMA}' if own else SCHEMA
    terms = config_of(
        strategy="fedavg", rounds=1, noise=noise, schema=schema, **{"runs-dir": str(tmp_path)}
    )
    grid = Sites(tmp_path, 2)
    try:
        result = run(grid, terms)
    finally:
        grid.close()
    assert result.rounds[-1]["rejected"] == {}
    write_result(result, terms)
    told = json.loads((result.folder / "result.json").read_text())["privacy"]
    (event,) = [e for e in read_journal(result.folder / JOURNAL) if e["event"] == "privacy"]
    page = unescape(make_report(result.folder))
    _, lines = promises_table(terms, 2, read_promises({"fedavg": result.folder}))
    for facts in (told, event, result.privacy):
        assert facts["unit"] == unit
        assert facts["relation"].startswith(relation)
    assert f"<td>{unit}</td>" in page
    assert relation in page
    assert lines[0].startswith(f"protected: {unit}; {relation}")
