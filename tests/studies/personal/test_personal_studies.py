"""Studies of personal models: what is tuned, what is read, and which rows the tables compare."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from hdpfl_flower.config.feasibility import check_up_front
from hdpfl_flower.errors import TermsError
from hdpfl_flower.privacy.accounting import Steps, calibrate
from strategies import check_strategy
from studies.framework.study import Options
from studies.personal.dsu import (
    ALONE,
    CLIENT_LEVEL,
    DSU,
    FIVE,
    FROZEN,
    PPSGD,
    RECORD_LEVEL,
    TWO,
    printed,
)
from studies.personal.tuned_study import (
    TUNING_SEED,
    TunedCell,
    TunedStudy,
    best_of,
    own_accuracy,
)

DIGITS = Options(dataset="digits")
FULL = replace(DIGITS, full=True)
STUDIES = (CLIENT_LEVEL, RECORD_LEVEL)


def cell(*means: float, tried: float = math.nan, rate: float = 0.1) -> TunedCell:
    known = {(1.0, 0.1): tried, (1.0, 0.2): tried - 1} if not math.isnan(tried) else {}
    return TunedCell(means, tuple(mean - 10 for mean in means), known, (1.0, rate))


@pytest.mark.parametrize("study", STUDIES)
def test_every_row_is_a_run_of_its_own_that_a_site_can_follow(study: TunedStudy) -> None:
    places = study.places(FULL)
    jobs = [study.job(place, (math.nan, 0.1), 1, FULL, Path("x")) for place in places]
    assert len({job.terms.run_id for job in jobs}) == len(places)
    for job in jobs:
        check_up_front(check_strategy(job.terms.strategy).complete_terms(job.terms))
    assert not [label for place in places for label in place if "," in label]  # --strategies a,b
    assert {column for row in study.rows for column in row.columns} <= {
        column.label for column in study.columns
    }
    assert set(study.quick_columns) <= {column.label for column in study.columns}


@pytest.mark.parametrize("study", STUDIES)
def test_what_is_not_in_the_study_is_named(study: TunedStudy) -> None:
    for options, named in (
        (Options(strategies=("x",)), "--strategies: 'x'"),
        (Options(columns=("x",)), "--columns: 'x'"),
    ):
        with pytest.raises(TermsError, match=named):
            study.places(options)


def test_both_units_have_the_papers_rules_and_both_controls() -> None:
    labels = [[row.label for row in unit.rows] for unit in DSU.units]
    assert labels[0] == labels[1]
    assert {ALONE, FROZEN} <= set(labels[0])
    assert {row for row, _ in printed().rows} >= {ALONE, FROZEN, *labels[0][2:7]}
    noises = {
        job.terms.noise
        for unit in DSU.units
        for job in [unit.job((unit.columns[0].label, FROZEN), (math.nan, 0.1), 1, DIGITS, Path())]
    }
    assert noises == {"server", "records"}


def test_the_frozen_body_of_the_client_level_does_not_move() -> None:
    """Updates and noise of the whole run stay below a tenth of the weights' scale."""
    place = CLIENT_LEVEL.columns[0].label, FROZEN
    job = CLIENT_LEVEL.job(place, (math.nan, 0.1), 1, DIGITS, Path())
    terms = job.terms
    multiplier = calibrate((Steps(1.0, terms.rounds),), 1.0, terms.delta)
    moved = terms.clip_norm * (multiplier * math.sqrt(terms.rounds) / job.num_sites + terms.rounds)
    assert moved < 0.1 / math.sqrt(784)


def test_a_personal_model_counts_where_there_is_one() -> None:
    metrics = {"accuracy": 0.5, "site-accuracy": 0.6, "site-accuracy-worst": 0.4}
    assert own_accuracy([{"metrics": {}}, {"metrics": metrics}]) == pytest.approx((60, 40))
    metrics |= {"personal-accuracy": 0.7, "personal-accuracy-worst": 0.3}
    assert own_accuracy([{"metrics": metrics}]) == pytest.approx((70, 30))
    assert all(map(math.isnan, own_accuracy([{"metrics": {"accuracy": 0.5}}])))


def test_a_run_that_diverged_is_not_chosen() -> None:
    assert best_of({(1.0, 0.1): 50.0, (1.0, 0.5): math.nan}) == (1.0, 0.1)
    assert best_of({(1.0, 0.1): math.nan}) == (1.0, 0.1)


def test_the_tables_name_what_was_chosen() -> None:
    found = RECORD_LEVEL.findings({(FIVE, ALONE): cell(80, 84, tried=70), (TWO, ALONE): cell(5)})
    mean, worst, chosen = found.tables
    assert mean.rows == ((ALONE, "82.0 ± 2.8*", "5.0"),)
    assert worst.rows == ((ALONE, "72.0 ± 2.8", "-5.0"),)
    assert chosen.rows == ((ALONE, "1, 0.1", "1, 0.1"),)
    assert any(note.startswith("* the best") for note in found.notes)
    assert found.numbers["cells"][0]["tuning"] == {"1, 0.1": 70.0, "1, 0.2": 69.0}


@pytest.mark.slow
def test_a_study_tunes_on_one_seed_and_reports_others(tmp_path: Path) -> None:
    options = replace(
        DIGITS, rounds=1, seeds=2, strategies=(PPSGD,), columns=(FIVE,),
        learning_rates=(0.1, 0.2), processes=1,
    )  # fmt: skip
    cells = RECORD_LEVEL.cells(options, tmp_path)
    assert set(cells) == {(FIVE, PPSGD)}
    one = cells[FIVE, PPSGD]
    assert (len(one.means), len(one.tried)) == (2, 2)
    seeds = [path.name.split("-seed")[1].split("-")[0] for path in (tmp_path / "runs").iterdir()]
    assert sorted(seeds) == [str(TUNING_SEED), str(TUNING_SEED), "1", "2"]
