"""Metrics of simulated sites at the end, and sites better off alone.

``sites.json`` in a run's folder holds, on records like each site's own, the metrics of the model
that the site uses (``site-``) and of its personal model (``personal-``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.models.site_summary import PERSONAL, SITE, is_error
from hdpfl_flower.system.files import replace_file

NAME = "sites.json"
BySite = Mapping[str, Mapping[str, float]]
"""Site → metric → value."""


def write_site_metrics(folder: Path, metrics: Mapping[str, BySite]) -> None:
    """Write the metrics by name prefix; skipped without tested sites."""
    content = {prefix: by_site for prefix, by_site in metrics.items() if by_site}
    if content:
        replace_file(folder / NAME, (json.dumps(content, indent=1) + "\n").encode(), mode=0o644)


def read_site_metrics(folder: Path) -> Mapping[str, BySite]:
    """Return the content of :func:`write_site_metrics`; empty if missing."""
    path = folder / NAME
    return json.loads(path.read_text()) if path.is_file() else {}


def best_of(metrics: Mapping[str, BySite], metric: str) -> dict[str, float]:
    """Return each site's metric under its final or personal model.

    >>> best_of({"site-": {"1": {"accuracy": 0.5}}, "personal-": {"1": {"accuracy": 0.75}}},
    ...         "accuracy")
    {'1': 0.75}
    """
    best: dict[str, float] = {}
    for prefix in (SITE, PERSONAL):
        by_site = metrics.get(prefix, {})
        best |= {site: facts[metric] for site, facts in by_site.items() if metric in facts}
    return best


def record_metric(terms: RunTerms) -> str:
    """Return the metric that is a mean over records, so that a site has it by itself.

    For a regression the mean squared error: R² has no lower end. For survival the loss: concordance
    is of pairs.
    """
    task = task_for(terms)
    return "accuracy" if task.classes else "loss" if task.intervals else "mse"


@dataclass(frozen=True)
class BetterAlone:
    """Sites with better local training.

    Attributes:
        sites: in order.
        compared: the sites with both models.
    """

    sites: tuple[str, ...]
    compared: int


def better_alone(
    alone: Mapping[str, BySite], joined: Mapping[str, BySite], metric: str
) -> BetterAlone:
    """Return the sites with better local training.

    Args:
        alone: of a run of ``local``, on the same sites.
        joined: of the run to compare.
        metric: like ``accuracy``, or an error, of which less is better.

    >>> alone = {"site-": {"1": {"accuracy": 0.5}, "2": {"accuracy": 0.75}}}
    >>> joined = {"site-": {"1": {"accuracy": 0.75}, "2": {"accuracy": 0.5}}}
    >>> better_alone(alone, joined, "accuracy")
    BetterAlone(sites=('2',), compared=2)
    """
    first, second = best_of(alone, metric), best_of(joined, metric)
    both = [site for site in first if site in second]
    sign = -1 if is_error(metric) else 1
    better = [site for site in both if sign * first[site] > sign * second[site]]
    return BetterAlone(tuple(sorted(better, key=lambda site: (len(site), site))), len(both))
