"""Sites that lie: what each attack does without a guard and with one, and what a guard costs.

Ours, after the faults that Robust-HDP's weights invite: a quiet update gets the weight, whoever
sends it. Two sites of 20 lie; the bar is the same run without these two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.monitoring.rejection import Rejection, rejections_in
from hdpfl_flower.simulation.attacks import Attack
from server_app.plots import plot_columns
from server_app.simulation.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.study import (
    Findings,
    GridStudy,
    Options,
    Setting,
    Study,
    Table,
    run_jobs,
    select_or_all,
)
from studies.robust_hdp.accuracy import BASE, DISTS, published
from studies.robust_hdp.noise_table import excess

LIARS = (3, 7)
"""Partitions of the two that lie."""

ATTACKS = (
    "zero", "tiny", "constant", "repeated", "minus-1", "minus-5", "minus-50", "minus-5+same",
    "minus-5+jitter", "minus-5+hidden",
)  # fmt: skip

GUARDS = ("none", "cap", "centred-clipping", "evidence")

FLOOR = 7e-4
"""Noise of a coordinate that the run states as the least: ε = 5.45, the largest of both lists, with
the largest batch, 128 of 3,000, needs z = 2.31, which leaves √24·0.003·2.31·3/128 = 8.0e-4 at the
smallest learning rate; rounded down."""

LYING = GridStudy(
    name="liars",
    title="Two liars among 20 sites, by attack and guard: MNIST, Robust-HDP's weights",
    source="ours (no paper)",
    minutes=8,
    base={**BASE, "strategy": "robust-hdp"},
    rows=(
        Setting("nobody lies"),
        Setting("without the two", absent=LIARS),
        *(Setting(name, attack=Attack(name, sites=LIARS)) for name in ATTACKS),
    ),
    columns=tuple(
        Setting(
            f"{dist} {guard}",
            {**published(dist), "guard": guard}
            | ({"noise-floor": FLOOR} if guard == "evidence" else {}),
        )
        for dist in ("Dist2", "Dist6")
        for guard in GUARDS
    ),
    quick_columns=tuple(
        f"{dist} {guard}" for dist in ("Dist2", "Dist6") for guard in ("none", "evidence")
    ),
    noises=("pld",),
    quick_rounds=12,
    picture="columns",
    notes=(
        "'without the two': the same run in which the two sites that lie elsewhere take no part.",
        "minus-5 sends −5 times the site's update without noise; +same: both send the same; "
        "+jitter: each with a relative noise of 0.001; +hidden: under the noise of an honest one.",
        "Updates of zeros and copies are refused by every guard, 'none' included.",
        f"'evidence' has a 'noise-floor' of {FLOOR:g}, below what any honest site here adds.",
        "The quick form stops after 12 of 200 rounds, with the noise of all 200.",
    ),
)


@dataclass(frozen=True)
class Cost:
    """What a guard cost where nobody lies: noise over the oracle's, and honest sites refused."""

    q: float
    refused: int


def cost(guarded: Sequence[Event], oracle: Sequence[Event]) -> Cost:
    """Return the mean q over the rounds, and the number of sites that the guard refused.

    Args:
        guarded: rounds of a run under the guard.
        oracle: rounds of the same sites under the oracle, which receives updates from all of them.
    """
    best = dict(zip(oracle[0]["accepted"], oracle[0]["weights"], strict=True))
    found, refused = [], set()
    for event in guarded:
        weights = np.array([best[site] for site in event["accepted"]])
        if len(event["weights"]) == len(weights) and len(weights):
            found.append(excess(np.array(event["weights"]), weights))
        refused |= {s for s, code in rejections_in(event).items() if code is Rejection.GUARD}
    return Cost(float(np.mean(found)) if found else float("nan"), len(refused))


