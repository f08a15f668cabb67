"""Studies: what names a run, what is reused, what is chosen and what is printed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from hdpfl_flower.config.run_config import GROUPS, RunConfig
from hdpfl_tools.simulation.in_process.comparison import OnRound, RunJob
from hdpfl_tools.simulation.in_process.liars import OVERSTATED, Attack
from studies import STUDIES
from studies.framework import kept_runs as kept
from studies.framework.kept_runs import name_of
from studies.framework.results import best_rate, cell_text, value_of
from studies.framework.study import GridStudy, Options, Setting
from studies.pfa.mixgauss import PUBLIC_FROM, with_public
from studies.pfa.traffic import MIB, traffic

SMALL = GridStudy(
    name="small",
    title="a small study",
    source="none",
    minutes=0,
    base={"dataset": "digits", "rounds": 4, "batch-sizes": "64", "min-sites": 1},
    rows=("fedavg", "oracle"),
    columns=(Setting("three", {"epsilons": "1,2,4"}, 3),),
    noises=("robust-hdp", "pld"),
    quick_rates=(0.1, 0.3),
    quick_rounds=2,
    paper={("fedavg", "three"): 12.5},
)

FIELDS = {n: field for group in GROUPS.values() for n, field in group.model_fields.items()}
NOWHERE = {"run_id": "x", "runs_dir": "/x", "data_dir": "/x"}

OTHER: dict[str, Any] = {
    "simulated_epsilon": "1", "members": f"a={'0' * 32}", "spare_rounds": 0.5,
    "sites": f"SHA256:{'A' * 43}",
    "second": {"kind": "kept"},
    "model": "cnn", "dataset": "mnist", "schema_text": "heart", "partition": "iid",
    "groups": "rotation:2:4",
    "public_split": "kmeans", "epsilons": "dist1", "batch_sizes": "8", "strategy": "fedavg",
    "delta": 1e-3, "fraction": 0.5, "choice": {"kind": "gumbel"},
    "work": {"kind": "joint", "mask": "random"},
    "first": {"moments": {"share": 0.1}}, "scales": "0:1",
    "after": {"prior": {"share": 0.1}}, "spend": {"kind": "late"},
    "backbone": {"kind": "own", "width": 3},
    "start": "sha256:" + "0" * 64,
    "class_weights": "2,1",
    "server_learning_rate": 2.0,
    "server_schedule": "sqrt", "coordinator": "Ada", "purpose": "Stroke",
    "task": {"kind": "regression", "shape": "8"},
    "public_records": "public.npz", "notify": "./tell",
}  # fmt: skip


def job(**changes: Any) -> RunJob:
    return RunJob(RunConfig().updated(**changes), 3)


def other(name: str) -> object:
    """Return another value of a term than its default."""
    field = FIELDS[name]
    if name in OTHER:
        return OTHER[name]
    if choices := [c for c in get_args(field.annotation) if isinstance(c, str)]:
        return next(c for c in choices if c != field.default)
    return not field.default if isinstance(field.default, bool) else field.default + 1


# --- names -----------------------------------------------------------------------------------


def test_a_runs_name_changes_with_every_term() -> None:
    plain = name_of(job())
    terms = sorted(set(FIELDS) - set(NOWHERE))
    assert [term for term in terms if name_of(job(**{term: other(term)})) == plain] == []


def test_a_runs_name_changes_with_all_else_that_makes_it() -> None:
    plain = job()
    others = [
        replace(plain, num_sites=4),
        replace(plain, stop_after=1),
        replace(plain, attack=Attack(OVERSTATED, (1,))),
        replace(plain, attack=Attack(OVERSTATED, (2,))),
        replace(plain, config=RunConfig.parse({"robust-hdp.estimator": "rpca"})),
    ]
    names = {name_of(one, {}) for one in (plain, *others)}
    assert len(names | {name_of(plain, {"CUDA_VISIBLE_DEVICES": ""})}) == len(others) + 2


def test_a_runs_name_says_nothing_of_where_things_lie() -> None:
    assert name_of(job(**NOWHERE)) == name_of(job())


def test_no_two_runs_of_a_study_share_a_name() -> None:
    for study in STUDIES.values():
        if isinstance(study, GridStudy):
            options = Options(full=True, seeds=1, learning_rates=(0.1, 0.2))
            jobs = [study.job(key, options, Path("x")) for key in study.keys(options)]
            assert len({one.terms.run_id for one in jobs}) == len(jobs), study.name


# --- what is kept ----------------------------------------------------------------------------


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the run ids that were trained, as they are."""
    runs: list[str] = []
    real: Callable[[RunJob, OnRound], Any] = kept.run_job

    def counted(one: RunJob, on_round: OnRound) -> Any:
        runs.append(one.terms.run_id)
        return real(one, on_round)

    monkeypatch.setattr(kept, "run_job", counted)
    return runs


