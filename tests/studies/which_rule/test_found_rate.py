"""The found rate beside the best of a grid: which rate counts as the best, and by how much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.config.run_config import RunConfig
from studies.which_rule.found_rate import CASES, FOUND_RATE


def test_the_best_fixed_rate_is_chosen_without_auto(tmp_path: Path) -> None:
    scores: dict[float | str, list[float]] = {
        "auto": [90.0, 91.0],
        0.1: [80.0, 82.0],
        3.0: [85.0, 85.0],
    }
    found = FOUND_RATE.findings({("Heart every ε .3", "mmse"): scores}, tmp_path)
    assert found.tables[0].rows == (
        ("Heart every ε .3", "mmse", "2", "3*", "85.0", "90.5", "+5.5 ± 0.5"),
    )
    assert (tmp_path / "found-rate.png").is_file()


@pytest.mark.parametrize(("name", "metric", "ahead"), [
    ("Heart every ε .3", "accuracy", 1), ("School ε 6", "mse", -1),
])  # fmt: skip
def test_more_accuracy_and_less_error_are_better(name: str, metric: str, ahead: int) -> None:
    events: list[list[dict[str, Any]]] = [[{"metrics": {metric: value}}] for value in (0.3, 0.2)]
    more, less = (FOUND_RATE.score(name, one) for one in events)
    assert (more - less) * ahead > 0


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_a_run_config(name: str) -> None:
    case = CASES[name]
    assert RunConfig.parse({**case.config, "learning-rate": "auto"}).terms.rounds in (10, 12, 20)
