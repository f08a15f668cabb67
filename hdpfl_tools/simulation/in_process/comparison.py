"""Strategies over several seeds, in process, on equal data and noise."""

from __future__ import annotations

import concurrent.futures
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Queue
from threading import RLock, Thread, Timer
from typing import Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError, TermsError
from hdpfl_flower.models.site_summary import METRICS, PERSONAL, SITE
from hdpfl_flower.monitoring.journal import Event
from hdpfl_tools.simulation.in_process.in_process_run import on_rounds, run_in_process
from hdpfl_tools.simulation.in_process.liars import Attack
from hdpfl_tools.simulation.in_process.worker_pool import make_manager, make_pool
from server_app.run.final_measures import folder_name
from server_app.run.rounds import ready_kernel

OnRound = Callable[[], None]
AnyJob = TypeVar("AnyJob", bound="RunJob")
WORTH = 5.0
"""Seconds of waiting work that justify another process: about the cost of an import of PyTorch.
Shorter comparisons start none, and none takes twice as long for it."""


@dataclass(frozen=True)
class RunJob:
    """One run: a strategy, a seed.

    Attributes:
        config: its configuration.
        num_sites: sites that take part.
        stop_after: rounds after which it ends, with the noise of all of them; 0: none.
        attack: sites that overstate their ε; None: all are honest.
        row: its name among others; empty: the strategy's.
    """

    config: RunConfig
    num_sites: int
    stop_after: int = 0
    attack: Attack | None = None
    row: str = ""

    @property
    def terms(self) -> RunTerms:
        """The terms that its sites are sent."""
        return self.config.terms

    @property
    def key(self) -> tuple[str, int]:
        """The row and the seed, which no two jobs share."""
        return self.row or self.config.terms.strategy, self.config.simulation.seed


