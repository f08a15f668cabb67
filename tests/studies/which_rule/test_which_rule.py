"""Which rule to take: the battery's runs, who chooses the rates, and what counts as behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from scipy import stats

from hdpfl_flower.errors import TermsError
from hdpfl_flower.scenarios.budgets import draw_batch_sizes, draw_epsilons
from server_app.in_process.comparison import RunJob
from strategies import make_strategy
from studies.framework.study import Options
from studies.which_rule import study
from studies.which_rule.battery import FEDAVG, QUICK, RULES, SAFE, TASKS
from studies.which_rule.regret import best_other, difference, established, to_best, to_rule, worst
from studies.which_rule.study import BEST, FIRST_SEED, FIXED, FOUND, WHICH_RULE
from studies.which_rule.tables import CaseCell, accuracies, rates, summary

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
    monkeypatch.setattr(study, "plot_differences", lambda *_: None)
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


def test_one_client_has_ten_times_the_steps() -> None:
    place = ("ten times the steps 12", FEDAVG)
    config = WHICH_RULE.job(place, 0.1, FIRST_SEED, FULL, Path("x")).config
    batches = draw_batch_sizes(config.simulation.batch_sizes, 20, 1)
    assert batches.tolist() == [9] + 19 * [90]


def test_odd_clients_count_by_the_records_of_the_others() -> None:
    case = WHICH_RULE.case(("odd labels 30 % 6 ε 1 12", FEDAVG))
    odd = WHICH_RULE.job((case.label, FEDAVG), "auto", FIRST_SEED, FULL, Path("x")).config
    assert odd.simulation.groups == "label-noise-30:14:6"
    drawn = draw_epsilons(odd.simulation.epsilons, 20, FIRST_SEED)
    assert drawn.tolist() == 14 * [0.3] + 6 * [1.0]
    few = ("sampled odd labels 30 % 6 ε 1 12", FEDAVG)
    assert WHICH_RULE.job(few, "auto", FIRST_SEED, FULL, Path("x")).config.as_config() == {
        **odd.as_config(), "fraction": 0.4, "run-id": ANY,
    }  # fmt: skip
    metrics = {"accuracy": 0.5, "accuracy-group-0": 0.8, "accuracy-group-1": 0.1}
    assert study.result_of([{"metrics": metrics}], case.metric) == 80
    assert study.result_of([{"metrics": metrics}]) == 50


def test_odd_clients_have_a_part_of_their_own(asked: list[RunJob], tmp_path: Path) -> None:
    """The sentence about one rate holds of all other cases."""
    odd = "odd turned 3 ε 8 12"
    options = Options(full=True, columns=(odd, "alone 30"), strategies=(FEDAVG,))
    parts = WHICH_RULE.parts(options, tmp_path)
    assert {part: [case for case, _ in cells] for part, cells in parts.items()} == {
        FIXED: ["alone 30"],
        FOUND: [odd],
    }


def test_another_data_set_takes_mnists_place() -> None:
    def terms(case: str) -> tuple[str, str]:
        options = Options(dataset="digits")
        config = WHICH_RULE.job((case, FEDAVG), 0.1, FIRST_SEED, options, Path("x")).config
        return config.terms.dataset, config.simulation.partition

    assert terms(CASE) == ("digits", "iid")
    assert terms("alone 12") == ("digits", f"alone:0:{1437 // 20 * 9 // 10}")
    assert terms("heart equal ε 12") == ("heart", "natural")


# --- what is run -----------------------------------------------------------------------------


def test_the_search_has_seeds_of_its_own_and_chooses_alone(
    asked: list[RunJob], tmp_path: Path
) -> None:
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


def test_given_rates_take_the_place_of_the_studys() -> None:
    one, several = (Options(full=True, learning_rates=r) for r in ((0.2,), (0.2, 0.4)))
    fixed, grids = WHICH_RULE.rates(one)
    assert (fixed["mlp"], grids) == (0.2, {})
    fixed, grids = WHICH_RULE.rates(several)
    assert (fixed, grids["mlp"]) == ({}, (0.2, 0.4))


def test_a_column_may_be_the_first_words_of_cases() -> None:
    def cases(*columns: str) -> list[str]:
        places = WHICH_RULE.places(Options(columns=columns, strategies=(SAFE,)))
        return [case for case, _ in places]

    assert cases(CASE) == [CASE]
    assert cases("logreg iid Dist4") == [CASE, "logreg iid Dist4 30"]
    assert len(cases("logreg")) == 24 and len(cases("heart", "logreg")) == 30
    assert cases("heart", "logreg")[0].startswith("heart")  # in the order asked, each once
    assert cases("logreg iid Dist4 30", "logreg iid Dist4") == ["logreg iid Dist4 30", CASE]
    with pytest.raises(TermsError, match="--columns: 'logr' is not in this study"):
        cases("logr")

    with pytest.raises(TermsError, match="--strategies: 'pfa'"):
        WHICH_RULE.places(Options(strategies=("pfa",)))


@pytest.mark.parametrize(("seeds", "chance"), [(2, 0.148), (3, 0.092), (20, 0.030)])
def test_what_chance_alone_takes_for_established(seeds: int, chance: float) -> None:
    """The rates that the docstring states: Student's t, and not the normal's .023."""
    assert stats.t.sf(2, seeds - 1) == pytest.approx(chance, abs=6e-4)
    assert stats.norm.sf(2) < 0.8 * chance


# --- what counts as behind -------------------------------------------------------------------


def test_differences_are_taken_seed_by_seed() -> None:
    """Seeds differ by tens and the rules by about one: apart they could not be told apart."""
    found = difference([50.0, 70.0, 90.0], [49.0, 69.5, 88.5])
    assert found.mean == pytest.approx(1)
    assert found.error == pytest.approx(0.5 / math.sqrt(3))
    assert found.is_established
    with pytest.raises(ValueError, match="shorter"):
        difference([50.0, 51.0], [50.0])


def test_one_seed_establishes_nothing() -> None:
    one = difference([90.0], [49.0])
    assert math.isnan(one.error) and not one.is_established


def test_the_best_other_is_not_the_rule_itself() -> None:
    values = {"a": [90.0, 92.0], "b": [80.0, 82.0], "c": [85.0, 80.0]}
    assert best_other(values, "a") == "c"
    found = to_best(values, "a")
    assert found is not None and found[1].mean == pytest.approx(8.5)
    assert best_other({"a": [1.0]}, "a") is None
    assert to_rule(values, "a", "a") is None and to_rule(values, "a", "x") is None


def test_the_worst_case_is_the_least_ahead() -> None:
    ahead, behind = difference([5.0, 6.0], [0.0, 0.0]), difference([-1.0, -1.2], [0.0, 0.0])
    found = {"x": ("b", ahead), "y": ("b", behind), "z": None}
    one = worst(found)
    assert one is not None and (one.case, one.other) == ("y", "b")
    assert worst({"z": None}) is None
    assert (established(found, 1.0), established(found, 1.2)) == (1, 0)


def test_the_tables_show_what_is_behind_and_what_is_not_established() -> None:
    cells = {
        ("x", FEDAVG): CaseCell(0.1, (80.0, 82.0), {}),
        ("x", SAFE): CaseCell(0.1, (79.0, 81.0), {}),
        ("x", "oracle"): CaseCell(0.1, (79.0, 82.0), {}),
        ("y", FEDAVG): CaseCell(0.1, (60.0, 62.0), {0.1: 60.0, 0.3: 50.0}),
        ("y", SAFE): CaseCell(0.1, (60.0, 63.0), {}),
        ("y", "oracle"): CaseCell(0.1, (64.0, 66.0), {}),
    }
    rows = {row[0]: row[1:] for row in summary("a", cells).rows}
    assert rows[SAFE] == ("-1.0 ± 0.0 (x)", "1", "-3.5 ± 0.5 oracle (y)", "1")
    assert rows[FEDAVG][:2] == ("–", "–")
    table = accuracies("a", cells, SAFE)
    assert table.rows[1] == (
        "y", "61.0 ± 1.4", "61.5 ± 2.1", "65.0 ± 1.4", "≈ +0.5 ± 0.5", "-3.5 ± 0.5 (oracle)",
    )  # fmt: skip
    assert rates(cells).rows[1][1] == "0.1*"


def test_a_result_is_the_mean_of_the_last_tenth() -> None:
    rounds = [{"metrics": {"accuracy": 0.0}}] * 27 + [{"metrics": {"accuracy": 0.5}}] * 3
    assert study.result_of(rounds) == 50
    assert study.result_of(rounds[-6:]) == 50  # of six rounds the last one
