"""Learning rates of a comparison's rows, each tuned over one grid on seeds of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hdpfl_flower.models.site_summary import is_error
from hdpfl_flower.monitoring.journal import Event
from hdpfl_tools.simulation.in_process.comparison import RunJob
from hdpfl_tools.simulation.in_process.metrics_by_site import record_metric
from server_app.run.final_measures import folder_name

APART = 10_000
"""Distance of the tuning seeds from those of the table."""


@dataclass(frozen=True)
class TuningJob(RunJob):
    """Run of a row at one rate of the grid.

    Attributes:
        rate: the sites' learning rate.
        of: the row that is tuned.
    """

    rate: float = 0.0
    of: str = ""


@dataclass(frozen=True)
class TunedRate:
    """The best rate of a row.

    Attributes:
        rate: with the best mean over the seeds.
        rates: the grid.
        seeds: the first and the last seed that chose it.
    """

    rate: float
    rates: tuple[float, ...]
    seeds: tuple[int, int]

    def __str__(self) -> str:
        """Return the rate, its grid and seeds, with a warning at the edge of the grid."""
        first, last = self.seeds
        grid = ", ".join(f"{rate:g}" for rate in self.rates)
        at_edge = len(self.rates) > 1 and self.rate in (min(self.rates), max(self.rates))
        edge = "; it is at the edge of the grid, so a wider grid may do better" if at_edge else ""
        return f"rate {self.rate:g}, the best of {grid} on seeds {first} to {last}{edge}"


def tuning_jobs(jobs: Iterable[RunJob], rates: Sequence[float]) -> list[TuningJob]:
    """Return a job for each job of the table and each rate, with a seed ``APART`` from it."""
    tuning = []
    for job in jobs:
        row, seed = job.key
        for rate in rates:
            name = f"{row}, rate {rate:g}"
            config = job.config.updated(
                learning_rate=rate, seed=seed + APART, run_id=folder_name(name, seed + APART)
            )
            tuning.append(TuningJob(config, job.num_sites, row=name, rate=rate, of=row))
    return tuning


def tuned(ended: Sequence[tuple[TuningJob, Sequence[Event]]]) -> dict[str, TunedRate]:
    """Return each row's best rate; a run without the metric counts as the worst."""
    results: dict[str, dict[float, list[float]]] = {}
    for job, events in ended:
        metric = record_metric(job.terms)
        value = float(events[-1]["metrics"].get(metric, np.nan)) if events else np.nan
        gain = -value if is_error(metric) else value
        row = results.setdefault(job.of, {}).setdefault(job.rate, [])
        row.append(gain if np.isfinite(gain) else -np.inf)
    seeds = [job.config.simulation.seed for job, _ in ended]
    return {
        row: TunedRate(
            max(sorted(rates), key=lambda rate: _gain(rates[rate])),
            tuple(sorted(rates)),
            (min(seeds), max(seeds)),
        )
        for row, rates in results.items()
    }


def _gain(gains: list[float]) -> tuple[int, float]:
    """Return the runs that have a metric, and its mean over them: more runs are better first."""
    finite = [gain for gain in gains if np.isfinite(gain)]
    return len(finite), float(np.mean(finite)) if finite else -np.inf


def at_tuned_rates(jobs: Iterable[RunJob], rates: dict[str, TunedRate]) -> list[RunJob]:
    """Return the jobs of the table, each at its row's rate."""
    return [
        replace(job, config=job.config.updated(learning_rate=rates[job.key[0]].rate))
        for job in jobs
    ]
