"""The table of server steps: who chooses the rates, what is reported, what a cell says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.errors import TermsError
from server_app.simulation.comparison import RunJob
from strategies import make_strategy
from studies.framework.study import Options
from studies.server_step import steps
from studies.server_step.steps import AUTO, SEARCH_SEED, Cell, result_of, text_of
from studies.server_step.table import SERVER_STEPS

FULL = Options(full=True)
TAIL, SKEW = "MLP-32 tail", "Dist2 skew"


def rounds(accuracy: float, **others: float) -> list[Any]:
    """Return the events of 30 rounds, of which the last three alone count."""
    metrics = {"accuracy": accuracy, **others}
    return [{"metrics": {"accuracy": 0.0}}] * 27 + [{"metrics": metrics}] * 3


@pytest.fixture(name="asked")
def fixture_asked(monkeypatch: pytest.MonkeyPatch) -> list[RunJob]:
    """Return the jobs asked for; with the search's seed the second pair of rates is best."""
    jobs: list[RunJob] = []

    def run_jobs(some: Sequence[RunJob], *_: Any) -> dict[str, list[Any]]:
        jobs.extend(some)
        found = {}
        for job in some:
            rate, seed = job.config.server.server_learning_rate, job.config.simulation.seed
            tail = {"broadcast-accuracy": 0.5} if job.config.server.average == "tail" else {}
            searched = 0.9 if rate == 8.0 else 0.1
            accuracy = searched if seed == SEARCH_SEED else 0.8 + seed / 100
            found[job.terms.run_id] = rounds(accuracy, **tail)
        return found

    monkeypatch.setattr(steps, "run_jobs", run_jobs)
    monkeypatch.setattr(steps, "plot_columns", lambda *_: None)
    return jobs


def test_the_search_has_a_seed_of_its_own_and_chooses_alone(
    asked: list[RunJob], tmp_path: Path
) -> None:
    options = Options(full=True, columns=(TAIL, SKEW), strategies=("fedavg × rate", "fedavg auto"))
    found = SERVER_STEPS.conduct(options, tmp_path)
    seeds = [job.config.simulation.seed for job in asked]
    # Two columns: three pairs of one row are searched; nothing is searched for auto.
    assert seeds.count(SEARCH_SEED) == 2 * 3
    assert {seed: seeds.count(seed) for seed in (1, 2, 3)} == {1: 4, 2: 4, 3: 4}
    accuracy, rates = found.tables
    assert accuracy.head == ("", TAIL, SKEW)
    assert accuracy.rows[0] == (
        "fedavg × rate",
        "82.0 ± 1.0 (last: 50.0 ± 0.0)",
        "82.0 ± 1.0",
    )
    assert rates.rows == (
        ("fedavg × rate", "0.1 × 8", "0.1 × 8"),
        ("fedavg auto", "auto × auto", "auto × auto"),
    )


def test_every_cell_is_a_run_that_a_strategy_takes() -> None:
    for place in SERVER_STEPS.places(FULL):
        for rates in SERVER_STEPS.rates(place, FULL):
            make_strategy(SERVER_STEPS.job(place, rates, 1, FULL, Path("x")).config)


def test_a_model_that_is_the_reported_one_is_not_named_twice() -> None:
    assert text_of(Cell(AUTO, {}, (50.0, 52.0), (50.0, 52.0))) == "51.0 ± 1.4"


def test_the_quick_form_searches_nothing() -> None:
    places = SERVER_STEPS.places(Options())
    assert {column for column, _ in places} == {"6 × 40"}
    assert all(len(SERVER_STEPS.rates(place, Options())) == 1 for place in places)


def test_many_local_steps_have_rates_of_their_own() -> None:
    assert (0.1, 1.0) in SERVER_STEPS.rates(("6 × 40", "fedavg"), FULL)
    assert (0.1, 1.0) not in SERVER_STEPS.rates((SKEW, "fedavg"), FULL)


def test_a_result_is_the_mean_of_the_last_tenth() -> None:
    assert result_of(rounds(0.5)) == 50
    assert result_of(rounds(0.5)[-6:]) == 50  # of six rounds the last one
    assert math.isnan(result_of(rounds(0.5), "broadcast-accuracy"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(learning_rates=(0.1,)), "--learning-rate: this study searches"),
        (Options(columns=("Dist1",)), "--columns: 'Dist1'"),
        (Options(strategies=("pfa",)), "--strategies: 'pfa'"),
    ],
    ids=["rates", "column", "row"],
)
def test_what_the_study_has_not_is_refused(options: Options, words: str) -> None:
    with pytest.raises(TermsError, match=words):
        SERVER_STEPS.places(options)