@dataclass(frozen=True, kw_only=True)
class GuardCost(Study):
    """What guards cost without attackers."""

    guards: tuple[str, ...] = ("none", "cap", "evidence")
    rounds: int = 12

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run each guard without attackers, and the oracle beside it.

        Raises:
            TermsError: ``--columns`` names one that is not of ``Dist1`` to ``Dist9``, or of these
                with `` ≤ 2 labels`` after them.
        """
        guards = select_or_all(GUARDS, options.strategies or self.guards, "--strategies")
        columns = select_or_all(tuple(_COLUMNS), options.columns, "--columns")
        seeds = range(1, (options.seeds or (3 if options.full else 1)) + 1)
        jobs = {
            (split, dist, rule, seed): self.job(split, dist, rule, seed, options, folder)
            for split, dist in (_COLUMNS[column] for column in columns)
            for rule in ("oracle", *guards)
            for seed in seeds
        }
        runs = run_jobs(list(jobs.values()), options, self.name)
        events = {place: runs[job.terms.run_id] for place, job in jobs.items()}
        costs = {
            (split, dist, guard, seed): cost(
                events[split, dist, guard, seed], events[split, dist, "oracle", seed]
            )
            for split, dist, guard, seed in jobs
            if guard != "oracle"
        }
        self.draw(costs, folder / f"{self.name}.png")
        splits = dict.fromkeys(split for split, *_ in jobs)
        tables = tuple(_table(split, guards, costs) for split in splits)
        return Findings(tables, {"cells": _numbers(costs)}, self.notes)

    def job(
        self, split: str, dist: str, rule: str, seed: int, options: Options, folder: Path
    ) -> RunJob:
        """Return a run of robust-hdp under the guard ``rule``, or of the oracle."""
        is_oracle = rule == "oracle"
        config = {
            **BASE,
            **published(dist),
            "partition": _SPLITS[split],
            "strategy": "oracle" if is_oracle else "robust-hdp",
            "guard": "none" if is_oracle else rule,
            "learning-rate": 0.01,
            "seed": seed,
            "data-dir": options.data_dir,
            "model": options.model or BASE["model"],
            "dataset": options.dataset or BASE["dataset"],
            "runs-dir": str((folder / "runs").absolute()),
        }
        stop = 1 if is_oracle else options.rounds or self.rounds
        return with_run_name(RunJob(RunConfig.parse(config), 20, stop))

    def draw(self, costs: Costs, path: Path) -> None:
        """Draw q by distribution, a panel for each split."""
        cells: dict[tuple[str, str, str], list[float]] = {}
        for (split, dist, guard, _), found in costs.items():
            cells.setdefault((split, guard, dist), []).append(found.q)
        panels: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
        for (split, guard, dist), qs in cells.items():
            spread = float(np.std(qs, ddof=1)) if len(qs) > 1 else float("nan")
            line = panels.setdefault(split, {}).setdefault(guard, {})
            line[dist] = (float(np.mean(qs)), spread)
        plot_columns(panels, path, "noise over the oracle's, q", self.title)


GUARD_COST = GuardCost(
    name="guards",
    title="What guards cost where nobody lies: MNIST, 20 sites, Dist1–9",
    source="ours (no paper)",
    minutes=11,
    notes=(
        "A cell: q, the noise of the aggregate over the oracle's, mean over rounds and seeds; "
        "and how many honest sites the guard refused, the most of any seed.",
        "Centred clipping changes the updates and has no q.",
    ),
)

_SPLITS = {"iid": "iid", "≤ 2 labels a client": "pathological:2"}

_COLUMNS = {
    dist + suffix: (split, dist)
    for split, suffix in zip(_SPLITS, ("", " ≤ 2 labels"), strict=True)
    for dist in DISTS
}
"""Column by its name in ``--columns`` → split, distribution of ε."""

Costs = Mapping[tuple[str, str, str, int], Cost]


def _table(split: str, guards: Sequence[str], costs: Costs) -> Table:
    dists = tuple(dict.fromkeys(dist for s, dist, *_ in costs if s == split))
    rows = []
    for guard in guards:
        cells = [[c for (s, d, g, _), c in costs.items() if (s, d, g) == (split, dist, guard)]
                 for dist in dists]  # fmt: skip
        text = (f"{np.mean([c.q for c in cell]):.3f}, {max(c.refused for c in cell)}"
                for cell in cells)  # fmt: skip
        rows.append((guard, *text))
    return Table(f"q, honest sites refused; {split}", ("", *dists), tuple(rows))


def _numbers(costs: Costs) -> list[dict[str, Any]]:
    return [
        {"split": s, "column": d, "row": g, "seed": n, "q": c.q, "refused": c.refused}
        for (s, d, g, n), c in costs.items()
    ]
