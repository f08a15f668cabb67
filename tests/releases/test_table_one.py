"""Table 1: equal to the records without noise, intervals that cover, attacks by differences."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, norm

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.record_moments import Layout, held_back, layout_of, record_sum
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps, calibrate
from hdpfl_flower.releases import asked_kind
from hdpfl_flower.releases.moments import Moments
from hdpfl_tools.coordinator.commands import main
from hdpfl_tools.coordinator.reports.table_one import first_facts, lines_of
from hdpfl_tools.simulation.in_process.profile_grid import ProfileGrid
from hdpfl_tools.tables.table_records import read_table
from server_app.releases import half_of
from server_app.releases.moments import table_of
from server_app.run.rounds import run
from strategies import make_kernel
from tests.client_app.messages import make_site

DEMO = Path(__file__).parents[2] / "deploy" / "demo"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def heart(hospital: str) -> Records:
    return read_table(DEMO / hospital / "data.csv", "csv", Schema.load("heart")).records


def heart_layout() -> Layout:
    schema = Schema.load("heart")
    return layout_of("heart", schema.task, table=True, columns="age", bins="40,50,60")


def noisy(exact: np.ndarray, z: float, draws: np.random.Generator) -> np.ndarray:
    return exact + z * draws.normal(size=exact.shape)


def test_without_noise_it_is_that_of_the_records() -> None:
    layout, tables = heart_layout(), [heart(name) for name in HOSPITALS]
    rows = np.array([record_sum(layout, records) for records in tables])
    facts = table_of(rows, layout)
    n = sum(map(len, tables))
    assert facts["records"]["value"] == pytest.approx(n, abs=1e-3)
    schema = Schema.load("heart")
    features = np.concatenate([records.features for records in tables])
    missing = np.concatenate([records.missing for records in tables])  # type: ignore[list-item]
    by_name = {column["name"]: column for column in facts["columns"]}
    place = 0
    for number, column in enumerate(schema.columns):
        if column.type == "number":
            low, high = column.bounds
            there = features[missing[:, number] == 0, place].astype(np.float64)
            values = (low + high) / 2 + there * (high - low) / 2
            said = by_name[column.name]
            assert said["mean"]["value"] == pytest.approx(values.mean(), rel=1e-4)
            assert said["deviation"]["value"] == pytest.approx(values.std(), rel=1e-3)
            assert said["missing"]["value"] == pytest.approx(missing[:, number].sum(), abs=1e-3)
        else:
            shares = facts["categories"][column.name]["shares"]
            counts = features[:, place : place + len(column.feature_names)].sum(0)
            found = [shares[values[0]]["share"]["value"] for values in column.categories]
            np.testing.assert_allclose(found, counts / n, atol=1e-5)
        place += len(column.feature_names)
    ages = 55 + features[:, 0] * 35
    counts, _ = np.histogram(ages, [20, 40, 50, 60, 90])
    said = [cell["count"]["value"] for cell in facts["bins"]["age"]["counts"] if cell["count"]]
    np.testing.assert_allclose(said, counts, atol=1e-3)
    assert abs(facts["bins"]["age"]["quartiles"][1] - np.median(ages)) < 2


def test_tables_by_label_are_those_of_the_records_of_each_class() -> None:
    schema, kind = Schema.load("heart"), Moments.parse({"content": "table", "by-label": True})
    terms = RunConfig.parse({"dataset": "heart", "first.moments.by-label": True,
                             "first.moments.content": "table"}).terms  # fmt: skip
    assert isinstance(kind, Moments)
    layout, tables = kind.layout(terms, schema.task), [heart(name) for name in HOSPITALS]
    rows = np.array([record_sum(layout, records) for records in tables])
    groups = half_of("moments").read(kind, rows.astype(np.float32), {}, terms)["groups"]
    assert [*groups] == ["all", "class 0", "class 1", "0", "1", "2", "3"]
    plain = table_of(np.array([record_sum(heart_layout(), records) for records in tables]),
                     heart_layout())  # fmt: skip
    assert groups["all"]["columns"][0]["mean"]["value"] == pytest.approx(
        plain["columns"][0]["mean"]["value"], abs=1e-3
    )
    for number in (0, 1):
        of_class = [records.take(np.flatnonzero(records.targets == number)) for records in tables]
        exact = table_of(np.array([record_sum(layout.block, part) for part in of_class]),
                         layout.block)  # fmt: skip
        said = groups[f"class {number}"]
        assert said["records"]["value"] == pytest.approx(sum(map(len, of_class)), abs=1e-2)
        for one, other in zip(said["columns"], exact["columns"], strict=True):
            assert one["mean"]["value"] == pytest.approx(other["mean"]["value"], rel=1e-4)
    with pytest.raises(DataError, match="by-label' is for tasks of classes"):
        layout_of("", Task.regression((3,)), table=True, by_label=True)
    assert list(Moments.parse({"by-label": True}).contradictions(terms))


def test_a_count_of_a_class_that_a_site_holds_back_is_none_of_all_records() -> None:
    kind = Moments.parse({"content": "table", "by-label": True})
    terms = RunConfig.parse({"dataset": "heart"}).terms
    assert isinstance(kind, Moments)
    layout = kind.layout(terms, Schema.load("heart").task)
    draws = np.random.default_rng(8)
    rows = noisy(np.array([record_sum(layout, heart("va"))]), 1.0, draws)
    shown = held_back(layout, rows[0], 40)[None].astype(np.float32)
    groups = half_of("moments").read(kind, shown, {}, terms)["groups"]
    hidden = [
        {name for name, cell in group["categories"]["cp"]["shares"].items() if not cell["count"]}
        for group in (groups["all"], groups["class 0"], groups["class 1"])
    ]
    assert hidden[1] - hidden[2] and hidden[0] >= hidden[1] | hidden[2]


def test_a_site_that_holds_a_class_back_is_none_of_the_others_table() -> None:
    kind = Moments.parse({"content": "table", "by-label": True})
    terms = RunConfig.parse({"dataset": "heart"}).terms
    assert isinstance(kind, Moments)
    layout = kind.layout(terms, Schema.load("heart").task)
    draws = np.random.default_rng(9)
    rows = [noisy(record_sum(layout, heart(name)), 1.0, draws) for name in ("cleveland", "va")]
    shown = np.array([rows[0], held_back(layout, rows[1], 100)]).astype(np.float32)
    assert not shown[1].reshape(2, -1)[0].any() and shown[1].any()  # few healthy at va
    groups = half_of("moments").read(kind, shown, {}, terms)["groups"]
    assert [*groups] == ["all", "class 0", "class 1", "0"]
    of_one = half_of("moments").read(kind, shown[:1], {}, terms)["groups"]
    assert groups["all"] == of_one["all"] and groups["class 0"] == of_one["class 0"]
    assert groups["all"]["records"] and groups["class 1"]["records"] != of_one["class 1"]["records"]


@pytest.mark.slow
def test_the_intervals_cover_in_19_of_20_cases() -> None:
    """Of 600 draws of noise; a true coverage of .95 fails a bound in 1 of 10⁴ cases."""
    layout, tables = heart_layout(), [heart(name) for name in HOSPITALS]
    rows, draws = (
        np.array([record_sum(layout, table) for table in tables]),
        np.random.default_rng(4),
    )
    truth = table_of(rows, layout)

    def values(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
        numbers = {"records": facts["records"], "label": facts["labels"][0]["count"]}
        numbers |= {f"mean {c['name']}": c["mean"] for c in facts["columns"]}
        numbers["share"] = facts["categories"]["sex"]["shares"]["1"]["share"]
        return numbers

    right, covered = values(truth), dict.fromkeys(values(truth), 0)
    for _ in range(600):
        for name, said in values(table_of(noisy(rows, 4.0, draws), layout)).items():
            covered[name] += said["low"] <= right[name]["value"] <= said["high"]
    least, most = binom.ppf([1e-4, 1 - 1e-4], 600, 0.95)
    for name, times in covered.items():
        # Means and shares also hold the draw of the records, which is none here.
        assert least <= times <= (600 if name.startswith(("mean", "share")) else most), name


def test_an_attack_by_differences_gains_nothing_beyond_epsilon() -> None:
    """Two messages with and without a person, all side counts used; 1 false alarm in 10⁶ cases.

    The best test of two Gaussians looks along the difference of the exact sums, which holds the
    count, label, categories, bins and values of that person all at once.
    """
    layout, records, trials = heart_layout(), heart("cleveland"), 20_000
    z = calibrate([Steps(1.0, 1)], 1.0, 1e-5)
    draws = np.random.default_rng(6)
    without = np.arange(1, len(records))
    both = [record_sum(layout, part) for part in (records, records.take(without))]
    line = both[0] - both[1]
    assert np.linalg.norm(line) <= 1
    coordinates = np.flatnonzero(line)
    assert len(coordinates) > 10  # count, label, categories, bins, values

    def advantage(noise: float) -> float:
        scores = [
            (noise * draws.normal(size=(trials, len(coordinates))) + exact[coordinates])
            @ line[coordinates]
            for exact in both
        ]
        threshold = (both[0] + both[1]) @ line / 2
        return float((scores[0] > threshold).mean() - (scores[1] > threshold).mean())

    error = 4.9 * math.sqrt(0.5 / trials)
    bound = (math.e - 1) / (math.e + 1) + 1e-5
    assert advantage(z) < min(bound, 2 * norm.cdf(1 / (2 * z)) - 1 + error)
    assert advantage(z / 8) > bound  # too little noise would be seen
    assert advantage(1e-6) > 0.999  # exact counts, thresholds or not, show the person


def test_the_command_writes_the_table_for_people_and_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f'dataset = "heart"\ndata-dir = "{DEMO}"\npartition = "natural"\nepsilons = "4"\n'
        f'runs-dir = "{tmp_path}"\nrun-id = "first"\n'
    )
    monkeypatch.setattr("sys.argv", ["hdpfl", "statistics", str(config), "--columns", "age",
                                      "--by-label"])  # fmt: skip
    with pytest.raises(SystemExit, match="0"):
        main()
    shown = capsys.readouterr().out
    assert "trestbps" in shown and "95 % interval" in shown
    folder = tmp_path / "first"
    rows = list(csv.reader(io.StringIO((folder / "statistics.csv").read_text())))
    assert {row[0] for row in rows[1:]} == {"all sites", "class 0", "class 1", *"0123"}
    assert "Records of class 1" in shown
    count = next(float(row[3]) for row in rows if row[:2] == ["all sites", "records"])
    assert 680 < count < 790  # of 736
    page = (folder / "statistics.html").read_text()
    assert "<h2>all sites</h2>" in page and "quantile of 50 %" in page and "<script" not in page
    assert not (folder / "model.safetensors").exists()
    monkeypatch.setattr("sys.argv", ["hdpfl", "statistics", str(folder), "--json"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert json.loads(capsys.readouterr().out)["answered"] == ["0", "1", "2", "3"]


def test_sites_with_profiles_answer_it_with_missing_values_and_min_count(tmp_path: Path) -> None:
    """The deployed path: own tables, prepared records, ledgers in files, no seed."""
    profiles = {name: make_site(tmp_path / name, rows=61) for name in "abc"}
    held = make_site(tmp_path / "d", rows=9, more="[policy]\nmin-count = 100000\n")
    for path in profiles.values():
        lines = (path.parent / "records.csv").read_text().splitlines()
        lines[1:21] = [f",{line.split(',', 1)[1]}" for line in lines[1:21]]  # 20 ages are missing
        (path.parent / "records.csv").write_text("\n".join(lines) + "\n")
        path.write_text(path.read_text().replace("1.2345678", "200").replace("2.4691356", "400"))
        from hdpfl_flower.ledger.ledger import Ledger

        ledger = Ledger(path.parent / "ledger.sqlite")
        ledger.raise_cap(400, 1e-5)
        ledger.close()
    from tests.client_app.messages import config_of

    config = config_of(
        rounds=1, **{"first.moments.alone": True, "first.moments.content": "table"},
        **{"runs-dir": str(tmp_path / "runs"), "min-sites": 4, "first.moments.columns": "dose"},
    )  # fmt: skip
    result = run(ProfileGrid({**profiles, "d": held}), config)
    facts = first_facts(result.federated)
    lines = {(line.group, line.column, line.measure): line for line in lines_of(facts)}
    assert facts["answered"] == ["a", "b", "c", "d"]
    assert ("d", "records", "count") not in lines  # held back by its operator
    of_a = lines["a", "age", "missing"].estimate
    assert of_a is not None and abs(of_a["value"] - 20) < 8
    mean = lines["all sites", "age", "mean"].estimate
    assert mean is not None and abs(mean["value"] - 60) < 3  # of 40 to 80; the filled are 50
    assert not result.rounds
    for path in profiles.values():
        account = Ledger(path.parent / "ledger.sqlite").account()
        assert set(account.releases) == {("run-1", 1, "moments")} and "run-1" in account.ended


def test_a_run_without_a_table_says_how_to_ask_for_one() -> None:
    with pytest.raises(DataError, match="no first message"):
        first_facts({})
    with pytest.raises(DataError, match="no table of columns"):
        lines_of({"answered": ["a"], "scales": "0:1"})
    with pytest.raises(DataError, match="no table: no site sent"):
        lines_of({"answered": [], "why": "no site sent its first message"})


def test_negative_counts_and_a_column_that_all_sites_lack_are_shown_as_such() -> None:
    layout = heart_layout()
    rows = record_sum(layout, heart("switzerland"))[None]
    negative = rows.copy()
    negative[:, layout.parts["count"]] = -0.5
    facts = table_of(negative + 1e-3, layout)
    assert facts["records"]["value"] < 0 and facts["why"]
    assert all(column["mean"] is None for column in facts["columns"])
    chol = next(c for c in table_of(rows + 1e-6, layout)["columns"] if c["name"] == "chol")
    assert chol["missing"]["value"] == pytest.approx(123, abs=1) and chol["mean"] is None


def test_the_share_of_a_message_alone_is_nearly_all() -> None:
    alone = make_kernel(RunConfig.parse({"dataset": "heart", "first.moments.alone": True}))
    kind = asked_kind(alone.terms, Moments)
    assert kind is not None and kind.share == 0.95
