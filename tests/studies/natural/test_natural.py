"""Natural federations: which records search and report, what a score is, whose ledgers count."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import LedgerError, TermsError
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.scenarios.budgets import draw_batch_sizes, draw_epsilons
from server_app.in_process.comparison import RunJob
from strategies import make_strategy
from studies.framework.kept_runs import finished_run
from studies.framework.study import Options
from studies.natural import study
from studies.natural.federation import Split, inner_split, write_split
from studies.natural.recount import keep_recounted, recount
from studies.natural.scores import Score, constant_losses, constant_score, score_of_sites
from studies.natural.study import LEADERBOARD, FederationColumn
from studies.natural.tables import (
    FEDAVG,
    POOLED,
    Cell,
    NaturalPlace,
    board,
    cells_of,
    numbers,
    regret,
)

DEMO = Path(__file__).parents[3] / "deploy" / "demo"


def a_split(*sizes: int) -> Split:
    owners = np.repeat(np.arange(len(sizes)), sizes)
    features = np.arange(len(owners), dtype=np.float32)[:, None]
    targets = (np.arange(len(owners)) % 3 == 0).astype(np.int64)
    train, test = Records(features, targets), Records(features - 1000, targets)
    return Split(Task.classification((1,), 2), train, owners, test, owners)


def test_the_search_tests_every_fifth_training_record_of_each_site_and_no_other() -> None:
    outer = a_split(11, 3, 5)
    inner = inner_split(outer)
    tests = inner.test.features[:, 0].astype(int).tolist()
    assert tests == [4, 9, 18]
    assert inner.test_owners.tolist() == [0, 0, 2]
    trains = inner.train.features[:, 0].astype(int).tolist()
    assert sorted(tests + trains) == list(range(19))
    np.testing.assert_array_equal(inner.owners, outer.owners[trains])


def test_a_written_split_is_a_data_set_of_ones_own(tmp_path: Path) -> None:
    from hdpfl_flower.data.own_data.dataset import dataset_of

    split = a_split(6, 4)
    terms = RunConfig.parse(write_split(split, tmp_path / "s.npz")).terms
    data = dataset_of(terms, "")
    assert data.task == split.task
    np.testing.assert_array_equal(data.owners, split.owners)
    assert data.test is not None
    np.testing.assert_array_equal(data.test.features, split.test.features)


@pytest.mark.parametrize("task", [Task.survival((1,), 3), Task.regression((1,))])
def test_a_split_of_another_task_is_one_as_well(tmp_path: Path, task: Task) -> None:
    from hdpfl_flower.data.own_data.dataset import dataset_of

    one = a_split(6, 4)
    targets = np.arange(10) % 6 if task.intervals else np.linspace(0, 1, 10).astype(np.float32)
    records = Records(one.train.features, targets)
    split = Split(task, records, one.owners, records, one.owners)
    data = dataset_of(RunConfig.parse(write_split(split, tmp_path / "s.npz")).terms, "")
    assert data.task == task
    np.testing.assert_array_equal(data.train.targets, targets)


def test_every_cell_is_a_run_that_a_strategy_takes() -> None:
    names = set()
    places = LEADERBOARD.places(Options(full=True))
    for place in places:
        split = a_split(20, 3)
        column = FederationColumn(LEADERBOARD, [place], split, Options(), Path("x"))
        job = column.job(place, 0.1, 11, split, {"dataset": place.federation})
        make_strategy(job.config)
        drawn = job.config.simulation
        assert len(draw_epsilons(drawn.epsilons, job.num_sites, 11)) == job.num_sites
        expected = [6] if place.rule == POOLED else [5, 1]
        assert draw_batch_sizes(drawn.batch_sizes, job.num_sites, 11).tolist() == expected
        names.add(job.terms.run_id)
    # pooled has no ε of each site's own, weiavg is FedAvg where all have the same.
    assert len(names) == len(places) == 6 * (4 * 6 + 3 + 1)


def test_columns_are_federations_or_one_of_their_budgets() -> None:
    def columns(*asked: str, full: bool = False) -> set[str]:
        options = Options(full=full, columns=asked, strategies=(FEDAVG,))
        return {place.column for place in LEADERBOARD.places(options)}

    assert columns("opt") == {"opt ε 1", "opt ε 0.3 to 8"}
    assert columns("opt ε 3") == {"opt ε 3"}
    assert len(columns("opt", full=True)) == 4
    assert len(columns()) == 6 * 2
    both = LEADERBOARD.places(Options(columns=("opt ε 3", "heart ε 1"), strategies=(FEDAVG,)))
    assert [place.column for place in both] == ["opt ε 3", "heart ε 1"]  # in the order asked
    with pytest.raises(TermsError, match="--columns: 'optic' is not in this study"):
        columns("optic")


def test_a_score_counts_a_site_by_its_test_records(tmp_path: Path) -> None:
    sites = {"0": {"loss": 1.0, "accuracy": 0.5}, "1": {"loss": 0.0, "accuracy": 1.0}}
    (tmp_path / "sites.json").write_text(json.dumps({"site-": sites}))
    facts = {"measures": {"measures": {"auroc": {"value": 0.75}}}}
    (tmp_path / "result.json").write_text(json.dumps(facts))
    split = a_split(3, 1)
    found = score_of_sites(tmp_path, split)
    assert (found.loss, found.accuracy, found.by_site, found.worst) == (0.75, 0.625, 0.5, 1.0)
    assert (found.ranking, found.sites) == (0.75, 2)
    of_constant = constant_losses(split)
    gains = [of_constant[0] - 1.0, of_constant[1]]
    assert found.gain == pytest.approx((3 * gains[0] + gains[1]) / 4)
    # Two clusters: the error of a ratio, times Student's t of one degree, 12.706.
    apart = np.array([3 * (gains[0] - found.gain), gains[1] - found.gain])
    error = math.sqrt(2 * float(np.sum(apart**2))) / 4
    assert found.gain_reach == pytest.approx(12.706 * error, rel=1e-4)


def test_a_personal_model_has_no_ranking_on_everybodys_records(tmp_path: Path) -> None:
    sites = {"0": {"loss": 1.0, "accuracy": 0.5}, "1": {"loss": 0.0, "accuracy": 1.0}}
    content = {"site-": sites, "personal-": {"0": {"loss": 0.5, "accuracy": 0.5}}}
    (tmp_path / "sites.json").write_text(json.dumps(content))
    facts = {"measures": {"measures": {"auroc": {"value": 0.75}}}}
    (tmp_path / "result.json").write_text(json.dumps(facts))
    found = score_of_sites(tmp_path, a_split(3, 1))
    assert math.isnan(found.ranking)
    assert found.loss == 0.375


def test_the_constant_predictor_has_the_shares_of_the_training_records() -> None:
    split = a_split(6, 3)  # 3 of 9 are of class 1
    found = constant_score(split)
    one = (3 + 1) / (9 + 2)  # a record more of each class
    expected = -(math.log(one) / 3 + 2 * math.log(1 - one) / 3)
    assert found.loss == pytest.approx(expected, rel=1e-6)
    assert (found.accuracy, found.ranking) == (pytest.approx(2 / 3), 0.5)


def test_regret_is_taken_seed_by_seed_in_thousandths() -> None:
    def cell(*losses: float) -> Cell:
        return Cell(0.1, tuple(Score(loss, 0.5, 0.5, sites=4) for loss in losses), (), of_sites=4)

    cells = {
        NaturalPlace("opt", "1", FEDAVG): cell(0.5, 0.6),
        NaturalPlace("opt", "1", "mmse"): cell(0.49, 0.58),
    }
    gap = regret(cells, FEDAVG)[NaturalPlace("opt", "1", "mmse")]
    assert (gap.mean, gap.error) == (pytest.approx(-15), pytest.approx(5))
    constants = {"opt": Score(0.7, 0.9, 0.5)}
    tables = board(cells, constants)
    assert [row[0] for row in tables[1].rows] == ["mmse", FEDAVG, "constant"]
    assert dict((row[0], row[3]) for row in tables[0].rows)[FEDAVG].startswith("+15 ± 5")
    assert "AUROC" in tables[1].head
    assert "concordance" in board(cells, {"opt": Score(0.7)})[1].head
    again = cells_of(json.loads(json.dumps(numbers(cells, constants))))
    assert board(*again) == tables


@pytest.mark.parametrize(
    ("gain", "low", "words"),
    [
        (0.01, 0.45, "Loss below the constant's: none. AUROC above .5: none"),
        (0.03, 0.45, "Loss below the constant's: mmse. AUROC above .5: none"),
        (0.01, 0.51, "Loss below the constant's: none. AUROC above .5: mmse"),
    ],
)
def test_a_negative_control_says_what_it_shows(gain: float, low: float, words: str) -> None:
    score = Score(0.5, ranking=0.6, ranking_low=low, gain=gain, gain_reach=0.02, sites=4)
    cells = {NaturalPlace("opt", "1", "mmse"): Cell(0.1, (score,), (), of_sites=4)}
    assert board(cells, {"opt": Score(0.5)})[1].title == (
        f"opt ε 1: 4 sites; a negative control. {words}"
    )
    heart = {NaturalPlace("heart", "1", "mmse"): Cell(0.1, (score,), (), of_sites=6)}
    assert board(heart, {"heart": Score(0.5)})[1].title == (
        "heart ε 1: 6 sites, of which 4 take part and have records for the test"
    )


# --- a run of hospitals ----------------------------------------------------------------------


def a_job(folder: Path, **more: Any) -> RunJob:
    config = {
        "strategy": FEDAVG, "dataset": "heart", "data-dir": str(DEMO), "partition": "natural",
        "epsilons": "1", "batch-sizes": "40", "rounds": 1, "run-id": "one",
        "runs-dir": str(folder),
    }  # fmt: skip
    return RunJob(RunConfig.parse({**config, **more}), 4)


def test_a_run_whose_ledgers_recount_is_kept(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    assert len(keep_recounted(job, lambda: None)) == 1
    assert finished_run(job) is not None


def test_a_run_that_costs_more_than_it_charged_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise of an ε of 3, charged as 1."""
    from hdpfl_flower.privacy import plan

    real = plan.calibrate_simulated
    monkeypatch.setattr(plan, "calibrate_simulated", lambda schedule, epsilon, delta, beside=():
        real(schedule, 3 * epsilon, delta, beside))  # fmt: skip
    job = a_job(tmp_path)
    with pytest.raises(LedgerError, match=r"run 'one', site 0: .* costs more than it was charged"):
        keep_recounted(job, lambda: None)
    assert finished_run(job) is None


