"""``hdpfl reproduce advise``: what ``hdpfl advise`` proposes, beside the best of 24 settings.

The best of the grid is chosen by runs of seed 1; both settings then run with seeds from 31 on, so
that neither is flattered by its choice. Constants of the advice were chosen on other seeds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.data.own_data.dataset import with_own_task
from server_app.in_process.comparison import RunJob
from server_app.reports.advice import RunSetting, asked_setting, propose
from studies.advise.records import DATA_DIR
from studies.framework.kept_runs import with_run_name
from studies.framework.plots import plot_differences
from studies.framework.study import Findings, Options, Study, Table, run_jobs, select_or_all
from studies.which_rule.regret import Difference, difference

FIRST_SEED = 31
DELTA = 1e-4
ROUNDS, PASSES, RATES, MODELS = (12, 40), (4, 16), (0.1, 0.3, 1.0), ("logreg", "mlp:32")
"""The grid: rounds, steps of a pass over a site's records, rates, models."""


@dataclass(frozen=True)
class AdvisedCase:
    """Federation of the study.

    Attributes:
        sites: their number.
        records: of a site, on average.
        epsilons: as ``--epsilons`` of the command.
        config: run config keys of its data.
        seeds: reported runs.
    """

    sites: int
    records: int
    epsilons: str
    config: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 3

    def advised(self) -> RunSetting:
        """Return the proposal, from the numbers above and the task."""
        terms = RunConfig.parse(with_own_task(self.config, Path())).terms
        asked = asked_setting(
            terms, self.sites, f"{self.records}", self.epsilons, DELTA, f"{self.records}"
        )
        return propose(asked, task_for(terms), ROUNDS[-1])


def _own(function: str, partition: str) -> dict[str, str]:
    return {"dataset": f"studies.advise.records:{function}", "partition": partition}


_DIGITS, _HEART = {"dataset": "digits", "partition": "iid"}, {"dataset": "heart"}
CASES: dict[str, AdvisedCase] = {
    "Heart ε 1": AdvisedCase(4, 138, "1", {**_HEART, "partition": "natural"}, 8),
    "Heart ε .5 to 8": AdvisedCase(4, 138, "0.5,1,4,8", {**_HEART, "partition": "natural"}, 8),
    "digits 5 × 287 ε 1": AdvisedCase(5, 287, "1", _DIGITS),
    "digits 8 × 179 ε 8": AdvisedCase(8, 179, "8", _DIGITS),
    "MNIST 5 × 300 ε 3": AdvisedCase(5, 300, "3", _own("pooled_mnist", "iid:300")),
    "MNIST 8 × 600 ε 1": AdvisedCase(8, 600, "1", _own("pooled_mnist", "iid:600")),
    "MNIST Dirichlet .3 ε 8": AdvisedCase(8, 600, "8", _own("pooled_mnist", "dirichlet:0.3:600")),
    "chem97 10 × 300 ε 1": AdvisedCase(10, 300, "1", _own("chem97", "natural")),
    "planes 4 × 200 ε .5": AdvisedCase(4, 200, "0.5", _own("planes", "iid:200")),
    "corners 8 × 400 ε 6": AdvisedCase(8, 400, "6", _own("corners", "iid:400")),
}
QUICK = ("Heart ε 1", "planes 4 × 200 ε .5")


