"""Which rule to take: the battery's runs, who chooses the rates, and what counts as behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from hdpfl_tools.simulation.in_process.comparison import RunJob
from hdpfl_tools.simulation.scenarios.budgets import draw_batch_sizes, draw_epsilons
from strategies import make_strategy
from studies.framework.study import Options
from studies.which_rule import study
from studies.which_rule.battery import FEDAVG, QUICK, RULES, SAFE, TASKS
from studies.which_rule.regret import best_other, difference, to_best, to_rule
from studies.which_rule.study import BEST, FIRST_SEED, FIXED, WHICH_RULE

FULL = Options(full=True)
CASE = "logreg iid Dist4 12"


@pytest.fixture(name="asked")
def fixture_asked(monkeypatch: pytest.MonkeyPatch) -> list[RunJob]:
    """Return the jobs asked for; a search finds the largest rate best, of which reports fall."""
    jobs: list[RunJob] = []

    def run_jobs(some: Sequence[RunJob], *_: Any) -> dict[str, list[Any]]:
        jobs.extend(some)
        found = {}
        for job in some:
            rate, seed = float(job.terms.learning_rate), job.config.simulation.seed
            behind = 0.02 if job.terms.strategy == "robust-hdp" else 0.0
            accuracy = rate if seed < FIRST_SEED else 0.8 + seed / 1000 - behind - rate / 10
            found[job.terms.run_id] = [{"metrics": {"accuracy": accuracy}}]
        return found

    monkeypatch.setattr(study, "run_jobs", run_jobs)
    return jobs


# --- the battery -----------------------------------------------------------------------------


def test_every_cell_is_a_run_that_a_strategy_takes() -> None:
    names = set()
    for place in WHICH_RULE.places(FULL):
        job = WHICH_RULE.job(place, 0.1, FIRST_SEED, FULL, Path("x"))
        make_strategy(job.config)
        drawn = job.config.simulation
        assert len(draw_epsilons(drawn.epsilons, job.num_sites, drawn.seed)) == job.num_sites
        draw_batch_sizes(drawn.batch_sizes, job.num_sites, drawn.seed)
        names.add(job.terms.run_id)
    assert len(names) == len(WHICH_RULE.cases) * len(RULES)


def test_the_battery_holds_what_is_asked_for() -> None:
    labels = [case.label for case in WHICH_RULE.cases]
    assert len(set(labels)) == len(labels) == 6 + 48 + 22 + 75 + 30
    assert set(QUICK) <= set(labels)
    assert {SAFE, FEDAVG} <= set(RULES)
    assert not [label for label in labels if "," in label]  # --columns has commas between


def test_odd_clients_count_by_the_records_of_the_others() -> None:
    case = WHICH_RULE.case(("odd labels 30 % 6 ε 1 12", FEDAVG))
    odd = WHICH_RULE.job((case.label, FEDAVG), "auto", FIRST_SEED, FULL, Path("x")).config
    assert odd.simulation.groups == "label-noise-30:14:6"
    drawn = draw_epsilons(odd.simulation.epsilons, 20, FIRST_SEED)
    assert drawn.tolist() == 14 * [0.3] + 6 * [1.0]
    few = ("sampled odd labels 30 % 6 ε 1 12", FEDAVG)
    assert WHICH_RULE.job(few, "auto", FIRST_SEED, FULL, Path("x")).config.as_config() == {
        **odd.as_config(),
        "fraction": 0.4,
        "run-id": ANY,
    }
    metrics = {"accuracy": 0.5, "accuracy-group-0": 0.8, "accuracy-group-1": 0.1}
    assert study.result_of([{"metrics": metrics}], case.metric) == 80
    assert study.result_of([{"metrics": metrics}]) == 50


# --- what is run -----------------------------------------------------------------------------


def test_the_search_has_separate_seeds(asked: list[RunJob], tmp_path: Path) -> None:
    long = "logreg iid Dist6 30"  # its rates are not searched for
    columns = (CASE, long, "heart equal ε 12")
    options = Options(full=True, columns=columns, strategies=(FEDAVG, SAFE))
    parts = WHICH_RULE.parts(options, tmp_path)
    assert {case for case, _ in parts[FIXED]} - {case for case, _ in parts[BEST]} == {long}
    seeds = [job.config.simulation.seed for job in asked]
    assert [seeds.count(seed) for seed in (0, 1, 2)] == [2 * 2 * 3, 2 * 3, 2 * 3]
    assert not [seed for seed in seeds if 2 < seed < FIRST_SEED]
    fixed, best = parts[FIXED][CASE, SAFE], parts[BEST][CASE, SAFE]
    assert fixed.rate == TASKS["logreg"].fixed and not fixed.tried
    assert best.rate == max(TASKS["logreg"].grid) and best.at_edge
    assert best.accuracy == pytest.approx([83.1 - 3, 83.2 - 3, 83.3 - 3])
    assert len(parts[FIXED]["heart equal ε 12", SAFE].accuracy) == TASKS["heart"].seeds


def test_the_quick_form_searches_nothing(asked: list[RunJob], tmp_path: Path) -> None:
    found = WHICH_RULE.conduct(Options(), tmp_path)
    of_mnist = [job.config.simulation.seed for job in asked if job.terms.dataset == "mnist"]
    assert set(of_mnist) == {FIRST_SEED, FIRST_SEED + 1}
    assert len(of_mnist) == (len(QUICK) - 1) * len(RULES) * 2
    assert len(asked) == len(of_mnist) + len(RULES) * TASKS["heart"].quick_seeds
    assert [table.title.rpartition("; ")[2] for table in found.tables] == [FIXED, FIXED]
    assert found.tables[0].rows[0][0] == FEDAVG


# --- what counts as behind -------------------------------------------------------------------


def test_differences_are_taken_seed_by_seed() -> None:
    """Seeds differ by tens and the rules by about one: apart they could not be told apart."""
    found = difference([50.0, 70.0, 90.0], [49.0, 69.5, 88.5])
    assert found.mean == pytest.approx(1)
    assert found.error == pytest.approx(0.5 / math.sqrt(3))
    assert found.is_established
    with pytest.raises(ValueError, match="shorter"):
        difference([50.0, 51.0], [50.0])


def test_the_best_other_is_not_the_rule_itself() -> None:
    values = {"a": [90.0, 92.0], "b": [80.0, 82.0], "c": [85.0, 80.0]}
    assert best_other(values, "a") == "c"
    found = to_best(values, "a")
    assert found is not None and found[1].mean == pytest.approx(8.5)
    assert best_other({"a": [1.0]}, "a") is None
    assert to_rule(values, "a", "a") is None and to_rule(values, "a", "x") is None
