"""Natural federations: which records search and report, what a score is, whose ledgers count."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import LedgerError, TermsError
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.simulation.budgets import draw_batch_sizes, draw_epsilons
from server_app.simulation.comparison import RunJob
from strategies import make_strategy
from studies.framework.kept_runs import finished_run
from studies.framework.study import Options
from studies.natural import study
from studies.natural.federation import Split, inner_split, write_split
from studies.natural.recount import keep_recounted, recount
from studies.natural.scores import Score, constant_score, score_of_sites
from studies.natural.study import FEDAVG, LEADERBOARD, POOLED, Place
from studies.natural.tables import Cell, board, regret

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


def test_every_cell_is_a_run_that_a_strategy_takes() -> None:
    names = set()
    places = LEADERBOARD.places(Options(full=True))
    for place in places:
        job = LEADERBOARD.job(place, 0.1, 11, a_split(20, 3), Options(), Path("x"),
                          {"dataset": place.federation})  # fmt: skip
        make_strategy(job.config)
        drawn = job.config.simulation
        assert len(draw_epsilons(drawn.epsilons, job.num_sites, 11)) == job.num_sites
        expected = [6] if place.rule == POOLED else [5, 1]
        assert draw_batch_sizes(drawn.batch_sizes, job.num_sites, 11).tolist() == expected
        names.add(job.terms.run_id)
    assert len(names) == len(places) == 5 * (4 * 6 + 3)  # pooled has no ε of each site's own


def test_columns_are_federations_or_one_of_their_budgets() -> None:
    def columns(*asked: str, full: bool = False) -> set[str]:
        options = Options(full=full, columns=asked, strategies=(FEDAVG,))
        return {place.column for place in LEADERBOARD.places(options)}

    assert columns("opt") == {"opt ε 1", "opt ε 0.3 to 8"}
    assert columns("opt ε 3") == {"opt ε 3"}
    assert len(columns("opt", full=True)) == 4
    assert len(columns()) == 5 * 2
    with pytest.raises(TermsError, match="--columns: 'optic' is not in this study"):
        columns("optic")
    with pytest.raises(TermsError, match="leave them out"):
        LEADERBOARD.places(Options(model="cnn"))


def test_a_score_counts_a_site_by_its_test_records(tmp_path: Path) -> None:
    sites = {"0": {"loss": 1.0, "accuracy": 0.5}, "1": {"loss": 0.0, "accuracy": 1.0}}
    (tmp_path / "sites.json").write_text(json.dumps({"site-": sites}))
    facts = {"measures": {"measures": {"auroc": {"value": 0.75}}}}
    (tmp_path / "result.json").write_text(json.dumps(facts))
    found = score_of_sites(tmp_path, a_split(3, 1), one_model=True)
    assert found == Score(0.75, 0.625, 0.75, 1.0)
    assert math.isnan(score_of_sites(tmp_path, a_split(3, 1), one_model=False).auroc)


def test_the_constant_predictor_has_the_shares_of_the_training_records() -> None:
    split = a_split(6, 3)  # 3 of 9 are of class 1
    found = constant_score(split)
    assert found.loss == pytest.approx(-(math.log(1 / 3) / 3 + 2 * math.log(2 / 3) / 3))
    assert (found.accuracy, found.auroc) == (pytest.approx(2 / 3), 0.5)


def test_regret_is_taken_seed_by_seed_in_thousandths() -> None:
    def cell(*losses: float) -> Cell:
        return Cell(0.1, tuple(Score(loss, 0.5, 0.5, loss) for loss in losses), ())

    cells = {Place("opt", "1", FEDAVG): cell(0.5, 0.6), Place("opt", "1", "mmse"): cell(0.49, 0.58)}
    gap = regret(cells, FEDAVG)[Place("opt", "1", "mmse")]
    assert (gap.mean, gap.error) == (pytest.approx(-15), pytest.approx(5))
    tables = board(cells, {"opt": Score(0.7, 0.9, 0.5, 0.8)}, FEDAVG)
    assert [row[0] for row in tables[1].rows] == ["mmse", FEDAVG, "constant"]
    assert dict((row[0], row[2]) for row in tables[0].rows)[FEDAVG].startswith("+15 ± 5")


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

    real = plan.calibrate
    monkeypatch.setattr(plan, "calibrate", lambda schedule, epsilon, delta, beside=(): real(
        schedule, 3 * epsilon, delta, beside))  # fmt: skip
    job = a_job(tmp_path)
    with pytest.raises(LedgerError, match=r"run 'one', site 0: .* costs more than it was charged"):
        keep_recounted(job, lambda: None)
    assert finished_run(job) is None


def test_a_run_without_ledgers_is_not_counted(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="has no ledger to recount"):
        recount(tmp_path)


def test_a_small_board_from_search_to_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "BASE", {**study.BASE, "rounds": 2})
    options = Options(
        columns=("heart ε 1",), strategies=("local", FEDAVG, POOLED), learning_rates=(0.1, 1.0),
        seeds=2, data_dir=str(DEMO), processes=1,
    )  # fmt: skip
    found = LEADERBOARD.conduct(options, tmp_path)
    assert {row[0] for row in found.tables[1].rows} == {"local", FEDAVG, POOLED, "constant"}
    for cell in found.numbers["cells"]:
        assert cell["learning-rate"] in (0.1, 1.0)
        assert len(cell["runs"]) == 2
        assert (cell["rule"] == FEDAVG) == bool(cell["better-off-alone"])
    assert (tmp_path / "natural.png").stat().st_size > 1000
