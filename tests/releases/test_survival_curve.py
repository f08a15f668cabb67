"""A survival curve of first messages: bound, charge, curve and band, counts held back, attacks."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, norm

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.record_moments import Layout, held_back, layout_of, record_sum
from hdpfl_flower.data.survival_cells import MOST_INTERVALS, cells_in, cosines
from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.privacy.accounting import Steps, calibrate
from hdpfl_tools.coordinator.commands import main
from hdpfl_tools.simulation.in_process.in_process_run import resume_in_process, run_in_process
from hdpfl_tools.site.commands.requests import disclosed_by
from server_app.releases.moments import table_of
from server_app.releases.survival_curve import HELD_BACK, HIDDEN
from server_app.run.resume import open_run
from server_app.run.rounds import ready_kernel
from studies.survival.made_up import (
    curve_layout,
    drawn,
    kaplan_meier,
    noise_of,
    sum_of,
    survival_of,
)
from tests.client_app.messages import config_of, terms_of
from tests.client_app.test_survival_site import survival_site
from tests.client_app.training.test_client_level import kinds
from tests.hdpfl_tools.tables.test_survival_table import TEXT
from tests.releases.test_moments import Killed, asked, layout_for, vector_in

CURVE = {"first": {"moments": {"share": 0.35, "content": "curve"}}}
EDGES = tuple(np.linspace(0, 1, 13)[1:].tolist())


def of_targets(targets: np.ndarray) -> Records:
    """Records whose one column is at its bound, and missing: the longest that there are."""
    shape = len(targets), 1
    return Records(np.ones(shape, np.float32), targets.astype(np.int64), np.ones(shape, np.uint8))


def curve_in(facts: dict[str, Any]) -> np.ndarray:
    return np.array([point["value"] for point in facts["curve"]["survival"]])


# --- the bound and the noise ----------------------------------------------------------------------


@pytest.mark.parametrize("intervals", [1, 2, 12, MOST_INTERVALS])
def test_a_record_of_any_cell_has_length_1_and_cells_are_found_again(intervals: int) -> None:
    columns = cosines(intervals)
    np.testing.assert_allclose(np.linalg.norm(columns, axis=0), 1, rtol=1e-12)
    cells = np.random.default_rng(1).integers(0, 50, 2 * intervals)
    np.testing.assert_allclose(cells_in(columns @ cells), cells, atol=1e-6)


@pytest.mark.parametrize("alone", [True, False])
def test_one_record_moves_the_sum_by_at_most_one(alone: bool) -> None:
    task = Task.survival((1,), 3)
    layout = layout_of(TEXT, task, table=not alone, curve=alone)
    assert bool(layout.parts["count"].stop) != alone
    before, lengths = record_sum(layout, of_targets(np.arange(6).repeat(7))), []
    for target in range(6):
        after = record_sum(layout, of_targets(np.append(np.arange(6).repeat(7), target)))
        lengths.append(np.linalg.norm(after - before))
    assert max(lengths) <= 1
    assert min(lengths) > 0.999  # so that a wrong scale would pass it


def test_an_attack_by_differences_gains_nothing_beyond_epsilon() -> None:
    """As of Table 1: the best test looks along the difference of two exact sums."""
    layout, draws, trials = curve_layout(EDGES), np.random.default_rng(6), 20_000
    targets = draws.integers(0, 24, 60)
    both = [record_sum(layout, of_targets(part)) for part in (targets, targets[1:])]
    line, z = both[0] - both[1], calibrate([Steps(1.0, 1)], 1.0, 1e-5)
    assert np.count_nonzero(line) > 10

    def advantage(noise: float) -> float:
        scores = [(noise * draws.normal(size=(trials, len(line))) + sums) @ line for sums in both]
        threshold = (both[0] + both[1]) @ line / 2
        return float((scores[0] > threshold).mean() - (scores[1] > threshold).mean())

    bound = (math.e - 1) / (math.e + 1) + 1e-5
    error = 4.9 * math.sqrt(0.5 / trials)
    assert advantage(z) < min(bound, 2 * norm.cdf(1 / (2 * z)) - 1 + error)
    assert advantage(z / 8) > bound
    assert advantage(1e-6) > 0.999


# --- a site ---------------------------------------------------------------------------------------


def test_a_site_charges_seals_sends_and_replays_it(tmp_path: Path) -> None:
    profile, terms = survival_site(tmp_path), terms_of(schema=TEXT, **CURVE)
    first = vector_in(asked(profile, terms), terms)
    assert len(first) == layout_for(terms).size == 6 + 64
    assert kinds(tmp_path) == {(1, "moments"): "sent"}
    np.testing.assert_array_equal(vector_in(asked(profile, terms), terms), first)
    plan = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    assert plan.cost_of("moments") in plan.beside
    said = " ".join(disclosed_by(Profile.load(profile), terms))
    assert "events and censored records by time" in said and "number column" not in said


def test_a_curve_of_few_records_or_events_is_held_back_as_a_whole(tmp_path: Path) -> None:
    layout = curve_layout(EDGES)
    few = record_sum(layout, of_targets(np.array([1] * 3 + [22] * 90)))  # 3 events of 93
    assert (held_back(layout, few, 3 - 1) == few).all()
    assert not held_back(layout, few, 5).any()
    table = layout_of("", Task.survival((1,), 12), table=True)
    sums = record_sum(table, of_targets(np.array([1] * 3 + [22] * 90)))
    shown = held_back(table, sums, 5)
    assert not shown[table.parts["curve"]].any() and shown[0] == sums[0]
    assert table_of(shown[None] + 0.0, table)["curve"]["why"] == HELD_BACK
    profile = survival_site(tmp_path)
    profile.write_text(profile.read_text() + "[policy]\nmin-count = 100000\n")
    terms = terms_of(schema=TEXT, **CURVE)
    assert not vector_in(asked(profile, terms), terms).any()


@pytest.mark.parametrize(
    ("terms", "fault"),
    [
        ({}, "for survival tasks"),
        ({"schema": TEXT.replace("[6, 12, 24]", f"{[*range(1, 102)]}")}, "of 1 to 100 intervals"),
    ],
)
def test_a_task_without_a_curve_is_refused_before_any_site_is_asked(
    terms: dict[str, Any], fault: str
) -> None:
    with pytest.raises((TermsError, DataError), match=fault):
        ready_kernel(config_of(**terms, **CURVE))


# --- the curve ------------------------------------------------------------------------------------


def messages(law: str, sizes: list[int], draws: np.random.Generator) -> tuple[Layout, Any, Any]:
    layout = curve_layout(EDGES)
    sites = [sum_of(*drawn(law, size, draws), layout) for size in sizes]
    return layout, np.array([site[0] for site in sites]), sum(site[1] for site in sites)


@pytest.mark.parametrize("summed", [False, True])
def test_without_noise_it_is_the_exact_curve(summed: bool) -> None:
    """In a sum, where counts are unknown: to 1e-3. Of counts it is smoothed as far as they vary."""
    layout, rows, cells = messages(
        "Weibull, shape .6", [3000, 3000, 3000], np.random.default_rng(1)
    )
    facts = table_of(rows.sum(0)[None] / 3 if summed else rows, layout, is_summed=summed)
    gap = np.abs(curve_in(facts) - kaplan_meier(cells)).max()
    assert gap < (1e-3 if summed else 0.01)
    curve = facts["curve"]
    assert (curve["events"] is None) == summed == (curve["holds"] == "noise")
    if not summed:
        assert abs(sum(curve["events"]) - cells[1::2].sum()) < 90
    median = curve["quantiles"]["50 %"]
    assert median["low"] < 0.4 * math.log(2) ** (1 / 0.6) < median["high"] or summed


def test_it_is_near_the_exact_one_under_noise_of_epsilon_1_and_knows_what_is_hidden() -> None:
    draws = np.random.default_rng(2)
    layout, rows, cells = messages("Weibull, shape 2.5", [500, 500, 500], draws)
    noisy = rows + noise_of(1.0) * draws.normal(size=rows.shape)
    assert np.abs(curve_in(table_of(noisy, layout)) - kaplan_meier(cells)).max() < 0.05
    hidden = table_of(10 * draws.normal(size=rows.shape) - rows, layout)  # a negative count
    assert hidden["curve"]["why"] == HIDDEN
    assert table_of(0 * rows, layout)["curve"]["why"] == HELD_BACK


def test_times_that_are_not_reached_have_no_end() -> None:
    layout, rows, _ = messages("few events", [2000, 2000], np.random.default_rng(3))
    quantiles = table_of(rows, layout)["curve"]["quantiles"]
    assert quantiles["75 %"] == {"value": None, "low": None, "high": None}


def test_the_bands_width_is_that_of_its_errors_and_no_half_of_it() -> None:
    """Chi-square of errors in units of the band, unequal ε, half-way in time; 1 false in 10⁴."""
    trials, squares = 60, 0.0
    z = np.array([noise_of(epsilon) for epsilon in (0.3, 0.5, 1.0)])
    for seed in range(trials):
        draws, law = np.random.default_rng([seed, 5]), ("log-logistic", "bathtub")[seed % 2]
        layout, rows, _ = messages(law, [200, 150, 100], draws)
        rows += z[:, None] * draws.normal(size=rows.shape)
        point = table_of(rows, layout)["curve"]["survival"][5]
        deviation = (point["high"] - point["low"]) / (2 * 1.959964)
        squares += ((survival_of(law, EDGES)[5] - point["value"]) / deviation) ** 2
    low, high = chi2.ppf([5e-5, 1 - 5e-5], trials)
    assert low < squares < high
    assert not low < 4 * squares < high and not low < squares / 4 < high


# --- a run and the command ------------------------------------------------------------------------


def file_of(folder: Path) -> dict[str, Any]:
    draws = np.random.default_rng(7)
    y = np.stack([draws.integers(0, 6, 900), draws.integers(0, 2, 900)], 1)
    x = draws.normal(size=(900, 2)).astype(np.float32)
    np.savez(folder / "rows.npz", x=x, y=y, owner=np.arange(900) % 3)
    return {
        "dataset": f"file:{folder}/rows.npz", "partition": "natural", "epsilons": "4", "seed": 1,
        "runs-dir": str(folder),
    }  # fmt: skip


def test_the_command_writes_the_curve_for_people_and_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {**file_of(tmp_path), "run-id": "first"}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    (tmp_path / "run.toml").write_text(text)
    command = ["hdpfl", "statistics", str(tmp_path / "run.toml"), "--clients", "3"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match="0"):
        main()
    shown = capsys.readouterr().out
    assert "95 % band" in shown and "5 to 6" in shown and "time at which 50 % had" in shown
    folder = tmp_path / "first"
    rows = list(csv.reader(io.StringIO((folder / "statistics.csv").read_text())))
    assert {row[0] for row in rows[1:]} == {"all sites", "0", "1", "2"}
    at_risk = next(float(row[3]) for row in rows if row[2] == "at risk from 0 to 1")
    assert 650 < at_risk < 790  # of 720
    page = (folder / "statistics.html").read_text()
    assert "data:image/png" in page and "the band holds noise and the sampling" in page
    assert (folder / "survival.png").stat().st_size > 1000
    monkeypatch.setattr("sys.argv", ["hdpfl", "statistics", str(folder), "--json"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert json.loads(capsys.readouterr().out)["groups"]["all"]["curve"]["edges"] == [*range(1, 7)]


def test_a_run_that_resumes_keeps_its_curve_and_asks_no_site_twice(tmp_path: Path) -> None:
    more = {"task.kind": "survival", "task.shape": "2", "task.intervals": 6, "rounds": 1}
    keys = {**file_of(tmp_path), **more, "first.moments.content": "curve", "run-id": "cut"}
    config = RunConfig.parse(keys)

    def kill(event: dict[str, Any]) -> None:
        if event["event"] == "round":
            raise Killed

    with pytest.raises(Killed):
        run_in_process(config, 3, kill, resumable=True)
    resume_in_process(open_run(tmp_path / "cut", config))
    events = read_journal(tmp_path / "cut" / "journal.jsonl")
    (event,) = [event for event in events if event["event"] == "first-message"]
    result = json.loads((tmp_path / "cut" / "result.json").read_text())
    assert result["first-message"]["groups"] == event["groups"] and "scales" not in event


def test_a_table_of_a_survival_task_holds_the_curve_too() -> None:
    """Of a schema, with its columns; the message's sums are in the table's units."""
    layout = layout_of(TEXT, Task.survival((1,), 3), table=True)
    targets = np.random.default_rng(4).integers(0, 6, 4000)
    facts = table_of(record_sum(layout, of_targets(targets))[None], layout)
    exact = kaplan_meier(np.bincount(targets, minlength=6))
    assert np.abs(curve_in(facts) - exact).max() < 0.01
    assert facts["curve"]["edges"] == [6.0, 12.0, 24.0]
    assert facts["records"]["value"] == pytest.approx(4000, abs=0.01)
