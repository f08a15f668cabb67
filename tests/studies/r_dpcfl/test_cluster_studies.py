"""The studies of clusters: who is found, what the tables say of it, and whose updates they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import Event, finished_rounds, read_journal
from hdpfl_tools.simulation.in_process.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.results import grid_values
from studies.r_dpcfl.accuracy import unequal_budgets, unequal_first_batches
from studies.r_dpcfl.first_updates import MapResult, cluster_first, clustered, read_found
from studies.r_dpcfl.noise_multipliers import EXPECTED, first_variance

TRUTH = np.repeat(range(4), (3, 6, 6, 6))


def found(assignment: list[int], *, name: str = "mixture", given: bool = True, mss: float = 3.0,
          separated: bool = True) -> MapResult:  # fmt: skip
    return MapResult(name, given, np.array(assignment), TRUTH, mss, separated)


RIGHT = [2] * 3 + [0] * 6 + [3] * 6 + [1] * 6
MINORITY_ALONE = [2] * 3 + [0] * 12 + [1] * 6
ONE_ASTRAY = [2] * 3 + [2] + [0] * 5 + [3] * 6 + [1] * 6


def test_clusters_are_right_whatever_their_numbers() -> None:
    assert found(RIGHT).all
    assert found(RIGHT).minority
    assert not found(MINORITY_ALONE).all
    assert found(MINORITY_ALONE).minority
    assert not found(ONE_ASTRAY).minority  # a client of another group is with them
    assert not found([2, 2, 4, *RIGHT[3:]]).minority  # one of them is elsewhere


def test_unequal_columns_deal_the_menu_out_evenly_and_anew_with_each_seed() -> None:
    budgets = [unequal_budgets(seed)["epsilons"].split(",") for seed in (1, 2)]
    assert [sorted(map(budgets[0].count, set(budgets[0])))] == [[5, 5, 5, 6]]
    assert sorted(budgets[0]) == sorted(budgets[1])
    assert budgets[0] != budgets[1]
    sizes = unequal_first_batches(1)["partition"].split(":")[1:]
    assert (sizes.count("10"), sizes.count("1")) == (11, 10)


@pytest.mark.slow
def test_the_maps_see_what_the_strategy_saw(tmp_path: Path) -> None:
    config = {"groups": "rotation:2:4", "partition": "iid", "rounds": 2, "epsilons": "20",
              "strategy": "r-dpcfl", "runs-dir": str(tmp_path), "clip-norm": 1.0}  # fmt: skip
    job = with_run_name(RunJob(RunConfig.parse(config), 6, stop_after=1))
    assert clustered(job) is None
    events = cluster_first(job, lambda: None)
    assert clustered(job) == events
    own = next(f for f in read_found(job, events) if f.map == "mixture" and not f.given)
    (first,) = finished_rounds(read_journal(tmp_path / job.terms.run_id / "journal.jsonl"))
    assert first["gauges"]["clusters_mss"] == own.mss
    assert first["gauges"]["cluster"] == own.assignment.tolist()
    assert bool(first["gauges"]["clusters_separated"]) == own.separated


def run(**metrics: list[float]) -> list[Event]:
    names = {name.replace("_", "-"): values for name, values in metrics.items()}
    rounds = max(map(len, names.values()))
    return [{"metrics": {n: v[i] for n, v in names.items() if i < len(v)}} for i in range(rounds)]


def test_a_rate_is_chosen_by_the_first_metric_and_personal_models_count_where_tested() -> None:
    good, bad = run(accuracy=[0.8], accuracy_minority=[0.1]), run(
        accuracy=[0.5], accuracy_minority=[0.9])  # fmt: skip
    metrics = {"all": "accuracy", "minority": "accuracy-minority"}
    values = grid_values({("pld", "a", "c"): {0.1: [good], 1.0: [bad]}}, metrics, ())
    assert values["all, pld", "a", "c"].mean == pytest.approx(80)
    assert values["minority, pld", "a", "c"].mean == pytest.approx(10)
    assert values["minority, pld", "a", "c"].rate == 0.1
    last = {"accuracy": 0.2, "personal-accuracy": 0.9, "personal-accuracy-minority": 0.7}
    personal = [*run(accuracy=[0.1]), {"metrics": last}]
    values = grid_values({("pld", "ditto", "c"): {0.1: [personal]}}, metrics, ("ditto",))
    assert values["all, pld", "ditto", "c"].mean == pytest.approx(90)
    assert values["minority, pld", "ditto", "c"].mean == pytest.approx(70)
    untested = grid_values({("pld", "ditto", "c"): {0.1: [good]}}, metrics, ("ditto",))
    assert untested["all, pld", "ditto", "c"].mean == pytest.approx(80)


def test_the_first_updates_variance_is_that_of_the_check_values() -> None:
    for (_, _, first), (multiplier, variance) in EXPECTED.items():
        assert first_variance(multiplier, first) == pytest.approx(variance, rel=0.015)
