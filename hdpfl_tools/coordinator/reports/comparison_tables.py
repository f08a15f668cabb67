"""Tables of a comparison: each strategy's accuracy, by site and pooled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.measures.words import WORDS
from hdpfl_flower.models.site_summary import METRICS, PERSONAL, SITE, WORST, is_error
from hdpfl_flower.monitoring.influence import warning_lines
from hdpfl_tools.coordinator.reports.measures import Measures, final_rows, mean_and_sd
from hdpfl_tools.measures.paired import Paired, paired
from hdpfl_tools.simulation.in_process.metrics_by_site import (
    best_of,
    better_alone,
    read_site_metrics,
    record_metric,
)
from hdpfl_tools.simulation.scenarios.groups import MINORITY
from server_app.run.federated_measures import FEDERATED, HELD_OUT
from server_app.run.final_measures import EVENT, PUBLIC, read_final_measures

if TYPE_CHECKING:
    from hdpfl_tools.simulation.in_process.comparison import Comparison

Folders = Mapping[tuple[str, int], Path]
"""(strategy, seed) → the run's folder."""

SITES = "mean over the sites, each on test records like its own"
POOLED = "pooled test set"
ALONE = "local"
"""The strategy under which each site trains by itself."""
NAMED = 20
"""Sites that a line names."""


class TextTable(NamedTuple):
    """Table of texts; see :func:`hdpfl_tools.coordinator.progress.make_table`."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] | None = None


def tables(comparison: Comparison, title: str, folders: Folders) -> Iterator[TextTable]:
    """Yield the tables over sites, of the pooled test set, of the final models, and of joining.

    Args:
        comparison: of finished runs.
        title: the terms that the runs have in common.
        folders: of the runs.
    """
    if any(name.startswith((SITE, PERSONAL)) for name in comparison.metrics()):
        yield _sites_table(comparison, f"{title}: {SITES}")
    if comparison.terms.evaluation == "server":
        yield _pooled_table(comparison, f"{title}: {POOLED}")
    for event, records in (
        (EVENT, f"the {PUBLIC}"),
        (FEDERATED, f"{HELD_OUT} (noisy histograms)"),
    ):
        runs = defaultdict[str, list[Measures]](list)
        for strategy, seed in sorted(comparison.rounds):
            measures = read_final_measures(folders[strategy, seed], event).get("measures")
            runs[strategy] += [measures] if measures else []
        if any(runs.values()):
            is_one_seed = max(map(len, runs.values())) == 1
            spread = "interval of 95 %" if is_one_seed else "± sd over the seeds"
            by_strategy = {strategy: runs[strategy] for strategy in comparison.strategies()}
            head, rows = ("measure", *by_strategy), list(final_rows(by_strategy))
            yield TextTable(f"Final models on {records}, {spread}", head, rows)
    yield from _alone_table(comparison, folders)


def lines(comparison: Comparison, folders: Folders) -> Iterator[str]:
    """Yield each run's sites outside of its measures, with reasons, and its dominant sites.

    A dominant site has over half of the model.
    """
    for (strategy, seed), rounds in sorted(comparison.rounds.items()):
        run = f"{strategy}, seed {seed}"
        tested = rounds[-1].get("tested", {}) if rounds else {}
        if missing := tested.get("missing", {}):
            yield f"{run}: these sites are not counted: {_with_reasons(missing)}"
        if without := tested.get("without-personal-model", []):
            yield f"{run}: these sites have no personal model: {_first(without)}"
        yield from (f"{run}: warning: {line}" for line in warning_lines(rounds))
        federated = read_final_measures(folders[strategy, seed], FEDERATED)
        if without := federated.get("without", {}):
            yield f"{run}: these sites sent no histogram of scores: {_with_reasons(without)}"
        missing = federated.get("missing", {})
        for why in dict.fromkeys(missing.values()):
            names = [WORDS[measure] for measure, reason in missing.items() if reason == why]
            yield f"{run}: {HELD_OUT}: there is no {', '.join(names)}: {why}"


def picture_of(comparison: Comparison) -> tuple[str, dict[str, str]]:
    """Return the picture's axis label, and panel → metric."""
    metric = record_metric(comparison.terms)
    panels = {SITES: f"{SITE}{metric}"} if f"{SITE}{metric}" in comparison.metrics() else {}
    if comparison.terms.evaluation == "server" or not panels:
        panels[POOLED] = metric
    return {"mse": "mean squared error"}.get(metric, metric), panels


def paired_differences(comparison: Comparison, against: str) -> dict[str, dict[str, Paired]]:
    """Return each panel's paired differences to a row; empty without it, or with no other row."""
    _, panels = picture_of(comparison)
    differences = {}
    for panel, metric in panels.items():
        results = comparison.by_seed(metric)
        if against in results:
            rows = paired(results, against, more_is_better=not is_error(metric))
            differences[panel] = rows
    return {panel: rows for panel, rows in differences.items() if rows}


def paired_tables(comparison: Comparison, against: str) -> Iterator[TextTable]:
    """Yield a table of paired differences per panel of the picture."""
    label, _ = picture_of(comparison)
    for panel, rows in paired_differences(comparison, against).items():
        is_several = any(row.seeds > 1 for row in rows.values())
        interval = ", mean [interval of 95 % by Student's t]" if is_several else ""
        title = f"Difference from '{against}' on the same seeds: {label}{interval}; {panel}"
        cells = [(name, *row.cells()) for name, row in rows.items()]
        yield TextTable(title, ("strategy", "difference", "seeds won", "mean rank"), cells)


