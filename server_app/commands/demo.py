"""``hdpfl demo``: thirteen sites with budgets of their own, in a minute, with no download."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.table import Table

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.system.paths import runs_dir
from server_app.progress import console, rounds_bar
from server_app.plots import plot_demo

if TYPE_CHECKING:
    from server_app.simulation.comparison import Comparison, Job, OnRound

SITES, SEEDS = 13, 3
STRATEGIES = ["fedavg", "robust-hdp", "oracle"]
TERMS = {
    "rounds": 30,
    "learning-rate": 0.5,
    "epsilons": "0.3,0.3,0.4,0.5,0.6,0.8,1,1.5,2,3,4,6,8",
    "batch-sizes": "8,16,32",
    "min-sites": 1,
}


def demo() -> None:
    """Train on scikit-learn's digits at 13 sites, each with its own ε, in process.

    Shows what joining is worth to each site, and that the server can weigh the sites' noise without
    being told anything.
    """
    from server_app.simulation.comparison import Comparison, Job, compare, jobs_of

    folder = runs_dir() / f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    terms = RunTerms.parse({**TERMS, "runs-dir": str(folder)})
    comparison = Comparison(terms, SITES)
    jobs = jobs_of(terms, STRATEGIES, SEEDS, SITES)
    with rounds_bar((len(jobs) + SITES) * terms.rounds, f"{SITES} sites, {SEEDS} seeds") as tick:
        for job, events in compare(jobs, 1, tick):
            comparison.rounds[job.key] = events
        alone = [_alone(terms, site, tick) for site in range(SITES)]
    comparison.save(folder / "comparison.json")
    joined = Job(terms.updated(strategy="robust-hdp", run_id=f"robust-hdp-seed{terms.seed}"), SITES)
    console.print(_table(joined, comparison, alone))
    means = {name: comparison.last(name, "accuracy").mean() for name in STRATEGIES}
    console.print(
        f"FedAvg {means['fedavg']:.3f}, Robust-HDP {means['robust-hdp']:.3f}, "
        f"told the noise (oracle) {means['oracle']:.3f}"
        f"   (test accuracy after {terms.rounds} rounds, mean of {SEEDS} seeds)"
    )
    curves = {name: comparison.metric(name) for name in STRATEGIES}
    picture = folder / "demo.png"
    plot_demo(curves, _weights(comparison, "robust-hdp"), _weights(comparison, "oracle"), picture)
    console.print(f"picture: {picture}\neverything else: {folder}", soft_wrap=True)


def _alone(terms: RunTerms, site: int, tick: OnRound) -> float:
    """Return the accuracy of the model that ``site`` trains alone, under the same budget."""
    from server_app.simulation.local import run_in_process

    own = terms.updated(strategy="fedavg", run_id=f"alone-site{site}")
    result = run_in_process(
        own, SITES, lambda event: tick() if event["event"] == "round" else None, present=[site]
    )
    return float(result.rounds[-1]["metrics"]["accuracy"])


def _weights(comparison: Comparison, strategy: str) -> npt.NDArray[np.float64]:
    """Return each site's mean weight over the rounds of the first seed, shape ``(13,)``."""
    events = comparison.rounds[strategy, comparison.terms.seed]
    weights: npt.NDArray[np.float64] = np.mean([event["weights"] for event in events], axis=0)
    return weights


def _table(joined: Job, comparison: Comparison, alone: list[float]) -> Table:
    from client_app.site.simulated import draw_profile, simulated_ledger
    from hdpfl_flower.ledger.ledger import Ledger

    events = comparison.rounds[joined.key]
    together = events[-1]["metrics"]["accuracy"]
    weights = _weights(comparison, "robust-hdp")
    table = Table(
        title="What joining is worth (Robust-HDP, first seed)",
        caption="The ε column is here because this is a demo: the server sees no ε, and nothing a "
        "seeded simulation does is private.",
    )
    for column in ("site", "ε", "spent", "batch", "weight", "own model", "joined"):
        table.add_column(column, justify="right")
    for site in range(SITES):
        profile = draw_profile(joined.terms, site, SITES)
        ledger = Ledger(simulated_ledger(joined.terms, site), durable=False)
        spent, _ = ledger.account().spent()
        ledger.close()
        table.add_row(
            str(site), f"{profile.run.epsilon:g}", f"{spent:.3f}", str(profile.training.batch_size),
            f"{weights[site]:.4f}", f"{alone[site]:.3f}", f"{together:.3f}",
        )  # fmt: skip
    return table
