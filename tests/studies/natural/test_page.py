"""The page of the natural federations holds what its results.json prints, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.errors import DataError
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Task
from studies.natural.page import STUDIES, TABLES, merged, text_of, write
from studies.natural.school import PUBLISHED, SCHOOL
from studies.natural.scores import Score
from studies.natural.study import LEADERBOARD
from studies.natural.tables import ALONE, FEDAVG, Cell, NaturalPlace, numbers


def content_of(rule: str, loss: float, name: str = "opt") -> dict[str, Any]:
    score = Score(loss, 0.9, by_site=loss, sites=4)
    cells = {NaturalPlace(name, "1", rule): Cell(0.1, (score,), (), of_sites=4)}
    return numbers(cells, {name: Score(0.5, 0.9, 0.5, by_site=0.6, worst=0.7)})


CHECKED_IN = [name for name in STUDIES if (TABLES / f"{name}.json").is_file()]


@pytest.mark.parametrize("name", CHECKED_IN)
def test_the_tables_are_those_of_the_numbers(name: str) -> None:
    content = json.loads((TABLES / f"{name}.json").read_text())
    assert (TABLES / f"{name}.md").read_text() == text_of(name, content)
    assert (TABLES / f"{name}.json").stat().st_size < 200_000
    assert LEADERBOARD.name in CHECKED_IN


def test_a_run_adds_a_rule_and_replaces_its_own_cell(tmp_path: Path) -> None:
    for loss in (0.4, 0.3):
        more = {"study": "natural", **content_of("mine:Rule", loss)}
        (tmp_path / "results.json").write_text(json.dumps(more))
        first = {"study": "natural", **content_of(FEDAVG, 0.35)}
        (tmp_path / "first.json").write_text(json.dumps(first))
        write([tmp_path / "first.json", tmp_path / "results.json"], tmp_path)
        rows = (tmp_path / "natural.md").read_text()
        assert f"| mine:Rule | {loss:.3f} |" in rows
    kept = json.loads((tmp_path / "natural.json").read_text())
    assert [cell["rule"] for cell in kept["cells"]] == [FEDAVG, "mine:Rule"]


def test_columns_follow_the_catalog_and_epsilon_whatever_ran_first() -> None:
    both = merged(merged(content_of(FEDAVG, 1.0), content_of(FEDAVG, 1.0, "heart")),
                  content_of("mmse", 1.0))  # fmt: skip
    for epsilon in ("0.3 to 8", "3", "0.3"):
        more = content_of(FEDAVG, 1.0)
        more["cells"][0]["epsilon"] = epsilon
        both = merged(both, more)
    found = [(cell["federation"], cell["epsilon"], cell["rule"]) for cell in both["cells"]]
    assert found == [
        ("heart", "1", FEDAVG), ("opt", "0.3", FEDAVG), ("opt", "1", FEDAVG), ("opt", "1", "mmse"),
        ("opt", "3", FEDAVG), ("opt", "0.3 to 8", FEDAVG),
    ]  # fmt: skip


def test_who_was_compared_with_replaced_runs_of_local_no_longer_says_so() -> None:
    def rule(name: str, share: float, at: str = "opt") -> dict[str, Any]:
        content = content_of(name, 1.0, at)
        content["cells"][0]["better-off-alone"] = [share]
        return content

    earlier = merged(merged(rule("mmse", 0.25), rule(FEDAVG, 0.5)), rule("mmse", 0.75, "heart"))
    again = merged(content_of(ALONE, 1.0), rule(FEDAVG, 0.1))
    found = merged(earlier, again)["cells"]
    assert {(one["federation"], one["rule"]): one["better-off-alone"] for one in found} == {
        ("opt", "mmse"): [],
        ("opt", FEDAVG): [0.1],
        ("opt", ALONE): [],
        ("heart", "mmse"): [0.75],
    }
    assert earlier["cells"][1]["better-off-alone"] == [0.25]


def test_the_same_runs_of_local_leave_what_was_compared_with_them() -> None:
    column = content_of("mmse", 1.0)
    column["cells"][0]["better-off-alone"] = [0.25]
    both = merged(merged(content_of(ALONE, 1.0), column), content_of(ALONE, 1.0))
    assert [one["better-off-alone"] for one in both["cells"] if one["rule"] == "mmse"] == [[0.25]]
    other = content_of(ALONE, 1.0)
    other["cells"][0]["runs"][0]["loss"] *= 2
    again = merged(both, other)["cells"]
    assert [one["better-off-alone"] for one in again if one["rule"] == "mmse"] == [[]]


def test_what_is_no_result_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for text, words in (
        ("{", "is no JSON"), ("[]", "holds no results"),
        ('{"study": "dsu"}', "is no results.json"),
        ('{"study": "natural", "cells": [{"federation": "opt", "epsilon": "1", "rule": "x"}], '
         '"constant": {}}', "no results.json of this version"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            write([path], tmp_path)
    with pytest.raises(DataError, match="is not there"):
        write([tmp_path / "none.json"], tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["r.json"]


def test_schools_errors_are_twice_the_losses_beside_what_is_published() -> None:
    score = Score(0.0125, by_site=0.013, worst=0.02, sites=139)
    cells = {
        NaturalPlace("school", "6", rule): Cell(0.3, (score,), (), False, 139) for rule in PUBLISHED
    }
    (table,) = SCHOOL.tables(cells, {"school": Score(0.017, by_site=0.017, worst=0.03)})
    row = next(row for row in table.rows if row[0] == ALONE)
    assert row[1:4] == ("0.02500", "0.02600", "0.04000")
    assert row[-1] == "0.02628"
    assert set(PUBLISHED) <= set(SCHOOL.rules)
    assert LEADERBOARD.name != SCHOOL.name


def test_school_starts_at_zero_as_its_paper_does() -> None:
    task = Task.regression((28,))
    model = build_model(SCHOOL.base["model"], task, seed=11)
    assert [(tuple(p.shape), p.abs().sum().item()) for p in model.parameters()] == [
        ((1, 28), 0.0),
        ((1,), 0.0),
    ]
