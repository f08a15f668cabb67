"""Attacks by content under each guard, against an honest run.

The effect is measured for each strategy.

Three sites of 20 lie. They look honest except for the taught content; ``+quiet`` ones add a fifth
of the noise that their ε asks for, which buys weight.
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
from hdpfl_flower.monitoring.rejection import Rejection, rejections_in
from hdpfl_flower.scenarios.attacks import SOURCE, Attack
from server_app.in_process.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.study import GridStudy, Key, Options, Setting, Table
from studies.robust_hdp.accuracy import BASE, published

GUARDS = ("none", "cap", "content")
STRATEGIES = ("robust-hdp", "mmse")
RATE = 0.01
"""η of every run, as in other quick studies of these ε."""

LIARS = (1, 9, 13)
"""Lying partitions, not among Dist4's and Dist6's quietest five."""

ATTACKS = (
    "label-flip+quiet", "7-to-1+quiet", "inflated+quiet", "slow-drift+quiet", "minus-mean+quiet",
    "alie+quiet", "min-max", "sign-flip+quiet", "same-vector", "hidden-noise",
)  # fmt: skip

HONEST = "without the liars"
ROUNDS = {"Dist4": 12, "Dist6": 24}

_PLAIN = ("label-flip", "7-to-1", "min-max+quiet")
"""Further rows of the full form, with the other noise amount."""


@dataclass(frozen=True, kw_only=True)
class AttackStudy(GridStudy):
    """Grid of attacks (rows) by distribution, strategy and guard (columns)."""

    def job(self, key: Key, options: Options, folder: Path) -> RunJob:
        """Return the run at a place, with its distribution's rounds."""
        job = super().job(key, options, folder)
        stop = options.rounds or ROUNDS[key.column.split()[0]]
        return with_run_name(replace(job, stop_after=stop))


GRID = AttackStudy(
    name="guards",
    title="Attacks by content",
    source="ours (no paper)",
    minutes=8,
    base={**BASE, "max-liars": 3},
    rows=(
        Setting("no liars"),
        Setting(HONEST, absent=LIARS),
        *(Setting(name, attack=Attack(name, LIARS)) for name in (*ATTACKS, *_PLAIN)),
    ),
    columns=tuple(
        Setting(
            f"{dist} {strategy} {guard}",
            {**published(dist), "strategy": strategy, "guard": guard},
        )
        for dist in ROUNDS
        for strategy in STRATEGIES
        for guard in GUARDS
    ),
    quick_columns=("Dist4 mmse none", "Dist4 mmse content"),
    noises=("pld",),
    rates=(RATE,),
    quick_rates=(RATE,),
)


@dataclass(frozen=True)
class Result:
    """One run of the grid.

    Attributes:
        accuracy: of the final model, in per cent.
        recall: share of the public test records of class 7 that it finds.
        liars: number of lying sites that the guard refused.
        honest: number of honest sites that it refused.
    """

    accuracy: float
    recall: float
    liars: int
    honest: int


def rows_of(options: Options) -> tuple[str, ...]:
    """Return the rows; the quick form has one noise amount each."""
    rows = ("no liars", HONEST, *ATTACKS)
    return (*rows, *_PLAIN) if options.full else rows


def result_of(job: RunJob, events: Sequence[Event]) -> Result:
    """Return the result of a run, with its stored final model."""
    codes = [pair for event in events for pair in rejections_in(event).items()]
    refused = {site for site, code in codes if code is Rejection.GUARD}
    lied = {str(site) for site in (job.attack.sites if job.attack else ())}
    accuracy = 100 * float(events[-1]["metrics"]["accuracy"])
    return Result(accuracy, recall_of(job), len(refused & lied), len(refused - lied))


def recall_of(job: RunJob) -> float:
    """Return the final model's recall of class ``SOURCE`` on public records.

    NaN without such records, or without a stored model.
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
    """Return the table: attacks by strategy and guard; see ``_cell``."""
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
    """Return mean accuracy, least recall, fewest liars and most honest refused."""
    cell = [r for (a, c, _), r in results.items() if (a, c) == (row, column)]
    if not cell:
        return "–"
    text = f"{np.mean([r.accuracy for r in cell]):.1f}"
    if row.startswith("7-to-1"):
        text += f" ({min(r.recall for r in cell):.2f})"
    return f"{text}, {min(r.liars for r in cell)}/{max(r.honest for r in cell)}"