@dataclass
class Comparison:
    """The rounds of the runs, and metrics by strategy.

    Attributes:
        config: the terms that they have in common.
        num_sites: sites in each.
        rounds: (strategy, seed) → the run's round events; a run that was interrupted is absent.
        names: the strategies in the order they were asked for.
        tuned: strategy → the sites' learning rate that a grid chose.
    """

    config: RunConfig
    num_sites: int
    rounds: dict[tuple[str, int], list[Event]] = field(default_factory=dict)
    names: Sequence[str] = ()
    tuned: dict[str, float] = field(default_factory=dict)

    @property
    def terms(self) -> RunTerms:
        """Common terms of the strategies, as sent to sites."""
        return self.config.terms

    def strategies(self) -> list[str]:
        """Return the strategies with a finished run, in the order of ``names``."""
        done = dict.fromkeys(strategy for strategy, _ in self.rounds)
        return sorted(done, key=lambda name: self.names.index(name) if name in self.names else 0)

    def metrics(self) -> list[str]:
        """Return all metric names of the rounds, pooled ones first."""
        events = (event for events in self.rounds.values() for event in events)
        names = {name for event in events for name in event["metrics"]}
        return sorted(names | {"accuracy"}, key=_order)

    def metric(self, strategy: str, metric: str = "accuracy") -> npt.NDArray[np.float64]:
        """Return a metric by round, shape ``(seeds, rounds)``; missing values are NaN.

        A run with used-up budgets has fewer rounds. Personal models are tested after the last
        round alone.
        """
        runs = self._runs(strategy)
        values = np.full((len(runs), max(map(len, runs), default=0)), np.nan)
        for row, events in zip(values, runs, strict=True):
            row[: len(events)] = [float(e["metrics"].get(metric, np.nan)) for e in events]
        return values

    def last(self, strategy: str, metric: str) -> npt.NDArray[np.float64]:
        """Return a metric after each run's last round, shape ``(seeds,)``."""
        ends = [events[-1]["metrics"] if events else {} for events in self._runs(strategy)]
        return np.array([float(metrics.get(metric, np.nan)) for metrics in ends])

    def by_seed(self, metric: str) -> dict[str, dict[int, float]]:
        """Return strategy → seed → a metric after the last round; NaN: the run has none."""
        results: dict[str, dict[int, float]] = {name: {} for name in self.strategies()}
        for (name, seed), events in sorted(self.rounds.items()):
            value = float(events[-1]["metrics"].get(metric, np.nan)) if events else np.nan
            results[name][seed] = value if np.isfinite(value) else np.nan
        return results

    def tested(self, strategy: str) -> list[Event]:
        """Return each seed's sites in the last test; empty without one.

        ``sites`` is how many were to be counted, ``counted`` how many each metric's mean is over,
        ``missing`` why the others are not, and ``without-personal-model`` the sites without one.
        """
        return [events[-1].get("tested", {}) if events else {} for events in self._runs(strategy)]

    def save(self, path: Path) -> None:
        """Write all results as JSON; missing and infinite numbers are null."""
        metrics = self.metrics()
        content = {
            "terms": self.config.as_config(),
            "clients": self.num_sites,
            "results": {
                name: {
                    "seeds": sorted(seed for other, seed in self.rounds if other == name),
                    **{m: _known(self.metric(name, m)) for m in metrics},
                    "tested": self.tested(name),
                    **({"learning-rate": self.tuned[name]} if name in self.tuned else {}),
                }
                for name in self.strategies()
            },
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")

    def _runs(self, strategy: str) -> list[list[Event]]:
        return [events for (name, _), events in sorted(self.rounds.items()) if name == strategy]


def _order(metric: str) -> tuple[int, int, str]:
    """Return a metric's sort key: pooled, site, personal; accuracy before loss."""
    prefixes = [metric.startswith(prefix) for prefix in (SITE, PERSONAL)]
    words = metric.split("-")
    places = [place for place, name in enumerate(METRICS) if name in words]
    return prefixes[0] + 2 * prefixes[1], (*places, len(METRICS))[0], metric


def _known(values: npt.NDArray[np.float64]) -> list[list[float | None]]:
    return [[value if np.isfinite(value) else None for value in row] for row in values.tolist()]


def jobs_of(
    config: RunConfig, strategies: Sequence[str], seeds: int, num_sites: int
) -> list[RunJob]:
    """Return jobs for all strategies and seeds; seeds count up from the configuration's.

    With the same seed the sites' data, budgets, batches and noise are the same for every strategy,
    so that differences between strategies are not differences in luck.
    """
    first = config.simulation.seed
    return [
        RunJob(config.updated(strategy=s, seed=seed, run_id=folder_name(s, seed)), num_sites)
        for seed in range(first, first + seeds)
        for s in strategies
    ]


def jobs_by_noise(
    config: RunConfig, strategies: Sequence[str], noises: Sequence[str], seeds: int, num_sites: int
) -> list[RunJob]:
    """Return jobs as :func:`jobs_of` under each source of noise, a row a strategy and source.

    A source runs the strategies that it allows; where it allows none of them, its default.
    """
    jobs = list[RunJob]()
    for noise in noises:
        under = config.with_noise(noise)
        names = [name for name in strategies if _is_possible(under.updated(strategy=name))]
        for job in jobs_of(under, names or [under.terms.strategy], seeds, num_sites):
            row = f"{job.terms.strategy}, {noise}"
            run_id = folder_name(row, job.config.simulation.seed)
            jobs.append(replace(job, row=row, config=job.config.updated(run_id=run_id)))
    return jobs


def _is_possible(config: RunConfig) -> bool:
    try:
        ready_kernel(config)
    except (TermsError, StrategyError):
        return False
    return True


def compare(
    jobs: Sequence[AnyJob],
    processes: int,
    on_round: OnRound,
    work: Callable[[AnyJob, OnRound], list[Event]] | None = None,
) -> Iterator[tuple[AnyJob, list[Event]]]:
    """Run the jobs; yield each with its events as it ends.

    Args:
        jobs: in the order of their start.
        processes: how many at a time, a core each. This one is the first; others are started only
            when the jobs have taken ``WORTH`` seconds and there are some left.
        on_round: called after every round of every job.
        work: it runs a job, and can be sent to another process. None: :func:`run_job`.

    Raises:
        HDPFLError: from the first job that cannot run.
    """
    work = work or run_job
    with Helpers(jobs, min(processes, len(jobs)) - 1, work, on_round) as helpers:
        while (job := helpers.take()) is not None:
            yield job, work(job, on_round)
            yield from helpers.done()
        yield from helpers.done(wait=True)


class Helpers(Generic[AnyJob]):
    """Additional processes for a list of jobs known to be long."""

    def __init__(
        self,
        jobs: Sequence[AnyJob],
        number: int,
        work: Callable[[AnyJob, OnRound], list[Event]],
        on_round: OnRound,
    ) -> None:
        """Prepare ``number`` of them; none is started before ``WORTH`` seconds."""
        self._todo, self._number, self._work, self._on_round = deque(jobs), number, work, on_round
        self._running: dict[Future[list[Event]], AnyJob] = {}
        self._lock, self._open = RLock(), ExitStack()
        self._pool: ProcessPoolExecutor | None = None
        self._timer = Timer(WORTH, self._start)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        """Begin to count the seconds."""
        if self._number > 0:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Drop the waiting jobs; wait for the running ones."""
        self._timer.cancel()
        with self._lock:
            self._todo.clear()
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        self._open.close()

    def take(self) -> AnyJob | None:
        """Return this process's next job; None if all have begun."""
        with self._lock:
            return self._todo.popleft() if self._todo else None

    def done(self, *, wait: bool = False) -> Iterator[tuple[AnyJob, list[Event]]]:
        """Yield finished jobs of other processes; with ``wait`` all."""
        while True:
            with self._lock:
                running = list(self._running)
            ended = [future for future in running if future.done()]
            for future in ended:
                yield self._running.pop(future), future.result()
            if not (wait and running):
                return
            if not ended:
                concurrent.futures.wait(running, return_when=FIRST_COMPLETED)

    def _start(self) -> None:
        with self._lock:
            if not self._todo:
                return
            ticks = self._open.enter_context(make_manager()).Queue()
            self._open.enter_context(_relayed(ticks, self._on_round))
            self._tick = partial(ticks.put, 1)
            self._pool = make_pool(min(self._number, len(self._todo)))
            for _ in range(self._number):
                self._feed()

    def _feed(self, _: object = None) -> None:
        """Give a free process its next job, if this one can spare it."""
        with self._lock:
            if self._pool is None or not self._todo:
                return
            job = self._todo.popleft()
            future = self._pool.submit(self._work, job, self._tick)
            self._running[future] = job
        future.add_done_callback(self._feed)


def run_job(job: RunJob, on_round: OnRound, *, resumable: bool = False) -> list[Event]:
    """Run one job in this process and return its round events.

    ``resumable`` is that of ``run_in_process``.
    """
    return run_in_process(
        job.config,
        job.num_sites,
        on_rounds(on_round),
        stop_after=job.stop_after,
        attack=job.attack,
        resumable=resumable,
    ).rounds


@contextmanager
def _relayed(ticks: Queue[int], on_round: OnRound) -> Iterator[Queue[int]]:
    """Call ``on_round`` for each 1 that workers put into the queue."""

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
