"""``hdpfl reproduce few-sites``: weights of two to four sites, against those of the true noise.

One run feeds all rules: the model follows the true noise's weights, and beside it each rule sees
the same uploads, once with its own estimate and once with ``estimator = "disclosed"``. A round is
off if a site's weight differs from that of the same rule with the true noise by over ``OFF``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.estimators.temporal import NoiseEstimate
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from server_app.in_process.comparison import RunJob
from strategies.core.base import Declaration, Disclosed, State
from strategies.noise_aware.mmse import MMSE
from strategies.noise_aware.oracle import Oracle
from strategies.noise_aware.robust_hdp import RobustHDP
from studies.framework.kept_runs import with_run_name
from studies.framework.plots import plot_columns
from studies.framework.study import Findings, Options, Study, Table, run_jobs, select_or_all
from studies.natural.federation import outer_split, write_split

OFF = 0.15
"""Difference of a site's weight from which on a round is off."""
ROUNDS, FIRST_SEED = 12, 71
COUNTS = (2, 3, 4)
RULES = {rule.name: rule for rule in (RobustHDP, MMSE)}
LABELS = tuple(f"{name}, {kind}" for name in RULES for kind in ("estimated", "disclosed"))
CASES: Mapping[str, tuple[Mapping[str, Any], int]] = {
    "Heart": ({"dataset": "heart", "partition": "natural"}, 4),
    "digits": ({"dataset": "digits", "partition": "iid:300"}, 0),
    "chem97": ({"partition": "natural"}, 131),
    "MNIST Dirichlet .3": ({"dataset": "mnist", "partition": "dirichlet:0.3:300"}, 0),
}
"""Case → run config keys, and the sites of its natural split; 0: as many as take part."""


@dataclass(frozen=True)
class WatchedState:
    """States of the rules beside the run, by label; the true ones last."""

    rules: dict[str, Any] = field(default_factory=dict)


class Watch(Oracle):
    """The true noise's weights; its journal says how far other rules' are from theirs."""

    name = "few-sites"

    def __init__(self, config: RunConfig) -> None:
        """Prepare the rules of ``LABELS``, and each with the true noise."""
        self.rules = {
            f"{name}, {kind}": make(
                replace(
                    config,
                    settings={name: {"estimator": "disclosed"} if kind == "disclosed" else {}},
                )
            )
            for name, make in RULES.items()
            for kind in ("estimated", "disclosed", "true")
        }
        super().__init__(config)

    def declare(self) -> Declaration:
        """Declare the noise, and what ``mmse`` takes beside it."""
        return Declaration(frozenset({"noise-std"}), frozenset({"declared-records", "batch-size"}))

    def initial_state(self, disclosed: Disclosed | None = None) -> WatchedState:
        """Return the first state of each rule."""
        return WatchedState({k: rule.initial_state(disclosed) for k, rule in self.rules.items()})

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the true noise's step, with each rule's largest difference."""
        n = len(updates.sites)
        variances = np.square(updates.disclosed["noise-std"])
        true = NoiseEstimate(variances, ("true",) * n, np.ones(n), np.ones(n, dtype=np.bool_))
        states, weights = {}, {}
        for label, rule in self.rules.items():
            seen = replace(updates, noise=true) if label.endswith("true") else updates
            states[label], outcome = rule.combine(state.rules[label], seen, noise)
            weights[label] = outcome.weights
        _, outcome = super().combine(None, updates, noise)
        gauges = {
            label: float(np.abs(weights[label] - weights[f"{label.split(',')[0]}, true"]).max())
            for label in LABELS
        }
        return WatchedState(states), replace(outcome, gauges={**outcome.gauges, **gauges})


@dataclass(frozen=True, kw_only=True)
class FewSites(Study):
    """Shares of rounds that are off, by case, number of sites and rule."""

    takes = ("--seeds", "--rounds", "--columns")

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run the cases; count rounds."""
        cases = select_or_all(tuple(CASES), options.columns, "--columns")
        seeds = options.seeds or (8 if options.full else 1)
        jobs = {
            (case, n, seed): self.job(case, n, seed, options, folder)
            for case in cases
            for n in COUNTS
            for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        }
        runs = run_jobs(list(jobs.values()), options, self.name)
        off: dict[tuple[str, int, str], list[bool]] = {}
        for (case, n, _), job in jobs.items():
            for event in runs[job.terms.run_id]:
                for label in LABELS:
                    found = event["gauges"][label] > OFF
                    off.setdefault((case, n, label), []).append(found)
        shares = {place: 100 * float(np.mean(found)) for place, found in off.items()}
        rows = [
            (f"{case}, {n}", *(f"{shares[case, n, label]:.0f}" for label in LABELS))
            for case in cases
            for n in COUNTS
        ]
        means = (np.mean([shares[c, n, label] for c in cases for n in COUNTS]) for label in LABELS)
        rows.append(("mean", *(f"{mean:.1f}" for mean in means)))
        plot_columns(
            {
                "rounds that are off": {
                    label: {f"{c}, {n}": (shares[c, n, label], 0.0) for c in cases for n in COUNTS}
                    for label in LABELS
                }
            },
            folder / f"{self.name}.png", "% of the rounds", self.title,
        )  # fmt: skip
        title = f"rounds with a weight over {OFF} from that of the true noise, %; {len(jobs)} runs"
        cells = [
            {"case": case, "sites": n, "rule": label, "off": share}
            for (case, n, label), share in shares.items()
        ]
        return Findings((Table(title, ("", *LABELS), tuple(rows)),), {"cells": cells}, self.notes)

    def job(self, case: str, n: int, seed: int, options: Options, folder: Path) -> RunJob:
        """Return a run of ``n`` sites, drawn among those of a natural split."""
        config, sites = CASES[case]
        if case == "chem97":
            split = outer_split(case, options.data_dir)
            config = {**config, **write_split(split, folder / f"{case}.npz")}
        sites = sites or n
        present = np.random.default_rng(seed).permutation(sites)[:n]
        run = RunConfig.parse(
            {
                "strategy": f"{__name__}:Watch", "model": "logreg", "rounds": ROUNDS,
                "learning-rate": 0.3, "delta": 1e-4,
                "batch-sizes": "16,32,64", "evaluation": "none", **config, "seed": seed,
                "data-dir": options.data_dir,
                "runs-dir": str((folder / "runs").absolute()),
            }
        )  # fmt: skip
        absent = tuple(i for i in range(sites) if i not in present)
        stop = options.rounds if options.rounds < ROUNDS else 0
        return with_run_name(RunJob(run, sites, stop, absent=absent))


FEW_SITES = FewSites(
    name="few-sites",
    title="Weights of two to four sites, estimated and disclosed",
    source="ours (no paper)",
    minutes=2,
    notes=(
        "The ε are drawn from .3 to 8, the batch sizes from 16, 32 and 64; 12 rounds.",
        "disclosed: each site discloses noise-std, which is believed if its updates agree.",
    ),
)
