"""Several strategies over several seeds, in process, on the same data, budgets and noise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.models.site_summary import METRICS, PERSONAL, SITE
from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.simulation.attacks import Attack
from server_app.simulation.in_process_run import run_in_process
from server_app.simulation.worker_pool import make_manager, make_pool

OnRound = Callable[[], None]
AnyJob = TypeVar("AnyJob", bound="RunJob")


@dataclass(frozen=True)
class RunJob:
    """One run: a strategy, a seed.

    Attributes:
        config: its configuration.
        num_sites: sites that take part.
        stop_after: rounds after which it ends, with the noise of all of them; 0: none.
        attack: what some sites do in place of their part; None: nothing.
        absent: partitions of the sites that take no part; their records are not used.
    """

    config: RunConfig
    num_sites: int
    stop_after: int = 0
    attack: Attack | None = None
    absent: tuple[int, ...] = ()

    @property
    def terms(self) -> RunTerms:
        """The terms that its sites are sent."""
        return self.config.terms

    @property
    def key(self) -> tuple[str, int]:
        """The strategy and the seed, which no two jobs share."""
        return self.config.terms.strategy, self.config.simulation.seed


@dataclass
class Comparison:
    """The rounds of the runs, and metrics by strategy.

    Attributes:
        config: what they have in common.
        num_sites: sites in each.
        rounds: (strategy, seed) → the run's round events; a run that was interrupted is absent.
        names: the strategies in the order they were asked for.
    """

    config: RunConfig
    num_sites: int
    rounds: dict[tuple[str, int], list[Event]] = field(default_factory=dict)
    names: Sequence[str] = ()

    @property
    def terms(self) -> RunTerms:
        """What they have in common of the terms that sites are sent."""
        return self.config.terms

    def strategies(self) -> list[str]:
        """Return the strategies with a finished run, in the order of ``names``."""
        done = dict.fromkeys(strategy for strategy, _ in self.rounds)
        return sorted(done, key=lambda name: self.names.index(name) if name in self.names else 0)

    def metrics(self) -> list[str]:
        """Return the name of every metric that a round has, pooled ones first."""
        events = (event for events in self.rounds.values() for event in events)
        found = {name for event in events for name in event["metrics"]}
        return sorted(found | {"accuracy"}, key=_order)

    def metric(self, strategy: str, metric: str = "accuracy") -> npt.NDArray[np.float64]:
        """Return a metric after each round, shape ``(seeds, rounds)``, NaN where there is none.

        A run whose budgets were used up has fewer rounds. Personal models are tested after the last
        round alone.
        """
        runs = self._runs(strategy)
        found = np.full((len(runs), max(map(len, runs), default=0)), np.nan)
        for row, events in zip(found, runs, strict=True):
            row[: len(events)] = [float(e["metrics"].get(metric, np.nan)) for e in events]
        return found

    def last(self, strategy: str, metric: str) -> npt.NDArray[np.float64]:
        """Return a metric after each run's own last round, shape ``(seeds,)``."""
        ends = [events[-1]["metrics"] if events else {} for events in self._runs(strategy)]
        return np.array([float(metrics.get(metric, np.nan)) for metrics in ends])

    def tested(self, strategy: str) -> list[Event]:
        """Return of each seed which sites the last round's test counts; empty where it tests none.

        ``sites`` is how many were to be counted, ``counted`` how many each metric's mean is over,
        ``missing`` why the others are not, and ``without-personal-model`` who has none.
        """
        return [events[-1].get("tested", {}) if events else {} for events in self._runs(strategy)]

    def save(self, path: Path) -> None:
        """Write everything as JSON; what is not finite or not there is null."""
        metrics = self.metrics()
        content = {
            "terms": self.config.as_config(),
            "clients": self.num_sites,
            "results": {
                name: {
                    "seeds": sorted(seed for other, seed in self.rounds if other == name),
                    **{m: _known(self.metric(name, m)) for m in metrics},
                    "tested": self.tested(name),
                }
                for name in self.strategies()
            },
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")

    def _runs(self, strategy: str) -> list[list[Event]]:
        return [events for (name, _), events in sorted(self.rounds.items()) if name == strategy]


def _order(metric: str) -> tuple[int, int, str]:
    """Return the key of the order of metrics: pooled, by site, personal; accuracy before loss."""
    starts = [i for i, start in enumerate((SITE, PERSONAL), 1) if metric.startswith(start)]
    words = metric.split("-")
    place = [i for i, name in enumerate(METRICS) if name in words]
    return (*starts, 0)[0], (*place, len(METRICS))[0], metric


def _known(values: npt.NDArray[np.float64]) -> list[list[float | None]]:
    return [[value if np.isfinite(value) else None for value in row] for row in values.tolist()]


def jobs_of(config: RunConfig, strategies: list[str], seeds: int, num_sites: int) -> list[RunJob]:
    """Return a job for every strategy and seed; seeds count up from the configuration's own.

    With the same seed the sites' data, budgets, batches and noise are the same for every strategy,
    so that differences between strategies are not differences in luck.
    """
    first = config.simulation.seed
    return [
        RunJob(
            config.updated(
                strategy=s,
                seed=first + i,
                run_id=f"{re.sub('[+:]', '.', s)}-seed{first + i}",  # it names a folder
            ),
            num_sites,
        )
        for i in range(seeds)
        for s in strategies
    ]


def compare(
    jobs: Sequence[AnyJob],
    processes: int,
    on_round: OnRound,
    work: Callable[[AnyJob, OnRound], list[Event]] | None = None,
) -> Iterator[tuple[AnyJob, list[Event]]]:
    """Run the jobs and yield each with its round events as it ends.

    Args:
        jobs: what to run.
        processes: how many at a time, a core each; 1 runs them here.
        on_round: called after every round of every job.
        work: what runs a job; it can be sent to another process. None: :func:`run_job`.

    Raises:
        HDPFLError: from the first job that cannot run.
    """
    work = work or run_job
    if processes == 1 or len(jobs) == 1:
        for job in jobs:
            yield job, work(job, on_round)
        return
    with make_manager() as manager, _relayed(manager.Queue(), on_round) as ticks:
        pool = make_pool(min(processes, len(jobs)))
        try:
            futures: dict[Future[list[Event]], AnyJob] = {
                pool.submit(work, job, partial(ticks.put, 1)): job for job in jobs
            }
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            # Also after an error: what has not begun is dropped, what runs is waited for.
            pool.shutdown(cancel_futures=True)


def run_job(job: RunJob, on_round: OnRound) -> list[Event]:
    """Run one job in this process and return its round events."""

    def tick(event: Event) -> None:
        if event["event"] == "round":
            on_round()

    present = [index for index in range(job.num_sites) if index not in job.absent]
    result = run_in_process(
        job.config,
        job.num_sites,
        tick,
        present=present if job.absent else None,
        stop_after=job.stop_after,
        attack=job.attack,
    )
    return result.rounds


@contextmanager
def _relayed(ticks: Queue[int], on_round: OnRound) -> Iterator[Queue[int]]:
    """Call ``on_round`` for every 1 that workers put into the queue, until the block ends."""

    def listen() -> None:
        # Blocks; every round of a worker is a 1.
        while ticks.get():
            on_round()

    listener = Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield ticks
    finally:
        # 0 ends the listener.
        ticks.put(0)
        listener.join(timeout=5)
