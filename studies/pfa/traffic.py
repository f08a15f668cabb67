"""Traffic of PFA and PFA+: bytes of real messages, both ways.

Liu, Lou, Xiong, Liu and Meng (VLDB 2021): MNIST, M = 50 sites of which 5 are public, 0.8 of them a
round, 100 rounds. The paper counts only the uplink. Sites take one local step here: the size of a
message does not depend on the learned model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import Event
from hdpfl_tools.simulation.in_process.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.study import OF_DATA, Findings, Options, Study, Table, run_jobs
from studies.pfa.mixgauss import BASE, ROUNDS

SITES, PUBLIC = 50, 5
RULES = ("fedavg", "pfa", "pfa-plus")
MODELS = ("logreg", "cnn")
QUICK_ROUNDS = 10

PAPER_UPLINK = {
    ("logreg", "fedavg"): 113.0,
    ("logreg", "pfa"): 113.0,
    ("logreg", "pfa-plus"): 12.0,
    ("cnn", "fedavg"): 377.0,
    ("cnn", "pfa"): 377.0,
    ("cnn", "pfa-plus"): 40.0,
}
"""Printed megabytes of 100 rounds.

40 sites × 100 rounds × 7,850 × 4 bytes are 119.8 MiB.
"""

MIB = 2.0**20

Paper = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Traffic:
    """Mebibytes of a run, by way."""

    up: float
    down: float

    @property
    def total(self) -> float:
        """Total of both ways."""
        return self.up + self.down


def traffic(events: Sequence[Event], rounds: int) -> Traffic:
    """Return the traffic of ``rounds`` rounds, extrapolated from a run.

    The run has at least two of them, or all.

    Rounds that were not run count as the mean of those after the first, which is a warm-up.
    """
    up, down = (
        np.array([float(event[way]) for event in events[:rounds]])
        for way in ("bytes_up", "bytes_down")
    )
    missing = rounds - len(up)

    def all_of(counted: Any) -> float:
        later = float(counted[1:].mean()) if len(counted) > 1 else float(counted.mean())
        return (float(counted.sum()) + missing * later) / MIB

    return Traffic(all_of(up), all_of(down))


@dataclass(frozen=True, kw_only=True)
class Megabytes(Study):
    """Uplink, downlink and total of FedAvg, PFA and PFA+."""

    takes = ("--rounds", "--strategies", *OF_DATA)

    @property
    def data(self) -> tuple[str, ...]:
        """Data sets of its cases."""
        return ("mnist",)

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run FedAvg, PFA and PFA+ for some rounds; count message bytes."""
        models = (options.model,) if options.model else MODELS
        rules = options.strategies or RULES
        jobs = {(m, r): self.job(m, r, options, folder) for m in models for r in rules}
        runs = run_jobs(list(jobs.values()), options, self.name)
        sent = {place: traffic(runs[j.terms.run_id], ROUNDS) for place, j in jobs.items()}
        counted = min(len(runs[job.terms.run_id]) for job in jobs.values())
        note = f"The bytes are counted over {counted} rounds" + (
            "."
            if counted >= ROUNDS
            else f"; the later rounds up to {ROUNDS} are taken to be like them."
        )
        paper = {} if options.dataset else PAPER_UPLINK  # of MNIST's images
        return Findings(
            (_table(sent, paper),), {"cells": _numbers(sent, paper)}, (*self.notes, note)
        )

    def job(self, model: str, rule: str, options: Options, folder: Path) -> RunJob:
        """Return the counted run."""
        epsilons = ["10"] * PUBLIC + ["0.1"] * (SITES - PUBLIC)
        config = {
            **BASE,
            "partition": "iid",
            "model": model,
            "strategy": rule,
            "local-steps": 1,
            "learning-rate": 0.01,
            "evaluation": "none",
            "calibration": "pfa",
            **({"pfa.subspace": "mean"} if rule == "pfa" else {}),
            "epsilons": ",".join(epsilons),
            "data-dir": options.data_dir,
            "runs-dir": str((folder / "runs").absolute()),
        }
        if options.dataset:
            config["dataset"] = options.dataset
        stop = options.rounds or (0 if options.full else QUICK_ROUNDS)
        return with_run_name(RunJob(RunConfig.parse(config), SITES, stop if stop < ROUNDS else 0))


MEGABYTES = Megabytes(
    name="pfa-megabytes",
    title="Bytes on the wire: FedAvg, PFA and PFA+",
    source="PFA, its table of communication (uplink, 100 rounds, M = 50)",
    minutes=2,
    notes=(
        "The number in brackets is the paper's uplink. 40 sites × 100 rounds × p × 4 bytes are "
        "5 % above its 113 and 377; its 12 and 40 are a tenth of that.",
        "The paper's downlink is not counted, because sending the subspace back would cost "
        "what the uplink saves. Our PFA+ sends no subspace: a site rebuilds it from the last "
        "two models.",
        "A private site that was not asked in the round before lacks the model of that round "
        "and sends its whole update. With 0.8 of the sites in each round this is a fifth of "
        "the sites.",
        "Our network 'cnn' has 28,938 parameters; PFA's network has 26,010.",
        "Each message also carries the terms of the run, about 1 kB, which is counted.",
    ),
)


def _table(counted: Mapping[tuple[str, str], Traffic], paper: Paper) -> Table:
    rows = []
    for (model, rule), sent in counted.items():
        printed = paper.get((model, rule))
        up = f"{sent.up:.1f}" + (f" ({printed:g})" if printed else "")
        rows.append((f"{model}, {rule}", up, f"{sent.down:.1f}", f"{sent.total:.1f}"))
    head = ("", "uplink", "downlink", "total")
    return Table(f"MiB in {ROUNDS} rounds, {SITES} sites, {PUBLIC} public sites", head, tuple(rows))


def _numbers(counted: Mapping[tuple[str, str], Traffic], paper: Paper) -> list[dict[str, Any]]:
    return [
        {
            "model": model,
            "row": rule,
            "uplink-mib": sent.up,
            "downlink-mib": sent.down,
            "total-mib": sent.total,
            "paper-uplink-mb": paper.get((model, rule)),
        }
        for (model, rule), sent in counted.items()
    ]
