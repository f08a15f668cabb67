"""The study ``guards``: which runs it asks for, and what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.networks import layout_of
from hdpfl_flower.scenarios.attacks import SOURCE, TARGET
from server_app.in_process.comparison import RunJob
from studies.framework.study import Options
from studies.guards import by_content, guards
from studies.guards.by_content import GRID, LIARS, Result
from studies.guards.guards import GUARD_STUDY

EVENT = {
    "accepted": ["0", "1"], "weights": [0.5, 0.5], "rejections": {"1": "guard"},
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


def test_a_column_of_attacks_has_its_liars_rounds_and_absent_sites(
    tmp_path: Path, asked: list[RunJob]
) -> None:
    options = Options(columns=("Dist6 mmse content", "Dist6 mmse cap"), strategies=("content",))
    (table,) = GUARD_STUDY.conduct(options, tmp_path).tables
    assert table.head == ("", "Dist6 mmse content")
    assert {job.stop_after for job in asked} == {24}
    assert {job.attack.sites for job in asked if job.attack} == {LIARS}
    assert [job.absent for job in asked if job.absent] == [LIARS]
    assert {job.config.server.guard for job in asked} == {"content"}
    with pytest.raises(TermsError, match="--columns: 'Dist10'"):
        GUARD_STUDY.conduct(replace(options, columns=("Dist10",)), tmp_path)
    cells = {
        row: cell for row, cell in table.rows
    }  # site 1 is refused in every run: a liar where somebody lies
    assert cells["no liars"] == "80.0, 0/1"
    assert cells["label-flip+quiet"] == "80.0, 1/0"
    assert cells["7-to-1+quiet"] == "80.0 (0.50), 1/0"


@pytest.mark.parametrize("full", [False, True])
def test_no_two_runs_of_the_attacks_share_a_name(full: bool) -> None:
    options = Options(full=full, seeds=2)
    keys = [key for key in GRID.keys(options) if key.row != "no liars"]  # any row with liars
    jobs = [GRID.job(key, options, Path("x")) for key in keys]
    assert len({one.terms.run_id for one in jobs}) == len(jobs)


def test_the_picture_shows_all_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(guards, "plot_columns", lambda panels, *_: drawn.append(panels))
    found = {
        ("sign-flip", "Dist4 mmse cap", seed): Result(accuracy, 0.5, 0, 0)
        for seed, accuracy in ((1, 70.0), (2, 72.0))
    }
    GUARD_STUDY.draw(found, tmp_path / "x.png")
    hostile = {"sign-flip": pytest.approx((71, np.sqrt(2)))}
    assert drawn == [{"Dist4 mmse": {"cap": hostile}}]


def test_the_recall_is_the_share_of_sevens_that_the_stored_model_finds(tmp_path: Path) -> None:
    """A model that answers 7 to everything finds all of them; one that answers 1, none."""
    key = next(k for k in GRID.keys(Options(dataset="digits")) if k.row == "no liars")
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
