"""A run's report: one page that stands alone, says what the journal says, and runs nothing."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.site_summary import NOT_ASKED
from hdpfl_flower.monitoring.influence import shares_line, warning_lines
from server_app.commands import app
from server_app.reports.clusters import found_clusters
from server_app.reports.influence import site_shares
from server_app.reports.run_page import _results, _when, command_of, make_report
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
    assert set(RunConfig.keys()) <= set(cells)
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


def decided() -> list[dict[str, Any]]:
    """Two rounds of three sites, the first decided by one of them."""
    facts = {"asked": ["a", "b", "c"], "accepted": ["a", "b", "c"], "norms": [4.0, 2.0, 1.0],
             "rejections": {}}  # fmt: skip
    gauges = {"noise_std": [0.1, 0.0, 0.3], "steps": [5.0, 5.0, 7.0], "capped": [1.0, 0.0, 0.0],
              "noise_raised": [1.0, 0.0, 0.0]}  # fmt: skip
    return [
        {"round": 1, "weights": [0.7, 0.2, 0.1], "gauges": gauges, **facts},
        {"round": 2, "weights": [0.4, 0.4, 0.2], "gauges": gauges, **facts},
    ]


def test_what_bounded_a_site_stands_beside_its_share_and_who_decides_is_named() -> None:
    rows = {str(row[0]): row[2:] for row in site_shares(decided())}
    assert rows["a"] == pytest.approx(
        (0.55, 0.4, 2, 0.1, 5.0, 2.0, "capped (2 ×); noise raised to its claim (2 ×)")
    )
    assert rows["b"] == pytest.approx((0.3, 0.4, 2, "", 5.0, 1.0, ""))
    assert list(warning_lines(decided())) == [
        "site a decides 55% of the model, more than 50%",
        "site a decided more than 50% of the step of the model in 1 round",
    ]
    assert shares_line(decided(), named=True) == "shares of the model: a 55%, b 30%, c 15%"
    assert shares_line(decided(), named=False) == "shares of the model: 55%, 30%, 15%"


def test_without_matplotlib_the_page_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    page = Page(make_report(folder))
    assert page.open == []
    assert "img" not in page.tags
    assert "pip install 'hdpfl-flower[plots]'" in "".join(page.text)


def test_the_best_loss_is_the_least_and_no_variance_is_best() -> None:
    names = ("accuracy", "loss", "personal-loss", "accuracy-private-variance")
    facts = {"asked": [], "accepted": [], "rejections": {}, "gauges": {}}
    rounds = [
        {"round": number, "metrics": dict.fromkeys(names, value), **facts}
        for number, value in ((1, 0.5), (2, 0.25), (3, 0.75))
    ]
    best = {str(row[0]): row[2] for row in _results(rounds)}
    assert best["accuracy"] == "0.7500 (round 3)"
    assert best["loss"] == best["loss, personal models"] == "0.2500 (round 2)"
    assert best["accuracy private, variance over the sites"] == ""


@pytest.mark.usefixtures("guessed_noise")
def test_clusters_are_told_where_there_are_some(folder: Path, tmp_path: Path) -> None:
    from server_app.in_process.in_process_run import run_in_process

    terms = RunConfig.parse({
        "strategy": "r-dpcfl", "groups": "rotation:2:2", "partition": "iid", "r-dpcfl.clusters": 2,
        "rounds": 10, "epsilons": "8", "runs-dir": str(tmp_path), "run-id": "r",
        "evaluation": "none",
    })  # fmt: skip
    run_in_process(terms, 4)
    text = make_report(tmp_path / "r")
    events = [json.loads(line) for line in (tmp_path / "r/journal.jsonl").read_text().splitlines()]
    rounds = [event for event in events if event["event"] == "round"]
    first = rounds[0]["gauges"]
    cells = {row[0]: row[1:] for table in Page(text).tables for row in table if len(row) == 2}
    assert cells["least separation (MSS)"] == [f"{float(first['clusters_mss']):.4f}"]
    last = f"{float(first['last_soft_round']):.4f}"
    assert cells["last round of models drawn by probability (E_c)"] == [last]
    sites = {row[0]: row[1:] for table in Page(text).tables for row in table if len(row) == 4}
    for i, site in enumerate(rounds[0]["accepted"]):
        clusters, confidence, chose = sites[site]
        assert clusters.split(" → ")[0] == f"{first['cluster'][i]:.0f}"
        assert confidence == f"{first['cluster_confidence'][i]:.3f}"
        at = [e["accepted"].index(site) for e in rounds]
        told = [e["gauges"].get("chose", [0] * 4)[i] for e, i in zip(rounds, at, strict=True)]
        chosen = [str(e["round"]) for e, yes in zip(rounds, told, strict=True) if yes]
        assert chose == ", ".join(chosen)
        assert chosen
    assert "Clusters" not in make_report(folder)


def test_the_last_look_for_clusters_is_the_one_that_counts() -> None:
    """Late clusters look again and again; R-DPCFL once; IFCA never."""
    looks = [
        {"cluster": [0.0]},
        {"cluster": [0.0], "clusters_mss": 1.0},
        {"cluster": [1.0], "clusters_mss": 5.0, "clusters": 2.0},
        {"cluster": [1.0]},
    ]
    rounds = [{"round": i, "gauges": gauges} for i, gauges in enumerate(looks, 1)]
    assert dict(found_clusters(rounds)) == {"clusters (M)": 2.0, "least separation (MSS)": 5.0}
    assert dict(found_clusters([{"gauges": {"cluster": [0.0], "clusters": 3.0}}])) == {
        "clusters (M)": 3.0
    }


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


def test_the_command_line_writes_it(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert out.read_text().startswith("<!doctype html>")


def test_a_run_without_a_round_has_no_report(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"event": "run-started", "format": 1, "terms": {}}\n')
    with pytest.raises(DataError, match="no round"):
        make_report(tmp_path)


def test_chromium_shows_it(folder: Path, tmp_path: Path) -> None:
    """The picture is drawn, and the evil name is text."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    page = tmp_path / "report.html"
    page.write_text(make_report(folder))
    common = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
              f"--user-data-dir={tmp_path / 'profile'}"]  # fmt: skip
    dump = subprocess.run(
        [*common, "--dump-dom", page.as_uri()], capture_output=True, text=True, check=True,
        timeout=120,
    )  # fmt: skip
    assert "<title>Run r</title>" in dump.stdout
    assert "&lt;script&gt;document.title" in dump.stdout
    shot = tmp_path / "shot.png"
    subprocess.run(
        [*common, f"--screenshot={shot}", "--window-size=1000,1400", page.as_uri()],
        capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    from matplotlib.image import imread

    pixels = imread(shot)
    assert pixels.shape[:2] == (1400, 1000)
    assert pixels[:, :, :3].std() > 0.05, "an empty page"


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        (
            "2026-03-01T10:00:00+00:00",
            "2026-03-01T10:04:05+00:00",
            "1 Mar 2026, 10:00 to 10:04 UTC (4 min 5 s)",
        ),
        (
            "2026-03-01T23:00:00+00:00",
            "2026-03-02T01:30:59+00:00",
            "1 Mar 2026, 23:00 to 2 Mar 2026, 01:30 UTC (2 h 30 min)",
        ),
        (
            "2026-03-01T12:00:00+02:00",
            "2026-03-01T10:00:00.2+00:00",
            "1 Mar 2026, 10:00 to 10:00 UTC (0 s)",
        ),
        ("yesterday", "", "when is not known"),
    ],
)
def test_times_are_those_of_a_clock(first: str, last: str, words: str) -> None:
    assert _when([{"at": first}, {"at": last}]) == words