@dataclass(frozen=True, kw_only=True)
class AdviceStudy(Study):
    """Advised settings beside the best of a grid.

    Attributes:
        cases: by label.
        rounds: of the grid.
    """

    takes = ("--seeds", "--columns")
    cases: Mapping[str, AdvisedCase] = field(default_factory=lambda: CASES)
    rounds: tuple[int, ...] = ROUNDS

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Search the grid, run both settings, draw the differences."""
        os.environ.setdefault(DATA_DIR, options.data_dir)
        labels = tuple(self.cases)
        names = select_or_all(
            labels, options.columns or (labels if options.full else QUICK), "--columns"
        )
        grid = {
            (name, keys): self.job(name, keys, 1, options, folder)
            for name in names
            for keys in self.grid()
        }
        runs = run_jobs(list(grid.values()), options, f"{self.name}, search")
        best = {
            name: max(self.grid(), key=lambda keys: score(runs[grid[name, keys].terms.run_id]))
            for name in names
        }
        both = {name: (self.advised(name), best[name]) for name in names}
        jobs = {
            (name, keys, seed): self.job(name, keys, seed, options, folder)
            for name, pair in both.items()
            for keys in pair
            for seed in range(FIRST_SEED, FIRST_SEED + (options.seeds or self.cases[name].seeds))
        }
        runs = run_jobs(list(jobs.values()), options, self.name)
        found = {
            name: [
                [
                    score(runs[job.terms.run_id])
                    for at, job in jobs.items()
                    if at[:2] == (name, keys)
                ]
                for keys in pair
            ]
            for name, pair in both.items()
        }
        gaps = {name: difference(*values) for name, values in found.items()}
        panel = {"advised": {name: (gap.mean, gap.error) for name, gap in gaps.items()}}
        path = folder / f"{self.name}.png"
        plot_differences({"": panel}, path, "points ahead of the best of 24", self.title)
        return self.findings(both, found, gaps)

    def grid(self) -> list[tuple[Any, ...]]:
        """Return the 24 settings of the grid: rounds, steps, rate, model."""
        return list(product(self.rounds, PASSES, RATES, MODELS))

    def advised(self, name: str) -> tuple[Any, ...]:
        """Return the advised setting in the form of the grid's."""
        setting = self.cases[name].advised()
        return min(setting.rounds, self.rounds[-1]), setting.steps[0], "auto", setting.model

    def job(
        self, name: str, keys: tuple[Any, ...], seed: int, options: Options, folder: Path
    ) -> RunJob:
        """Return the run of a setting; each site's batches make a pass in its steps."""
        case = self.cases[name]
        rounds, steps, rate, model = keys
        config = {
            "clip-norm": 1.0,
            "delta": DELTA,
            "stack": True,
            **case.config,
            "epsilons": case.epsilons,
            "rounds": rounds,
            "local-steps": steps,
            "batch-sizes": f"{max(1, round(case.records / steps))}",
            "learning-rate": rate,
            "model": model,
            "seed": seed,
            "data-dir": options.data_dir,
            "runs-dir": str((folder / "runs").absolute()),
        }
        return with_run_name(RunJob(RunConfig.parse(with_own_task(config, Path())), case.sites))

    def findings(
        self,
        both: Mapping[str, tuple[tuple[Any, ...], tuple[Any, ...]]],
        found: Mapping[str, list[list[float]]],
        gaps: Mapping[str, Difference],
    ) -> Findings:
        """Return the table, the numbers and the worst case."""
        rows = tuple(
            (
                name,
                f"{self.cases[name].advised().of_run:.3g}",
                *(
                    cell
                    for keys, values in zip(both[name], found[name], strict=True)
                    for cell in (_shown(keys), f"{np.mean(values):.1f}")
                ),
                f"{gaps[name].mean:+.1f} ± {gaps[name].error:.1f}",
            )
            for name in both
        )
        head = ("case", "run's ratio", "advised", "%", "best of 24", "%", "difference")
        numbers = {
            name: {"advised": found[name][0], "best": found[name][1], "settings": both[name]}
            for name in both
        }
        worst = min(gaps, key=lambda name: gaps[name].mean)
        return Findings(
            (Table("accuracy in %: rounds × steps, rate, model", head, rows),),
            numbers,
            (f"at worst {gaps[worst].mean:+.1f} points: {worst}", *self.notes),
        )


def score(events: list[Any]) -> float:
    """Return the accuracy in %, mean of the last three rounds."""
    return 100 * float(np.mean([event["metrics"]["accuracy"] for event in events[-3:]]))


def _shown(keys: tuple[Any, ...]) -> str:
    rounds, steps, rate, model = keys
    return f"{rounds} × {steps}, {rate}, {model}"


ADVISE = AdviceStudy(
    name="advise",
    title="What hdpfl advise proposes beside the best of 24 settings",
    source="ours (no paper)",
    minutes=4,
)
