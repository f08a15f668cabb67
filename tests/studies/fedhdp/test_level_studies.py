"""Studies of privacy levels: who opts out, what is searched, what the tables say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.errors import DataError
from hdpfl_tools.simulation.datasets import load_dataset
from hdpfl_tools.simulation.scenarios.budgets import draw_epsilons
from hdpfl_tools.simulation.scenarios.partitions import split
from strategies import make_strategy
from studies.fedhdp.level_study import LevelStudy, alike_opt_outs
from studies.fedhdp.level_tables import LevelResult, findings
from studies.fedhdp.table_1 import FEDHDP_MNIST, FEDHDP_PERSONAL, FEDHDP_SKEWED
from studies.framework.results import Value, best_rate
from studies.framework.study import Options

DIGITS = Options(dataset="digits")


def value(mean: float, sd: float = math.nan) -> Value:
    return Value(mean, sd, np.array([[mean / 100]]), {}, 1.0)


def found(mean: float, **levels: tuple[float, float]) -> LevelResult:
    searched = best_rate({1.0: value(mean - 1), 2.0: value(mean - 2)})
    pairs = {tuple(name.split("_", 1)): pair for name, pair in levels.items()}
    return LevelResult(searched, value(mean), [pairs])  # type: ignore[list-item]


# --- what is run -----------------------------------------------------------------------------


@pytest.mark.parametrize("study", [FEDHDP_MNIST, FEDHDP_PERSONAL, FEDHDP_SKEWED])
def test_every_row_has_the_servers_rate_and_schedule(study: LevelStudy) -> None:
    options = replace(DIGITS, full=True)
    for place in study.places(options):
        server = make_strategy(study.job(place, 2.0, 1, options, Path("x")).config).server
        assert server.server_learning_rate == 2.0
        is_constant = place[1].startswith("constant rate")
        assert server.server_schedule == ("constant" if is_constant else "linear")


def test_all_who_opt_out_hold_the_one_class() -> None:
    sites, seed = 47, 3
    chosen = alike_opt_outs("digits", "", "shards:1", sites, seed, 7)
    targets = load_dataset("digits", "").train.targets
    parts = split(targets, None, sites, "shards:1", seed)
    assert len(chosen) == 2  # 5 % of 47
    assert all(np.mean(targets[parts[site]] == 7) > 0.5 for site in chosen)
    assert chosen != alike_opt_outs("digits", "", "shards:1", sites, seed + 1, 7)
    with pytest.raises(DataError, match="no client holds only class 7"):
        alike_opt_outs("digits", "", "iid", sites, seed, 7)


def test_the_skewed_runs_say_who_opts_out() -> None:
    place = FEDHDP_SKEWED.places(DIGITS)[0]
    job = FEDHDP_SKEWED.job(place, 1.0, 2, DIGITS, Path("x"))
    epsilons = draw_epsilons(job.config.simulation.epsilons, job.num_sites, 2)
    opted_out = set(np.flatnonzero(np.isinf(epsilons)).tolist())
    assert opted_out == alike_opt_outs("digits", "", "shards:1", job.num_sites, 2, 7)
    assert set(epsilons[np.isfinite(epsilons)]) == {3.6}


# --- what is read ----------------------------------------------------------------------------


def test_the_variance_is_over_clients_and_the_deviation_over_seeds() -> None:
    levels = [{("private", "global"): (0.8, 0.02)}, {("private", "global"): (0.9, 0.04)}]
    one = LevelResult(value(1), value(1), levels)
    assert one.mean("private", "global") == pytest.approx((85, 10 / math.sqrt(2), 3))
    assert all(map(math.isnan, one.mean("opted out", "global")))


def test_the_table_has_the_papers_columns() -> None:
    rows = {
        ("T", "dp-fedavg"): found(88, private_global=(0.87, 0.01), private_personal=(0.99, 0.0)),
        ("T", "fedhdp r = 0.1"): found(
            90.0, **{"private_global": (0.89, 0.01), "opted out_global": (0.93, 0.02),
                   "private_personal": (0.97, 0.0), "opted out_personal": (0.95, 0.0),
                   "private_constant": (0.6, 0.01)},
        ),
        ("T", "fedhdp auto"): found(89.5),
    }  # fmt: skip
    paper = {"fedhdp r = 0.1": (92.0, 91.0, 94.0, 99.0, math.nan)}
    result = findings(rows, paper, ("said before",))
    main, search = result.tables
    lines = {line[0]: line[1:] for line in main.rows}
    assert lines["fedhdp r = 0.1"] == (
        "90.0 [92]", "89.0 (1.00) [91]", "93.0 (2.00) [94]", "+4.0",
        "97.0 (0.00) [99]", "95.0 (0.00)", "-2.0", "1*",
    )  # fmt: skip
    assert lines["dp-fedavg"][2:4] == ("–", "–")
    assert lines["constant predictor"][4] == "–"  # that of the first row, which has none
    assert search.rows[0] == ("dp-fedavg", "87.0", "86.0")
    notes = " ".join(result.notes)
    assert "'fedhdp r = 0.1', the best by the search, is +2.0 points from 'dp-fedavg'" in notes
    assert "'fedhdp auto' is -0.5 points from 'fedhdp r = 0.1'" in notes
    assert "* The best rate is at the edge" in notes
