"""``hdpfl demo``: thirteen sites with different ε, one minute, no download."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt
import typer
from rich.table import Table

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.system.paths import runs_dir
from hdpfl_tools.coordinator.progress import console, make_table, rounds_bar, show_line
from server_app.plots import plot_demo, why_no_picture

if TYPE_CHECKING:
    from hdpfl_tools.simulation.in_process.comparison import Comparison, OnRound, RunJob

SITES, SEEDS = 13, 3
STRATEGIES = ["fedavg", "mmse", "oracle"]
TERMS = {
    "rounds": 30,
    "epsilons": "0.3,0.3,0.4,0.5,0.6,0.8,1,1.5,2,3,4,6,8",
    "batch-sizes": "8,16,32",
    "min-sites": 1,
}


def demo(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print comparison.json in place of tables.")
    ] = False,
) -> None:
    """Train on scikit-learn's digits at 13 simulated sites, each with its own ε, in one process.

    The demo shows what each site gains by joining. It also shows that the server can weigh the
    sites by their noise, which no site discloses.
    """
    from hdpfl_tools.simulation.in_process.comparison import Comparison, RunJob, compare, jobs_of

    folder = runs_dir() / f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    config = RunConfig.parse({**TERMS, "runs-dir": str(folder)})
    comparison = Comparison(config, SITES)
    jobs = jobs_of(config, STRATEGIES, SEEDS, SITES)
    rounds = (len(jobs) + SITES) * config.terms.rounds
    with rounds_bar(rounds, f"{SITES} sites, {SEEDS} seeds") as tick:
        for job, events in compare(jobs, 1, tick):
            comparison.rounds[job.key] = events
        alone = [_alone(config, site, tick) for site in range(SITES)]
    comparison.save(folder / "comparison.json")
    if as_json:
        typer.echo((folder / "comparison.json").read_text(encoding="utf-8"), nl=False)
        return
    first = f"mmse-seed{config.simulation.seed}"
    joined = RunJob(config.updated(strategy="mmse", run_id=first), SITES)
    console.print(_table(joined, comparison, alone))
    means = {name: comparison.last(name, "accuracy").mean() for name in STRATEGIES}
    console.print(
        f"FedAvg {means['fedavg']:.3f}, MMSE averaging {means['mmse']:.3f}, oracle (it receives "
        f"the noise) {means['oracle']:.3f}   (test accuracy after {config.terms.rounds} rounds, "
        f"mean of {SEEDS} seeds)"
    )
    if why := why_no_picture():
        show_line(f"there is no picture: {why}")
    else:
        picture = folder / "demo.png"
        curves = {name: comparison.metric(name) for name in STRATEGIES}
        estimated, true = (_mean(comparison, name, "noise_std") for name in ("mmse", "oracle"))
        plot_demo(curves, estimated, true, picture)
        show_line(f"picture: {picture}")
    show_line(f"all other results: {folder}")


def _alone(config: RunConfig, site: int, tick: OnRound) -> float:
    """Return the accuracy of ``site`` training alone under the same budget."""
    from hdpfl_tools.simulation.in_process.in_process_run import on_rounds, run_in_process

    config = config.updated(strategy="fedavg", run_id=f"alone-site{site}")
    result = run_in_process(config, SITES, on_rounds(tick), present=[site])
    return float(result.rounds[-1]["metrics"]["accuracy"])


def _mean(comparison: Comparison, strategy: str, number: str) -> npt.NDArray[np.float64]:
    """Return each site's mean over the first seed's rounds, ``(13,)``.

    ``number`` is ``weights``, or a gauge.
    """
    events = comparison.rounds[strategy, comparison.config.simulation.seed]
    means: npt.NDArray[np.float64] = np.mean(
        [{**event, **event["gauges"]}[number] for event in events], axis=0
    )
    return means


def _table(joined: RunJob, comparison: Comparison, alone: list[float]) -> Table:
    from hdpfl_flower.ledger.ledger import Ledger
    from hdpfl_tools.simulation.sites import draw_profile, simulated_ledger

    events = comparison.rounds[joined.key]
    together = events[-1]["metrics"]["accuracy"]
    weights = _mean(comparison, "mmse", "weights")
    rows = []
    for site in range(SITES):
        profile = draw_profile(joined.config, site, SITES)
        ledger = Ledger(simulated_ledger(joined.config, site), durable=False)
        spent, _ = ledger.account().spent()
        ledger.close()
        budget = (f"{profile.run.epsilon:g}", f"{spent:.3f}", str(profile.training.batch_size))
        accuracies = (f"{alone[site]:.3f}", f"{together:.3f}")
        rows.append((str(site), *budget, f"{weights[site]:.4f}", *accuracies))
    better = ", ".join(str(site) for site in range(SITES) if alone[site] > together) or "none"
    title = (
        "What each site gains by joining (MMSE averaging, first seed). Sites that are "
        f"better off alone: {better}"
    )
    head = ("site", "ε", "spent", "batch", "weight", "own model", "joined")
    table = make_table(title, head, rows, words=())
    table.caption = (
        "Only this demo shows the column ε: the server never sees an ε. A simulation with a "
        "seed protects nothing."
    )
    return table
