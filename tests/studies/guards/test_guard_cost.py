"""The study ``guards``: which runs it asks for, and what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from hdpfl_flower.data.datasets import load_dataset, task_for
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.networks import layout_of
from hdpfl_flower.simulation.attacks import SOURCE, TARGET
from server_app.simulation.comparison import RunJob
from studies.framework.study import Options
from studies.guards import by_content, guards
from studies.guards.by_content import FIVE, GRID, LIARS, Result
from studies.guards.cost import CASES, FULL, QUICK, Cost, cost, table_of
from studies.guards.guards import GUARD_STUDY

EVENT = {
    "accepted": ["0", "1"], "weights": [0.5, 0.5], "rejected": {"1": "guard: evidence"},
    "metrics": {"accuracy": 0.8},
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunJob]:
    """Return the runs asked for, as they are; the runs themselves are made up."""
    found: list[RunJob] = []

    def made_up(jobs: Sequence[RunJob], _options: Options, _title: str) -> dict[str, list[Any]]:
        found.extend(jobs)
        return {one.terms.run_id: [EVENT] for one in jobs}

    monkeypatch.setattr(guards, "run_jobs", made_up)
    monkeypatch.setattr(by_content, "recall_of", lambda _job: 0.5)
    monkeypatch.setattr(guards, "plot_columns", lambda *_: None)
    return found


def test_the_cases_asked_for_are_run(tmp_path: Path, asked: list[RunJob]) -> None:
    options = Options(columns=("Dist6", "Dist2 ≤ 2 labels"), strategies=("none", "evidence"))
    (table,) = GUARD_STUDY.conduct(options, tmp_path).tables
    settings = [one.config.simulation for one in asked]
    assert {(one.epsilons, one.partition) for one in settings} == {
        ("dist6-published", "iid"),
        ("dist2-published", "pathological:2"),
    }
    assert table.head == ("", "none", "evidence")
    assert [row[0] for row in table.rows] == ["Dist6", "Dist2 ≤ 2 labels"]
    assert set(table.rows[0][1:]) == {"80.0, 1.00, 1"}
    with pytest.raises(TermsError, match="--columns: 'Dist10'"):
        GUARD_STUDY.conduct(replace(options, columns=("Dist10",)), tmp_path)


def test_a_column_of_attacks_has_its_liars_rounds_and_absent_sites(
    tmp_path: Path, asked: list[RunJob]
) -> None:
    columns = [one.label for one in GRID.columns if one.label.startswith("Dist6")]
    chosen = next(one for one in columns if one.endswith("evidence 5 liars"))
    (table,) = GUARD_STUDY.conduct(Options(columns=(chosen,)), tmp_path).tables
    assert {job.stop_after for job in asked} == {24}
    assert {job.attack.sites for job in asked if job.attack} == {FIVE}
    assert [job.absent for job in asked if job.absent] == [FIVE]
    assert {job.config.server.guard for job in asked} == {"evidence"}
    cells = {
        row: cell for row, cell in table.rows
    }  # site 1 is refused in every run: a liar where somebody lies
    assert cells["nobody lies"] == "80.0, 0/1"
    assert cells["label-flip+quiet"] == "80.0, 1/0"
    assert cells["7-to-1+quiet"] == "80.0 (0.50), 1/0"


@pytest.mark.parametrize("full", [False, True])
def test_no_two_runs_of_the_attacks_share_a_name(full: bool) -> None:
    options = Options(full=full, seeds=2)
    keys = [key for key in GRID.keys(options) if key.row != "nobody lies"]  # whoever might lie
    jobs = [GRID.job(key, options, Path("x")) for key in keys]
    assert len({one.terms.run_id for one in jobs}) == len(jobs)
    assert {*QUICK, *FULL} <= set(CASES)


def test_the_picture_shows_all_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(guards, "plot_columns", lambda panels, *_: drawn.append(panels))
    found = {
        ("sign-flip", "Dist4 mmse cap 5 liars", seed): Result(accuracy, 0.5, 0, 0)
        for seed, accuracy in ((1, 70.0), (2, 72.0))
    }
    costs = {("Heart", "cap", seed): Cost(80.0 + seed, 1.0, 0) for seed in (1, 3)}
    GUARD_STUDY.draw(costs, found, tmp_path / "x.png")
    hostile = {"sign-flip": pytest.approx((71, np.sqrt(2)))}
    free = {"Heart": pytest.approx((82, np.sqrt(2)))}
    assert drawn == [{"nobody lies": {"cap": free}, "Dist4 mmse 5 liars": {"cap": hostile}}]


def test_what_a_guard_costs() -> None:
    last = {"metrics": {"accuracy": 0.25}}
    oracle = [{"accepted": ["0", "1", "2"], "weights": [0.5, 0.25, 0.25], "rejected": {}}]
    guarded = [
        {"accepted": ["0", "1", "2"], "weights": [0.5, 0.25, 0.25], "rejected": {}},
        {"accepted": ["0", "2"], "weights": [0.5, 0.5], "rejected": {"1": "guard: evidence"}},
        {"accepted": ["0", "2"], "weights": [0.5, 0.5], "rejected": {"1": "no reply in time"}}
        | last,
    ]
    found = cost(guarded, oracle)
    assert found.q == pytest.approx(np.mean([1, 1.5, 1.5]))
    assert found.refused == 1
    assert found.accuracy == 25
    table = table_of({("Dist4", "none", 1): Cost(80, 2.0, 0), ("Dist4", "cap", 1): Cost(79, 3, 1)})
    assert table.rows == (("Dist4", "80.0, 1.00, 0", "79.0, 1.50, 1"),)


def test_the_liars_are_sites_of_the_run() -> None:
    assert set(LIARS) < set(FIVE) < set(range(20))


def test_the_recall_is_the_share_of_sevens_that_the_stored_model_finds(tmp_path: Path) -> None:
    """A model that answers 7 to everything finds all of them; one that answers 1, none."""
    key = next(k for k in GRID.keys(Options(dataset="digits")) if k.row == "nobody lies")
    job = GRID.job(key, Options(dataset="digits"), tmp_path)
    layout = layout_of(job.terms.model, task_for(job.terms))
    for answer, recall in ((SOURCE, 1.0), (TARGET, 0.0)):
        arrays = {name: np.zeros_like(array) for name, array in layout.items()}
        bias = next(name for name in arrays if arrays[name].shape == (10,))
        arrays[bias][answer] = 1
        path = tmp_path / "runs" / job.terms.run_id / "model.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(save(arrays))
        assert by_content.recall_of(job) == recall


def test_public_records_of_other_hands_are_a_file_in_the_form_of_the_data_set(
    tmp_path: Path,
) -> None:
    (column,) = [c.label for c in GRID.columns if c.label == "Dist4 mmse content digits"]
    key = next(k for k in GRID.keys(Options(seeds=1, columns=(column,))))
    job = GRID.job(key, Options(), tmp_path)
    by_content.write_digits(tmp_path)
    with np.load(job.config.server.public_records) as file:
        x, y = file["x"], file["y"]
    assert x.shape[1:] == (1, 28, 28)
    assert set(y.tolist()) == set(range(10))
    digits = load_dataset("digits", "").train
    np.testing.assert_allclose(
        x[:, 0, 2:-2:3, 2:-2:3] * 0.3081 + 0.1307, digits.features[:, 0], atol=1e-6
    )
    np.testing.assert_allclose(x[:, 0, 4:-2:3, 4:-2:3], x[:, 0, 2:-2:3, 2:-2:3])
    assert np.all(np.isclose(x[:, :, :2], -0.1307 / 0.3081))
