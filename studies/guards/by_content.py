"""Attacks by content: what each does to a rule under a guard, beside the run of the honest alone.

Three sites of 20 lie, five in the columns that say so. They look honest but for what they teach;
those with ``+quiet`` add a fifth of the noise that their ε asks for, which buys weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.simulation.attacks import SOURCE, Attack
from server_app.simulation.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.study import GridStudy, Key, Options, Setting, Table
from studies.guards.rules import (
    GUARDS,
    QUICK_GUARDS,
    RATE,
    STRATEGIES,
    final_accuracy,
    refused_in,
)
from studies.robust_hdp.accuracy import BASE, published

LIARS, FIVE = (1, 9, 13), (1, 5, 9, 13, 17)
"""Partitions that lie; under Dist4 and Dist6 none of the three is among the quietest five."""

ATTACKS = (
    "label-flip+quiet", "7-to-1+quiet", "inflated+quiet", "slow-drift+quiet", "minus-mean+quiet",
    "alie+quiet", "min-max", "sign-flip+quiet", "same-vector", "hidden-noise",
)  # fmt: skip

HONEST = "without the liars"
OTHER_HANDS = "digits"
"""In a column's name: the guard's public records are scikit-learn's digits, not of MNIST."""
DIGITS = "digits.npz"
ROUNDS = {"Dist4": 12, "Dist6": 24}

_PLAIN = ("label-flip", "7-to-1", "min-max+quiet")
"""Beside them in the full form: the same with the other amount of noise."""


@dataclass(frozen=True, kw_only=True)
class AttackStudy(GridStudy):
    """The grid of attacks: rows are attacks, columns a distribution, a strategy and a guard."""

    def job(self, key: Key, options: Options, folder: Path) -> RunJob:
        """Return the run at a place: the rounds are the column's, and so are the liars' number."""
        job = super().job(key, options, folder)
        stop = options.rounds or ROUNDS[key.column.split()[0]]
        liars = FIVE if "5 liars" in key.column else LIARS
        attack = replace(job.attack, sites=liars) if job.attack else None
        if OTHER_HANDS in key.column:
            server = job.config.server.updated(public_records=str(folder / DIGITS))
            job = replace(job, config=replace(job.config, server=server))
        return with_run_name(
            replace(job, stop_after=stop, attack=attack, absent=liars if job.absent else ())
        )


def _columns() -> tuple[Setting, ...]:
    more: dict[str, dict[str, str | int]] = {
        "": {},
        " 5 liars": {"max-liars": 5},
        " mlp:32": {"model": "mlp:32"},
        f" {OTHER_HANDS}": {},
    }
    return tuple(
        Setting(
            f"{dist} {strategy} {guard}{what}",
            {**published(dist), "strategy": strategy, "guard": guard, **config},
        )
        for what, config in more.items()
        for dist in ROUNDS
        for strategy in STRATEGIES
        for guard in GUARDS
        if what != f" {OTHER_HANDS}" or guard == "content"
    )


GRID = AttackStudy(
    name="guards",
    title="Attacks by content",
    source="ours (no paper)",
    minutes=8,
    base={**BASE, "max-liars": 3},
    rows=(
        Setting("nobody lies"),
        Setting(HONEST, absent=LIARS),
        *(Setting(name, attack=Attack(name, LIARS)) for name in (*ATTACKS, *_PLAIN)),
    ),
    columns=_columns(),
    quick_columns=tuple(f"Dist4 {STRATEGIES[-1]} {guard}" for guard in QUICK_GUARDS),
    noises=("pld",),
    rates=(RATE,),
    quick_rates=(RATE,),
)


def write_digits(folder: Path) -> None:
    """Write scikit-learn's digits in MNIST's form: each pixel 3 × 3, its edge and its scaling."""
    digits = load_dataset("digits", "").train
    large = np.kron(digits.features, np.ones((3, 3), np.float32))
    pixels = np.pad(large, ((0, 0), (0, 0), (2, 2), (2, 2)))
    np.savez(folder / DIGITS, x=(pixels - 0.1307) / 0.3081, y=digits.targets)


@dataclass(frozen=True)
class Result:
    """One run of the grid.

    Attributes:
        accuracy: of the final model, in per cent.
        recall: share of the public test records of class 7 that it finds.
        liars: of those that lie, how many the guard refused.
        honest: of the others, how many it refused.
    """

    accuracy: float
    recall: float
    liars: int
    honest: int


def rows_of(options: Options) -> tuple[str, ...]:
    """Return the rows: the quick form has each attack with one amount of noise."""
    rows = ("nobody lies", HONEST, *ATTACKS)
    return (*rows, *_PLAIN) if options.full else rows


def result_of(job: RunJob, events: Sequence[Event]) -> Result:
    """Return the end of a run; its folder holds the final model."""
    refused = refused_in(events)
    lied = {str(site) for site in (job.attack.sites if job.attack else ())}
    return Result(final_accuracy(events), recall_of(job), len(refused & lied), len(refused - lied))


def recall_of(job: RunJob) -> float:
    """Return the share of the public test records of class ``SOURCE`` that the final model finds.

    NaN where there are none, or no model was stored.
    """
    from safetensors.numpy import load_file

    path = Path(job.config.server.runs_dir) / job.terms.run_id / "model.safetensors"
    data = load_dataset(job.terms.dataset, job.config.simulation.data_dir)
    if data.test is None or not path.is_file():
        return float("nan")
    rows = np.flatnonzero(data.test.targets == SOURCE)
    if not len(rows):
        return float("nan")
    features = data.test.features[rows]
    found = predict(job.terms.model, data.task, load_file(path), features).argmax(1)
    return float(np.mean(found == SOURCE))


def table_of(results: Mapping[tuple[str, str, int], Result]) -> Table:
    """Return a row an attack, a column a rule and a guard; see ``_cell``."""
    rows = tuple(dict.fromkeys(row for row, *_ in results))
    columns = tuple(dict.fromkeys(column for _, column, _ in results))
    lines = tuple((row, *(_cell(row, column, results) for column in columns)) for row in rows)
    return Table(
        "attacks: accuracy, % (recall of class 7); liars/honest sites refused",
        ("", *columns),
        lines,
    )


def numbers_of(results: Mapping[tuple[str, str, int], Result]) -> list[dict[str, Any]]:
    """Return every run's numbers for ``results.json``."""
    return [
        {"row": row, "column": column, "seed": seed, "accuracy": r.accuracy,
         "recall": None if np.isnan(r.recall) else r.recall, "liars": r.liars, "honest": r.honest}
        for (row, column, seed), r in results.items()
    ]  # fmt: skip


def _cell(row: str, column: str, results: Mapping[tuple[str, str, int], Result]) -> str:
    """Return the mean accuracy, the least recall, the fewest liars and most honest refused."""
    cell = [r for (a, c, _), r in results.items() if (a, c) == (row, column)]
    if not cell:
        return "–"
    text = f"{np.mean([r.accuracy for r in cell]):.1f}"
    if row.startswith("7-to-1"):
        text += f" ({min(r.recall for r in cell):.2f})"
    return f"{text}, {min(r.liars for r in cell)}/{max(r.honest for r in cell)}"
