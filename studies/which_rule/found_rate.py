"""``hdpfl reproduce found-rate``: the learning rate ``auto`` beside the best of a grid.

The reported seeds choose the best fixed rate, which flatters it. Constants of the found rate were
chosen on other seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.scenarios.groups import BY_GROUP
from server_app.in_process.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.plots import plot_differences
from studies.framework.study import (
    OF_RUNS,
    Findings,
    Options,
    Study,
    Table,
    run_jobs,
    select_or_all,
)
from studies.natural.federation import outer_split, write_split
from studies.natural.zero_start import LINEAR
from studies.which_rule.regret import Difference, difference

FIRST_SEED = 931
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
ERROR = "mse"
STRATEGIES = ("mmse", "fedavg")


@dataclass(frozen=True)
class RatedCase:
    """Federation of the study.

    Attributes:
        config: run config keys.
        sites: number of clients.
        seeds: reported runs in the full form.
        metric: name of what counts; ``mse`` is the less the better.
        split: the natural federation that is written as the data set; empty: none.
    """

    config: Mapping[str, Any]
    sites: int = 20
    seeds: int = 3
    metric: str = "accuracy"
    split: str = ""


def _mnist(model: str, partition: str, epsilons: str, **more: Any) -> RatedCase:
    config = {"dataset": "mnist", "model": model, "partition": partition, "epsilons": epsilons}
    return RatedCase({**config, "rounds": 12, "batch-sizes": "64", **more})


def _small(epsilons: str, rounds: int = 20, **more: Any) -> dict[str, Any]:
    config = {"model": "logreg", "partition": "natural", "batch-sizes": "32", **more}
    return {**config, "epsilons": epsilons, "rounds": rounds}


_WIDE = "uniform:0.3:8"
_SPLITS = {
    "iid": "iid:600",
    "Dirichlet .3": "dirichlet:0.3:600",
    "≤ 2 labels": "pathological:2:600",
}
_NOISY = _mnist(
    "logreg", "iid:600", 14 * "0.5," + "8,8,8,8,8,8", groups="label-noise-70:14:6"
).config
CASES: Mapping[str, RatedCase] = {
    **{
        f"MNIST {name} {model}": _mnist(model, partition, _WIDE)
        for model in ("logreg", "mlp:32")
        for name, partition in _SPLITS.items()
    },
    "MNIST iid logreg every ε .3": _mnist("logreg", "iid:600", "0.3"),
    "MNIST iid mlp:32 every ε .5": _mnist("mlp:32", "iid:600", "0.5"),
    "MNIST ≤ 2 labels logreg four ε .05 among 8": _mnist(
        "logreg", "pathological:2:600", 4 * "0.05," + 15 * "8," + "8"
    ),
    "MNIST logreg six ε 8 with 70 % of labels drawn": RatedCase(
        _NOISY, metric=f"{BY_GROUP}0"
    ),
    "digits 10 clients": RatedCase(
        _small(_WIDE, dataset="digits", partition="iid"), 10, 8
    ),
    "Heart ε .5 to 8": RatedCase(_small("0.5,1,4,8", dataset="heart"), 4, 8),
    "Heart every ε .3": RatedCase(_small("0.3", dataset="heart"), 4, 8),
    "Heart ε 1 to 8 10 rounds": RatedCase(_small("1,3,1,8", 10, dataset="heart"), 4, 8),
    "chem97 every ε .3": RatedCase(_small("0.3"), 131, 4, split="chem97"),
    "chem97 every ε 1": RatedCase(_small("1"), 131, 4, split="chem97"),
    "chem97 ε .3 to 8": RatedCase(_small(_WIDE), 131, 4, split="chem97"),
    "School ε 6": RatedCase(
        _small("6", model=LINEAR, delta=1e-3), 139, 4, ERROR, split="school"
    ),
}  # fmt: skip
QUICK = ("digits 10 clients", "Heart every ε .3")


@dataclass(frozen=True, kw_only=True)
class FoundRateStudy(Study):
    """The found rate beside the best of a grid.

    Attributes:
        cases: by label.
    """

    takes = OF_RUNS
    cases: Mapping[str, RatedCase] = field(default_factory=lambda: CASES)

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run every case at every rate; draw the differences."""
        labels = tuple(self.cases)
        names = select_or_all(
            labels, options.columns or (labels if options.full else QUICK), "--columns"
        )
        rules = select_or_all(STRATEGIES, options.strategies, "--strategies")
        rates: tuple[float | str, ...] = ("auto", *(options.learning_rates or RATES))
        jobs = {
            (name, rule, rate, seed): self.job(name, rule, rate, seed, options, folder)
            for name in names
            for rule in rules
            for rate in rates
            for seed in range(
                FIRST_SEED,
                FIRST_SEED + (options.seeds or (self.cases[name].seeds if options.full else 2)),
            )
        }
        runs = run_jobs(list(jobs.values()), options, self.name)
        found: dict[tuple[str, str], dict[float | str, list[float]]] = {}
        for (name, rule, rate, _), job in jobs.items():
            score = self.score(name, runs[job.terms.run_id])
            found.setdefault((name, rule), {}).setdefault(rate, []).append(score)
        return self.findings(found, folder)

    def job(
        self, name: str, rule: str, rate: float | str, seed: int, options: Options, folder: Path
    ) -> RunJob:
        """Return the run of a case at a rate."""
        case = self.cases[name]
        config = {"clip-norm": 1.0, "delta": 1e-4, "stack": True, **case.config}
        if case.split:
            split = outer_split(case.split, options.data_dir)
            config |= write_split(split, folder / f"{case.split}.npz")
        config |= {
            "strategy": rule,
            "learning-rate": rate,
            "seed": seed,
            "data-dir": options.data_dir,
            "runs-dir": str((folder / "runs").absolute()),
        }
        stop = options.rounds if options.rounds < int(config["rounds"]) else 0
        return with_run_name(RunJob(RunConfig.parse(config), case.sites, stop))

    def score(self, name: str, events: list[Any]) -> float:
        """Return accuracy in %, or minus squared error × 1000, after the last round."""
        metric = self.cases[name].metric
        return float(events[-1]["metrics"][metric]) * (-1000 if metric == ERROR else 100)

    def findings(
        self,
        found: Mapping[tuple[str, str], Mapping[float | str, list[float]]],
        folder: Path,
    ) -> Findings:
        """Return the table, the numbers and the worst case of each strategy."""
        rows, gaps = [], dict[tuple[str, str], Difference]()
        for place, scores in found.items():
            auto, fixed = scores["auto"], scores.keys() - {"auto"}
            best = max(fixed, key=lambda rate: np.mean(scores[rate]))
            gap = gaps[place] = difference(auto, scores[best])
            edge = "*" * (best in (min(fixed), max(fixed)))
            means = (f"{abs(np.mean(values)):.1f}" for values in (scores[best], auto))
            shown = f"{gap.mean:+.1f} ± {gap.error:.1f}"
            rows.append((*place, f"{len(auto)}", f"{best:g}{edge}", *means, shown))
        panels = {
            rule: {name: (gap.mean, gap.error) for (name, of), gap in gaps.items() if of == rule}
            for rule in dict.fromkeys(rule for _, rule in gaps)
        }
        plot_differences(
            {"": panels}, folder / f"{self.name}.png", "points ahead of the best rate", self.title
        )
        head = ("case", "strategy", "seeds", "best rate", "its %", "auto", "difference")
        cells = [
            {"case": name, "strategy": rule, "learning-rate": rate, "scores": values}
            for (name, rule), scores in found.items()
            for rate, values in scores.items()
        ]
        worst = {
            rule: min(panel, key=lambda name: panel[name][0]) for rule, panel in panels.items()
        }
        notes = [
            f"{rule}: at worst {gaps[name, rule].mean:+.1f} points: {name}"
            for rule, name in worst.items()
        ]
        table = Table("accuracy in % after the last round; School: squared error × 1000", head,
                      tuple(rows))  # fmt: skip
        return Findings((table,), {"cells": cells}, (*notes, *self.notes))


FOUND_RATE = FoundRateStudy(
    name="found-rate",
    title="The found learning rate beside the best of five",
    source="ours (no paper)",
    minutes=1,
    notes=("The same seeds choose the best rate, which flatters it; * the edge of the grid.",),
)
"""``hdpfl reproduce found-rate``."""