def test_finished_runs_are_reused_and_more_seeds_add_their_own(
    tmp_path: Path, trained: list[str]
) -> None:
    options = Options(processes=1)
    first = SMALL.conduct(options, tmp_path)
    assert len(trained) == 4  # two strategies, two learning rates
    assert SMALL.conduct(options, tmp_path) == first
    assert len(trained) == 4
    SMALL.conduct(replace(options, seeds=2), tmp_path)
    assert len(trained) == len(set(trained)) == 8
    assert (tmp_path / "small.png").stat().st_size > 10_000


def test_an_interruption_keeps_what_was_finished(
    tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kept.run_job

    def interrupted(one: RunJob, on_round: OnRound) -> Any:
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(one, on_round)

    monkeypatch.setattr(kept, "run_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SMALL.conduct(Options(processes=1), tmp_path)
    monkeypatch.setattr(kept, "run_job", real)
    SMALL.conduct(Options(processes=1), tmp_path)
    assert len(trained) == len(set(trained)) == 4


# --- what is read ----------------------------------------------------------------------------


def run(*accuracies: float) -> list[dict[str, Any]]:
    return [{"metrics": {"accuracy": accuracy}} for accuracy in accuracies]


def test_a_value_is_the_mean_of_the_last_five_rounds() -> None:
    value = value_of([run(0, 0.1, 0.2, 0.3, 0.4, 0.5), run(0, 0.3, 0.4, 0.5, 0.6, 0.7)])
    assert value.mean == pytest.approx(40)
    assert value.sd == pytest.approx(20 / math.sqrt(2))
    assert math.isnan(value_of([run(0.5)]).sd)


def test_the_best_rate_is_taken_and_the_edge_is_said() -> None:
    low, middle, high = (value_of([run(x)]) for x in (0.2, 0.6, 0.4))
    inside = best_rate({0.01: low, 0.1: middle, 1.0: high})
    assert (inside.rate, inside.mean, inside.at_edge) == (0.1, pytest.approx(60), False)
    for edge in (best_rate({0.01: low, 0.1: middle}), best_rate({0.1: middle, 1.0: high})):
        assert edge.rate == 0.1
        assert edge.at_edge
    assert cell_text(best_rate({0.01: low, 0.1: middle}), 84.84) == "60.0* (84.84)"
    assert not best_rate({0.1: middle}).at_edge  # one rate is no grid


def test_the_papers_number_stands_beside_its_own_data_alone(tmp_path: Path) -> None:
    options = Options(processes=1, strategies=("fedavg",), learning_rates=(0.1,))
    table = SMALL.conduct(options, tmp_path).tables[0]
    assert table.rows[0][1].endswith(" (12.5)")
    again = SMALL.conduct(replace(options, dataset="digits"), tmp_path)
    assert "(" not in again.tables[0].rows[0][1]


# --- the studies' own arithmetic --------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, 5))
def test_every_list_of_pfa_has_a_public_site(number: int) -> None:
    for seed in range(1, 30):
        drawn = [float(e) for e in with_public(f"mixgauss{number}", 5, seed)["epsilons"].split(",")]
        assert len(drawn) == 5
        assert max(drawn) > PUBLIC_FROM


def test_a_warm_up_round_is_counted_once() -> None:
    events = [{"bytes_up": up, "bytes_down": 7 * MIB} for up in (50 * MIB, 2 * MIB, 4 * MIB)]
    sent = traffic(events, 10)
    assert (sent.up, sent.down) == (50 + 9 * 3, 70)
    assert sent.total == 147
    assert traffic(events, 2).up == 52