def latex(shown: Iterable[TextTable]) -> str:
    """Return the tables as LaTeX, for the packages booktabs and caption."""
    return "\n".join(_latex(table) for table in shown)


def _latex(table: TextTable) -> str:
    words = table.head[:1] if table.words is None else table.words
    align = "".join("l" if column in words else "r" for column in table.head)
    head, *rows = (" & ".join(map(_escaped, row)) + r" \\" for row in (table.head, *table.rows))
    lines = (
        rf"\begin{{table}}\caption{{{_escaped(table.title)}}}\centering",
        rf"\begin{{tabular}}{{{align}}}\toprule",
        head + r"\midrule",
        *rows,
        r"\bottomrule\end{tabular}\end{table}",
    )
    return "\n".join(lines) + "\n"


_LATEX = {"±": r"$\pm$", "ε": r"$\varepsilon$", "δ": r"$\delta$", "²": "$^2$", "–": "--"}
_LATEX |= (
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"^": r"\^{}", "~": r"\~{}"}
    | {"\\": r"\textbackslash{}"}
)


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _sites_table(comparison: Comparison, title: str) -> TextTable:
    """Return rows per strategy, and for its personal models."""
    metrics = comparison.metrics()
    names = [name for name in METRICS if {f"{SITE}{name}", f"{PERSONAL}{name}"} & {*metrics}]
    columns = [
        column
        for name in names
        for column in (name, f"{name}{WORST}")
        if column == name or name in ("accuracy", "loss")
    ]
    rows = []
    for strategy in comparison.strategies():
        for prefix, label in ((SITE, strategy), (PERSONAL, f"{strategy}: personal models")):
            values = [comparison.last(strategy, f"{prefix}{column}") for column in columns]
            if not all(np.isnan(seeds).all() for seeds in values):
                tested = comparison.tested(strategy)
                counted = _counted(tested, prefix)
                rows.append((label, *map(mean_and_sd, values), counted, str(len(tested))))
    head = ("strategy", *(_heading(comparison, column) for column in columns), "sites", "seeds")
    return TextTable(title, head, rows)


def _pooled_table(comparison: Comparison, title: str) -> TextTable:
    metrics = comparison.metrics()
    first = "concordance" if task_for(comparison.terms).intervals else "accuracy"
    others = (name for name in (MINORITY, *METRICS) if name in metrics and name != "accuracy")
    columns = list(dict.fromkeys([first, *others]))
    rows = []
    for strategy in comparison.strategies():
        values = (comparison.last(strategy, column) for column in columns)
        seeds = comparison.metric(strategy, first)
        means = seeds.mean(0)
        best = str(int(np.nanargmax(means)) + 1) if np.isfinite(means).any() else "–"
        rows.append((strategy, *map(mean_and_sd, values), best, str(len(seeds))))
    head = ("strategy", *(_heading(comparison, name) for name in columns), "best round", "seeds")
    return TextTable(title, head, rows)


def _alone_table(comparison: Comparison, folders: Folders) -> Iterator[TextTable]:
    """Yield the sites better off alone, by strategy; none without ``local``."""
    metric = record_metric(comparison.terms)
    seeds = sorted(seed for name, seed in comparison.rounds if name == ALONE)
    alone = {seed: read_site_metrics(folders[ALONE, seed]) for seed in seeds}
    rows = []
    for name in comparison.strategies():
        of_seeds = [
            better_alone(alone[seed], read_site_metrics(folders[name, seed]), metric)
            for seed in seeds
            if name != ALONE and (name, seed) in comparison.rounds
        ]
        if of_seeds:
            first, mean = of_seeds[0], np.mean([len(better.sites) for better in of_seeds])
            rows.append((name, f"{mean:.3g} of {first.compared}", _first(first.sites) or "none"))
    if rows and any(best_of(metrics, metric) for metrics in alone.values()):
        title = f"Sites that are better off alone (with '{ALONE}', under the same budget)"
        head = ("strategy", "sites", "which sites (first seed)")
        yield TextTable(title, head, rows, words=head)


def _heading(comparison: Comparison, column: str) -> str:
    if column == MINORITY:
        return "smallest group"
    if column.endswith(WORST):
        return "worst tenth"
    classes = task_for(comparison.terms).classes
    words = {"accuracy": "accuracy" if classes else "R²", "mse": "MSE", "mae": "MAE"}
    return words.get(column, column)


def _counted(tested: Sequence[Mapping[str, Any]], prefix: str) -> str:
    """Return the least number of sites in a row's means, of all."""
    counts = [
        number
        for seed in tested
        for name, number in seed.get("counted", {}).items()
        if name.startswith(prefix)
    ]
    if not counts:
        return "–"
    most = max(int(seed["sites"]) for seed in tested if seed)
    return str(most) if min(counts) == most else f"{min(counts)} of {most}"


def _with_reasons(reasons: Mapping[str, str]) -> str:
    return _first([f"{site} ({why})" for site, why in reasons.items()])


def _first(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more
