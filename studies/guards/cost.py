"""What guards cost where nobody lies: accuracy, noise of the aggregate, honest sites refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.errors import DataError
from hdpfl_flower.monitoring.journal import Event
from server_app.simulation.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.study import Options, Setting, Table
from studies.guards.rules import RATE, STRATEGIES, final_accuracy, refused_in
from studies.robust_hdp.accuracy import BASE, DISTS, published
from studies.robust_hdp.noise_table import excess

ROUNDS = 12

_SPLITS = {
    "": {},
    " ≤ 3 labels": {"partition": "pathological:3"},
    " ≤ 2 labels": {"partition": "pathological:2"},
    " Dirichlet .3": {"partition": "dirichlet:0.3"},
    " rotations": {"groups": "rotation:5:5:5:5"},
}

_FIVE = Setting("five of ε 100", {"epsilons": "100", "batch-sizes": "64", "delta": 1e-5}, sites=5)
"""12,000 records each: δ is below 1/12,000."""

_HEART = Setting(
    "Heart",
    {
        "dataset": "heart",
        "partition": "natural",
        "rounds": 30,
        "clip-norm": 1.0,
        "epsilons": "uniform:0.3:8",
        "batch-sizes": "16,32,64,128",
        "learning-rate": 0.1,
    },
    sites=4,
)

CASES = {
    case.label: case
    for case in (
        *(
            Setting(dist + suffix, {**published(dist), **split})
            for suffix, split in _SPLITS.items()
            for dist in DISTS
        ),
        _FIVE,
        _HEART,
    )
}
"""Every case by its name in ``--columns``; all but the last two have 20 sites."""

QUICK = (*(f"Dist4{suffix}" for suffix in _SPLITS), _FIVE.label, _HEART.label)
FULL = (
    *(f"{dist}{suffix}" for suffix in _SPLITS for dist in ("Dist2", "Dist4", "Dist6")),
    *(dist for dist in DISTS if dist not in ("Dist2", "Dist4", "Dist6")),
    _FIVE.label,
    _HEART.label,
)

Place = tuple[str, str, int]
"""(case, guard or ``oracle``, seed)."""


@dataclass(frozen=True)
class Cost:
    """What a guard cost where nobody lies.

    Attributes:
        accuracy: of the final model, in per cent.
        q: noise of the aggregate over the oracle's, mean over the rounds.
        refused: honest sites that the guard refused.
    """

    accuracy: float
    q: float
    refused: int


def cost(guarded: Sequence[Event], oracle: Sequence[Event]) -> Cost:
    """Return what a guard cost in one run.

    Args:
        guarded: rounds of a run under the guard.
        oracle: rounds of the same sites under the oracle, which receives updates from all of them.
    """
    best = dict(zip(oracle[0]["accepted"], oracle[0]["weights"], strict=True))
    found = []
    for event in guarded:
        weights = np.array([best[site] for site in event["accepted"]])
        if len(event["weights"]) == len(weights) and len(weights):
            found.append(excess(np.array(event["weights"]), weights))
    q = float(np.mean(found)) if found else float("nan")
    return Cost(final_accuracy(guarded), q, len(refused_in(guarded)))


def has_data(label: str, options: Options) -> bool:
    """Return whether a case can be run by default: Heart, where its folder is there."""
    if label != _HEART.label:
        return True
    try:
        load_dataset("heart", options.data_dir)
    except DataError:
        return False
    return True


def jobs_of(
    cases: Sequence[str],
    guards: Sequence[str],
    seeds: Sequence[int],
    options: Options,
    folder: Path,
) -> dict[Place, RunJob]:
    """Return the runs of each case: under every guard, and a round of the oracle."""
    return {
        (case, guard, seed): _job(CASES[case], guard, seed, options, folder)
        for case in cases
        for guard in ("oracle", *guards)
        for seed in seeds
    }


def costs_of(events: Mapping[Place, Sequence[Event]]) -> dict[Place, Cost]:
    """Return what each guard cost, by case, guard and seed."""
    return {
        (case, guard, seed): cost(found, events[case, "oracle", seed])
        for (case, guard, seed), found in events.items()
        if guard != "oracle"
    }


def table_of(costs: Mapping[Place, Cost]) -> Table:
    """Return a row a case, a column a guard: accuracy, noise over ``none``'s, refused."""
    cases = tuple(dict.fromkeys(case for case, *_ in costs))
    guards = tuple(dict.fromkeys(guard for _, guard, _ in costs))
    rows = []
    for case in cases:
        cells = {g: [c for (k, h, _), c in costs.items() if (k, h) == (case, g)] for g in guards}
        plain = float(np.mean([c.q for c in cells.get("none", cells[guards[0]])]))
        rows.append((case, *(_cell(cell, plain) for cell in cells.values())))
    title = "nobody lies: accuracy, %; noise over that without a guard; honest sites refused"
    return Table(title, ("", *guards), tuple(rows))


def numbers_of(costs: Mapping[Place, Cost]) -> list[dict[str, Any]]:
    """Return every run's numbers for ``results.json``; ``q`` is over the oracle's noise."""
    return [
        {"row": case, "column": guard, "seed": seed, "accuracy": c.accuracy, "q": c.q,
         "refused": c.refused}
        for (case, guard, seed), c in costs.items()
    ]  # fmt: skip


def _cell(cell: Sequence[Cost], plain: float) -> str:
    q = float(np.mean([c.q for c in cell])) / plain
    accuracy, refused = np.mean([c.accuracy for c in cell]), max(c.refused for c in cell)
    return f"{accuracy:.1f}, {q:.2f}, {refused}"


def _job(case: Setting, guard: str, seed: int, options: Options, folder: Path) -> RunJob:
    is_oracle = guard == "oracle"
    config = {
        **BASE,
        "learning-rate": RATE,
        **case.config,
        "strategy": "oracle" if is_oracle else STRATEGIES[0],
        "guard": "none" if is_oracle else guard,
        "seed": seed,
        "data-dir": options.data_dir,
        "runs-dir": str((folder / "runs").absolute()),
    }
    if options.model:
        config["model"] = options.model
    if options.dataset and case is not _HEART:
        config["dataset"] = options.dataset
    # Heart's 30 rounds are few enough to run them all.
    stop = 1 if is_oracle else options.rounds or (0 if case is _HEART else ROUNDS)
    return with_run_name(RunJob(RunConfig.parse(config), case.sites, stop))
