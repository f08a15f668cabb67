"""Tables of a comparison: each strategy's accuracy, by site and pooled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.measures.clinical import SPECIFICITY, WORDS
from hdpfl_flower.models.site_summary import METRICS, PERSONAL, SITE, WORST
from hdpfl_flower.monitoring.influence import warning_lines
from hdpfl_flower.scenarios.groups import MINORITY
from server_app.in_process.metrics_by_site import best_of, better_alone, read_site_metrics
from server_app.reports.spread import mean_and_sd
from server_app.run.federated_measures import FEDERATED, HELD_OUT
from server_app.run.final_measures import EVENT, PUBLIC, read_final_measures

if TYPE_CHECKING:
    from server_app.in_process.comparison import Comparison

_ON = {EVENT: f"the {PUBLIC}", FEDERATED: f"{HELD_OUT} (noisy histograms)"}
SITES = "mean over the sites, each on records like its own"
POOLED = "pooled test set"
ALONE = "local"
"""The strategy under which each site trains by itself."""
NAMED = 20
"""Sites that a line names."""


def measure_tables(comparison: Comparison, title: str) -> Iterator[Table]:
    """Yield the tables over sites and of the pooled test set.

    Args:
        comparison: of finished runs.
        title: what the runs have in common.
    """
    known = comparison.metrics()
    if any(name.startswith((SITE, PERSONAL)) for name in known):
        yield _sites_table(comparison, f"{title}: {SITES}")
    if comparison.terms.evaluation == "server":
        yield _pooled_table(comparison, f"{title}: {POOLED}")


def final_table(
    comparison: Comparison, folders: Mapping[tuple[str, int], Path], event: str = EVENT
) -> Table | None:
    """Return all final measures, a column per strategy; None without any.

    Of one seed each with its interval of 95 %, of several the mean and the standard deviation.

    Args:
        comparison: of finished runs.
        folders: (strategy, seed) → the run's folder.
        event: which measures: on the public test set, or :data:`FEDERATED`.
    """
    found = {
        strategy: [
            facts["measures"]
            for name, seed in sorted(comparison.rounds)
            if name == strategy and (facts := read_final_measures(folders[name, seed], event))
        ]
        for strategy in comparison.strategies()
    }
    known = {measure for runs in found.values() for one in runs for measure in one}
    names = [name for name in WORDS if name in known]
    if not names:
        return None
    spread = "interval of 95 %" if max(map(len, found.values())) == 1 else "± sd over the seeds"
    table = Table(title=f"Final models on {_ON[event]}, {spread}")
    table.add_column("measure")
    for strategy in found:
        table.add_column(strategy, justify="right")
    for name in names:
        at = f" at {100 * SPECIFICITY:g} % specificity" if name == "sensitivity" else ""
        table.add_row(f"{WORDS[name]}{at}", *(_cell(runs, name) for runs in found.values()))
    return table


def unmeasured_lines(
    comparison: Comparison, folders: Mapping[tuple[str, int], Path]
) -> Iterator[str]:
    """Yield each run's sites without histograms, with the missing part.

    Args:
        comparison: of finished runs.
        folders: (strategy, seed) → the run's folder.
    """
    for name, seed in sorted(comparison.rounds):
        facts = read_final_measures(folders[name, seed], FEDERATED)
        pairs = [f"{site} ({why})" for site, why in facts.get("without", {}).items()]
        if pairs:
            yield f"{name}, seed {seed}: without a histogram of scores: {_some(pairs)}"
        for why, measures in _by_reason(facts.get("missing", {})).items():
            yield f"{name}, seed {seed}: {HELD_OUT}: no {', '.join(measures)}: {why}"


def _by_reason(missing: Mapping[str, str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for measure, why in missing.items():
        found.setdefault(why, []).append(WORDS[measure])
    return found


def _cell(runs: Sequence[Mapping[str, Mapping[str, float]]], name: str) -> str:
    """Return a measure over its seeds, or one seed's with interval."""
    values = [run[name] for run in runs if name in run]
    if len(values) == 1 and None not in values[0].values():
        return "{value:.3f} [{low:.3f}, {high:.3f}]".format(**values[0])
    return mean_and_sd(np.array([one["value"] for one in values] or [np.nan]))


def counted_lines(comparison: Comparison) -> Iterator[str]:
    """Yield each run's sites outside the means, with reasons."""
    for strategy in comparison.strategies():
        seeds = sorted(seed for name, seed in comparison.rounds if name == strategy)
        for seed, tested in zip(seeds, comparison.tested(strategy), strict=True):
            if missing := tested.get("missing", {}):
                pairs = [f"{site} ({why})" for site, why in missing.items()]
                yield f"{strategy}, seed {seed}: not counted: {_some(pairs)}"
            if without := tested.get("without-personal-model", []):
                yield f"{strategy}, seed {seed}: without a personal model: {_some(without)}"


