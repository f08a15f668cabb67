"""The study ``guards``: which runs it asks for, what it makes of them, what it draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from server_app.simulation.comparison import RunJob
from studies.framework.study import Options
from studies.guards import lying_sites as liars
from studies.guards.lying_sites import GUARD_COST, Cost, cost


def test_the_guards_run_the_columns_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs themselves are made up: which are asked for is the question."""
    event = {"accepted": ["0", "1"], "weights": [0.5, 0.5], "rejected": {}}
    asked: list[RunConfig] = []

    def made_up(jobs: Sequence[RunJob], _options: Options, _title: str) -> dict[str, list[Any]]:
        asked.extend(one.config for one in jobs)
        return {one.terms.run_id: [event] for one in jobs}

    monkeypatch.setattr(liars, "run_jobs", made_up)
    options = Options(columns=("Dist6", "Dist2 ≤ 2 labels"), strategies=("evidence",))
    tables = GUARD_COST.conduct(options, tmp_path).tables
    assert {(one.simulation.epsilons, one.simulation.partition) for one in asked} == {
        ("dist6-published", "iid"),
        ("dist2-published", "pathological:2"),
    }
    assert [table.head for table in tables] == [("", "Dist6"), ("", "Dist2")]
    assert [table.rows for table in tables] == [(("evidence", "1.000, 0"),)] * 2
    with pytest.raises(TermsError, match="--columns: 'Dist10'"):
        GUARD_COST.conduct(replace(options, columns=("Dist10",)), tmp_path)


def test_the_guards_picture_shows_all_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(liars, "plot_columns", lambda panels, *_: drawn.append(panels))
    costs = {("iid", "Dist1", "cap", seed): Cost(q, 0) for seed, q in ((1, 1.0), (2, 2.0))}
    GUARD_COST.draw(costs, tmp_path / "x.png")
    assert drawn == [{"iid": {"cap": {"Dist1": pytest.approx((1.5, math.sqrt(0.5)))}}}]


def test_what_a_guard_costs() -> None:
    oracle = [{"accepted": ["0", "1", "2"], "weights": [0.5, 0.25, 0.25], "rejected": {}}]
    guarded = [
        {"accepted": ["0", "1", "2"], "weights": [0.5, 0.25, 0.25], "rejected": {}},
        {"accepted": ["0", "2"], "weights": [0.5, 0.5], "rejected": {"1": "guard: evidence"}},
        {"accepted": ["0", "2"], "weights": [0.5, 0.5], "rejected": {"1": "no reply in time"}},
    ]
    found = cost(guarded, oracle)
    assert found.q == pytest.approx(np.mean([1, 1.5, 1.5]))
    assert found.refused == 1