def test_a_run_without_ledgers_is_not_counted(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="has no ledger to recount"):
        recount(tmp_path)


def test_a_small_board_from_search_to_table(
    tmp_path: Path,
) -> None:
    leaderboard = replace(LEADERBOARD, base={**study.BASE, "rounds": 2})
    options = Options(
        columns=("heart ε 1",), strategies=("local", FEDAVG, POOLED), learning_rates=(0.1, 1.0),
        seeds=2, data_dir=str(DEMO), processes=1,
    )  # fmt: skip
    found = leaderboard.conduct(options, tmp_path)
    assert {row[0] for row in found.tables[1].rows} == {"local", FEDAVG, POOLED, "constant"}
    for cell in found.numbers["cells"]:
        assert cell["learning-rate"] in (0.1, 1.0)
        assert len(cell["runs"]) == 2
        assert (cell["rule"] == FEDAVG) == bool(cell["better-off-alone"])
    assert (tmp_path / "natural.png").stat().st_size > 1000


def test_pooled_records_beyond_the_sites_delta_have_a_smaller_one(tmp_path: Path) -> None:
    """A site's policy refuses a δ at which one record could be published whole."""
    split = a_split(6000, 5000)
    terms = {"dataset": "chem97"}
    for rule, delta in ((FEDAVG, 1e-4), (POOLED, study.POOLED_DELTA)):
        place = NaturalPlace("chem97", "1", rule)
        column = FederationColumn(LEADERBOARD, [place], split, Options(), tmp_path)
        assert column.job(place, 0.3, 11, split, terms).terms.delta == delta
    few = a_split(6000, 3000)
    column = FederationColumn(LEADERBOARD, [place], few, Options(), tmp_path)
    assert column.job(place, 0.3, 11, few, terms).terms.delta == 1e-4
