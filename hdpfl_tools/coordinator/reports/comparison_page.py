"""Comparison report: one HTML page from the folder of ``hdpfl compare``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.errors import DataError
from hdpfl_tools.coordinator.reports.measures import final_rows, mean_and_sd, metric_words
from hdpfl_tools.coordinator.reports.page import Row, configuration, picture, render, table
from server_app.run.federated_measures import FEDERATED
from server_app.run.final_measures import EVENT, folder_name, read_final_measures

COMPARISON, PICTURE = "comparison.json", "comparison.png"
_FINAL = (
    "With one seed each measure has its interval of 95 %; with several seeds it is mean ± "
    "standard deviation."
)
_NO_METRICS = ("seeds", "tested")


def is_comparison(folder: Path) -> bool:
    """Return whether ``hdpfl compare`` wrote its results into ``folder``."""
    return (folder / COMPARISON).is_file()


def make_comparison_report(folder: Path) -> str:
    """Return the page.

    Raises:
        DataError: the folder's ``comparison.json`` is damaged, or no run of it is finished.
    """
    path = folder / COMPARISON
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        terms, results = dict(content["terms"]), dict(content["results"])
        metrics = list(dict.fromkeys(_metrics(results)))
        rows = [
            (name, *(_last(facts.get(metric)) for metric in metrics), str(len(facts["seeds"])))
            for name, facts in results.items()
        ]
        about = f"{content['clients']} clients, {terms['rounds']} rounds, {terms['dataset']}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{path} is damaged: it is not as 'hdpfl compare' wrote it; run the comparison "
            "again, which keeps the finished runs"
        ) from None
    if not rows:
        raise DataError(
            f"the comparison in {folder} has no finished run, so there is nothing to report; "
            "repeat the command with the same --out"
        )
    result = "Values after the last round: mean ± standard deviation over the seeds."
    sections = {
        "Result": [table(rows, ("strategy", *map(metric_words, metrics), "seeds"), result)],
        "Final models": [table(_final(folder, results), ("measure", *results), _FINAL)],
        "By round": [picture(folder / PICTURE, "Each strategy's measures by round")],
        "Configuration": configuration(terms),
    }
    title = f"Comparison of {len(rows)} strategies" if len(rows) != 1 else "Comparison"
    return render(title, [about], sections)


def _final(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """Yield a row per measure of the final models, a column per strategy."""
    for event, where in ((EVENT, ""), (FEDERATED, ", from noisy histograms")):
        runs = {
            name: [
                read_final_measures(folder / folder_name(name, seed), event).get("measures", {})
                for seed in result["seeds"]
            ]
            for name, result in results.items()
        }
        for measure, *cells in final_rows(runs):
            yield f"{measure}{where}", *cells


def _metrics(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the metrics that any strategy has a value of."""
    for facts in results.values():
        for name, seeds in facts.items():
            if name not in _NO_METRICS and any(v is not None for row in seeds for v in row):
                yield name


def _last(seeds: Sequence[Sequence[float | None]] | None) -> str:
    """Return mean and spread over seeds of the runs' last values."""
    values = [[value for value in row if value is not None] for row in seeds or ()]
    return mean_and_sd(np.array([row[-1] for row in values if row] or [np.nan]))