def test_a_run_that_nobody_measured_says_so_and_the_two_ways_out(
    folder: Path, tmp_path: Path
) -> None:
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    schema = "[label]\ncolumn = 'y'\nclasses = [['0'], ['1']]\n"
    for event in events:
        if "terms" in event:
            event["terms"] |= {"dataset": "site", "schema": schema}
        if event["event"] == "round":
            event["metrics"] = {}
            event.pop("tested", None)
    kept = [event for event in events if event["event"] != "measures"]
    (tmp_path / "journal.jsonl").write_text("\n".join(map(json.dumps, kept)))
    page = Page(make_report(tmp_path))
    said = "".join(page.text)
    assert NOT_ASKED in said
    assert said.index("No measures") < said.index("Figures")
    for remedy in ("'after' = 'scores'", "'evaluation' = 'sites'", "'exact-answers'"):
        assert remedy in said
    assert "\\n" not in said, "a schema is lines, in the table and in the command"
    cells = {row[0]: row[1] for table in page.tables for row in table if len(row) == 2}
    assert cells["schema"] == schema.strip()
    command = said.partition("cat > run.toml <<'END'\n")[2].partition("\nEND\n")[0]
    assert tomllib.loads(command)["schema"] == schema
    assert NOT_ASKED not in "".join(Page(make_report(folder)).text)


def test_no_internal_name_of_a_metric_is_shown(folder: Path, tmp_path: Path) -> None:
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    names = ("accuracy", "site-accuracy", "site-accuracy-worst", "personal-loss",
             "personal-accuracy-worst", "site-loss-variance")  # fmt: skip
    for event in events:
        if event["event"] == "round":
            event["metrics"] = dict.fromkeys(names, 0.5)
    (tmp_path / "journal.jsonl").write_text("\n".join(map(json.dumps, events)))
    (table,) = [t for t in Page(make_report(tmp_path)).tables if t[0][1:2] == ["last round"]]
    shown = [row[0] for row in table]
    assert len({*shown}) == len(shown)
    assert not [name for name in shown if "-" in name]


@pytest.mark.parametrize("value", ["a\nEND\nb", "a\n'''b", "a\n''", "tab\t\n", "plain\n", "\r\n"])
def test_any_text_of_several_lines_is_itself_again(value: str) -> None:
    told = command_of(RunConfig.parse({}).as_config() | {"schema": value}, [], [])
    text, _, command = told.partition("\n")[2].rpartition("\nEND\n")
    assert tomllib.loads(text)["schema"] == value
    assert "END" not in text.splitlines()
    assert command.startswith("flwr run")


def test_a_page_that_is_there_stays_without_force(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    words = ["report", str(folder), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, DataError) and "--force" in str(done.exception)
    assert out.read_text() == "mine"
    assert CliRunner().invoke(app, [*words, "--force"]).exit_code == 0
    assert out.read_text().startswith("<!doctype html>")