def deciding_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the dominant site (over half of the model) of each run."""
    for (strategy, seed), rounds in sorted(comparison.rounds.items()):
        for line in warning_lines(rounds):
            yield f"{strategy}, seed {seed}: warning: {line}"


def alone_table(comparison: Comparison, folders: Mapping[tuple[str, int], Path]) -> Table | None:
    """Return the sites better off alone, by strategy; None without ``local``.

    Args:
        comparison: of finished runs.
        folders: (strategy, seed) → the run's folder.
    """
    metric = _by_record(comparison)
    seeds = sorted(seed for name, seed in comparison.rounds if name == ALONE)
    alone = {seed: read_site_metrics(folders[ALONE, seed]) for seed in seeds}
    others = [name for name in comparison.strategies() if name != ALONE]
    if not others or not any(best_of(found, metric) for found in alone.values()):
        return None
    table = Table(title=f"Better off alone ('{ALONE}', under the same budget)")
    for column in ("strategy", "sites", "which (first seed)"):
        table.add_column(column)
    for name in others:
        found = [
            better_alone(alone[seed], read_site_metrics(folders[name, seed]), metric)
            for seed in seeds
            if (name, seed) in comparison.rounds
        ]
        if not found:
            continue
        counts = f"{np.mean([len(sites) for sites, _ in found]):.3g} of {found[0][1]}"
        table.add_row(name, counts, _some(found[0][0]) or "none")
    return table


def picture_of(comparison: Comparison) -> tuple[str, dict[str, str]]:
    """Return the picture's axis label, and panel → metric.

    For a regression the mean squared error: R² has no lower end. For survival the loss: each record
    has one, while concordance is of pairs.
    """
    metric = _by_record(comparison)
    known = comparison.metrics()
    panels = {SITES: f"{SITE}{metric}"} if f"{SITE}{metric}" in known else {}
    if comparison.terms.evaluation == "server" or not panels:
        panels[POOLED] = metric
    return {"mse": "mean squared error"}.get(metric, metric), panels


def _by_record(comparison: Comparison) -> str:
    """Return the metric that is a record mean on own distributions."""
    task = task_for(comparison.terms)
    return "accuracy" if task.classes else "loss" if task.intervals else "mse"


def _sites_table(comparison: Comparison, title: str) -> Table:
    """Return rows per strategy, and for its personal models."""
    names = [m for m in METRICS if any(f"{p}{m}" in comparison.metrics() for p in (SITE, PERSONAL))]
    columns = [suffix for name in names for suffix in _with_worst(name)]
    table = Table(title=title)
    table.add_column("strategy")
    for column in (*(_heading(comparison, column) for column in columns), "sites", "seeds"):
        table.add_column(column, justify="right")
    for strategy in comparison.strategies():
        for prefix, label in ((SITE, strategy), (PERSONAL, f"{strategy}: personal models")):
            values = {c: comparison.last(strategy, f"{prefix}{c}") for c in columns}
            if all(np.isnan(one).all() for one in values.values()):
                continue
            counted = _counted(comparison, strategy, prefix)
            seeds = str(len(comparison.tested(strategy)))
            table.add_row(label, *map(mean_and_sd, values.values()), counted, seeds)
    return table


def _pooled_table(comparison: Comparison, title: str) -> Table:
    known = comparison.metrics()
    first = "concordance" if task_for(comparison.terms).intervals else "accuracy"
    others = (name for name in (MINORITY, *METRICS) if name in known and name != "accuracy")
    columns = list(dict.fromkeys([first, *others]))
    table = Table(title=title)
    table.add_column("strategy")
    for column in (*(_heading(comparison, column) for column in columns), "best round", "seeds"):
        table.add_column(column, justify="right")
    for strategy in comparison.strategies():
        values = [comparison.last(strategy, column) for column in columns]
        rounds = comparison.metric(strategy, first)
        means = rounds.mean(0)
        best = str(int(np.nanargmax(means)) + 1) if np.isfinite(means).any() else "–"
        table.add_row(strategy, *map(mean_and_sd, values), best, str(len(rounds)))
    return table


def _with_worst(metric: str) -> tuple[str, ...]:
    return (metric, f"{metric}{WORST}") if metric in ("accuracy", "loss") else (metric,)


def _heading(comparison: Comparison, column: str) -> str:
    classes = task_for(comparison.terms).classes
    words = {"accuracy": "accuracy" if classes else "R²", "mse": "MSE", "mae": "MAE"}
    if column == MINORITY:
        return "smallest group"
    name = column.removesuffix(WORST)
    return "worst tenth" if name != column else words.get(name, name)


def _counted(comparison: Comparison, strategy: str, prefix: str) -> str:
    """Return the least number of sites in a row's means, of all."""
    tested = [one for one in comparison.tested(strategy) if one]
    known = [
        min(number for name, number in one["counted"].items() if name.startswith(prefix))
        for one in tested
        if any(name.startswith(prefix) for name in one["counted"])
    ]
    if not known:
        return "–"
    most = max(int(one["sites"]) for one in tested)
    return str(most) if min(known) == most else f"{min(known)} of {most}"


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more
