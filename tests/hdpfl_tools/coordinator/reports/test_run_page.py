"""A run's report: one page that stands alone, says what the journal says, and runs nothing."""

from __future__ import annotations

import json
import shlex
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.tables_of_terms import TABLES
from hdpfl_flower.errors import DataError
from hdpfl_tools.coordinator.commands import app
from hdpfl_tools.coordinator.reports.run_page import command_of, make_report
from tests.server_app.run.resuming import federation, terms_of

EVIL = "<script>document.title='broken'</script>"
VOID = {"meta", "img", "br", "hr", "link"}


class Page(HTMLParser):
    """What a page holds, and whether its tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.links += [value for key, value in attrs if key in ("src", "href", "action")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.open and {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with a site of an evil name."""
    from server_app.run.rounds import run

    runs = tmp_path_factory.mktemp("runs")
    grid = federation()
    grid.names = {node: EVIL if name == "2" else name for node, name in grid.names.items()}
    grid.sites[EVIL] = grid.sites["2"]
    terms = terms_of(runs, "r", strategy="fedavg")
    terms = terms.updated(evaluation="server", rounds=3, learning_rate=0.1)
    run(grid, terms)
    return runs / "r"


def test_the_page_stands_alone_and_says_what_the_journal_says(folder: Path) -> None:
    text = make_report(folder)
    page = Page(text)
    assert page.open == []
    assert "script" not in page.tags
    assert page.tags.count("img") == 1
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert "http" not in text.replace("http-equiv", "")
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    rounds = [event for event in events if event["event"] == "round"]
    tables = [table for table in page.tables if table[0][1:3] != ["model", "share of the model"]]
    cells = {row[0]: row[1:] for table in tables for row in table if row}
    assert cells["accuracy"][0] == f"{rounds[-1]['metrics']['accuracy']:.4f}"
    for site in rounds[0]["asked"]:
        asked, used, mean, *_ = cells[site]
        assert asked == "3"
        assert used == str(sum(site in event["accepted"] for event in rounds))
        weights = [e["weights"][e["accepted"].index(site)] for e in rounds if site in e["accepted"]]
        assert mean == (f"{sum(weights) / len(weights):.4f}" if weights else "")
    assert cells[EVIL][4] == "declined (1 ×)"
    assert set(RunConfig.keys()) - {*TABLES} | {"spend.kind"} <= set(cells)
    assert json.loads(cells["rounds"][0]) == 3
    assert {"python", "flwr", "torch", "numpy", "hdpfl-flower"} <= set(cells)
    assert "flwr run . --federation-config num-supernodes=8" in "".join(page.text)


def test_the_page_shows_each_sites_share_how_it_came_about_and_who_decides(folder: Path) -> None:
    page = Page(make_report(folder))
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    rounds = [event for event in events if event["event"] == "round"]
    (shares,) = [t for t in page.tables if t[0][1:3] == ["model", "share of the model"]]
    shown = {row[0]: row[1:] for row in shares[1:]}
    assert set(shown) == set(rounds[0]["asked"])
    # FedAvg, whose weights are 1/n of the round's: each round is one, whoever is in it.
    for site, (model, share, _, used, *_) in shown.items():
        present = [e for e in rounds if site in e["accepted"]]
        assert model == ""
        assert share == f"{sum(1 / len(e['accepted']) for e in present) / len(rounds):.4f}"
        assert used == str(len(present))
        # The journal has what the page has.
        assert share == f"{rounds[-1]['shares'][0][site]:.4f}"
    assert shown["7"][-1] == "refused (2 ×)"
    assert not any("Warning" in text for text in page.text)


def test_the_command_gives_the_same_terms(folder: Path) -> None:
    """Read as Flower reads it."""
    from flwr.common.config import parse_config_args

    settings = {"fedhdp.levels": "1,3.6,inf"}
    terms = terms_of(folder, "r", seed=7, strategy="fedhdp", fraction=0.25, **settings)
    terms = terms.updated(require_public=True)
    words = shlex.split(command_of(terms.as_config(), [{"online": 8}], []))
    assert words[:5] == ["flwr", "run", ".", "--federation-config", "num-supernodes=8"]
    config = parse_config_args([words[words.index("--run-config") + 1]])
    again = RunConfig.parse(config).updated(
        run_id=terms.terms.run_id, runs_dir=terms.server.runs_dir
    )
    assert again == terms
    told = command_of(terms.updated(schema_text='[label]\nname = "it\'s"').as_config(), [{}], [])
    head, *lines, end, command = told.splitlines()
    assert (head, end) == ("cat > run.toml <<'END'", "END")
    assert command == "flwr run . --run-config run.toml --stream"
    config = tomllib.loads("\n".join(lines))
    assert config.pop("schema") == '[label]\nname = "it\'s"'
    assert (
        RunConfig.parse(config).updated(run_id=terms.terms.run_id, runs_dir=terms.server.runs_dir)
        == terms
    )
    there = command_of(RunConfig.parse({}).as_config(), [{}], [{"engine": "deployment"}])
    assert there == "flwr run . SUPERLINK --stream"


def test_a_page_that_is_there_stays_without_force(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    words = ["report", str(folder), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, DataError) and "--force" in str(done.exception)
    assert out.read_text() == "mine"
    assert CliRunner().invoke(app, [*words, "--force"]).exit_code == 0
    assert out.read_text().startswith("<!doctype html>")
