"""Sites in a run's report: updates used, shares of the model and clusters."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hdpfl_flower.monitoring.influence import influence_of
from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.monitoring.rejection import Rejection, rejections_in
from hdpfl_tools.coordinator.reports.page import Cell, Row

BOUNDED: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "capped": ("capped", lambda value: value > 0),
    "shortened_to": ("shortened", lambda value: value < 1),
    "precision_bounded": ("precision bounded", lambda value: value > 0),
    "noise_raised": ("estimated noise raised to the site's claim", lambda value: value > 0),
}
"""Per-site gauge → the treatment in words, with its numbers."""
_TREATMENTS = (*(words for words, _ in BOUNDED.values()), "refused", "taken back")

CLUSTERS = {
    "clusters": "clusters (M)",
    "clusters_mss": "least separation (MSS)",
    "clusters_mpo": "largest overlap (MPO)",
    "clusters_separated": "trusted (1: yes, 0: no)",
    "clusters_label_skew": "label proportions explain them (1: yes, 0: no, nan: not checked)",
    "last_soft_round": "last round that draws models by probability (E_c)",
}
"""Gauges of R-DPCFL (TMLR 2025, section 4), with their words."""


@dataclass
class SiteRounds:
    """The rounds of one site.

    Attributes:
        asked: number of rounds in which it was asked.
        weights: of its updates, a round in which one was used each.
        reasons: words for unused updates, counted.
        treatments: words for bounds on its updates, counted.
        noise, steps: the gauges of its updates, where they are known.
        lengths: of its updates, over the median of their round.
        clusters: the sequence of its clusters.
        confidence: the largest probability of one cluster, when they were found.
        chose: rounds in which the site chose its cluster by itself.
    """

    asked: int = 0
    used: int = 0
    weights: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    treatments: Counter[str] = field(default_factory=Counter)
    noise: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    confidence: str = ""
    chose: list[str] = field(default_factory=list)

    def add_update(self, event: Event, row: int, median: float) -> None:
        """Add the used update in ``row`` of a round with the median length ``median``."""
        gauges = _gauges(event)
        self.used += 1
        self.weights += event["weights"][row : row + 1]
        if noise := _at(gauges.get("noise_std"), row):  # 0: the noise is not known
            self.noise.append(noise)
        if (steps := _at(gauges.get("steps"), row)) is not None:
            self.steps.append(steps)
        if median and (length := _at(event.get("norms"), row)):
            self.lengths.append(length / median)
        for gauge, (words, holds) in BOUNDED.items():
            value = _at(gauges.get(gauge), row)
            self.treatments[words] += value is not None and holds(value)
        if (cluster := _at(gauges.get("cluster"), row)) is not None:
            self.clusters += [f"{cluster:.0f}"] if self.clusters[-1:] != [f"{cluster:.0f}"] else []
        if (confidence := _at(gauges.get("cluster_confidence"), row)) is not None:
            self.confidence = self.confidence or f"{confidence:.3f}"
        if _at(gauges.get("chose"), row):
            self.chose.append(str(event["round"]))


def rounds_of_sites(rounds: Sequence[Event]) -> Mapping[str, SiteRounds]:
    """Return each site's rounds, in the order in which the sites were asked first."""
    sites: defaultdict[str, SiteRounds] = defaultdict(SiteRounds)
    for event in rounds:
        norms = event.get("norms")
        lengths = (_at(norms, row) for row in range(len(event["accepted"])))
        median = _median([length for length in lengths if length is not None]) or 0.0
        for site in dict.fromkeys(event["asked"]):
            sites[site].asked += 1
        for site, why in event.get("rejected", {}).items():
            if why is not None:
                sites[site].reasons[str(why)] += 1
        for site, code in rejections_in(event).items():
            sites[site].treatments["refused"] += code is Rejection.GUARD
        for site in event.get("taken-back", {}):
            sites[site].treatments["taken back"] += 1
        for row, site in enumerate(event["accepted"]):
            sites[site].add_update(event, row, float(median))
    return sites


def site_rows(sites: Mapping[str, SiteRounds]) -> Iterator[Row]:
    """Yield site, rounds asked and used, mean and last weight, and reasons for unused updates."""
    for site, facts in sites.items():
        if facts.asked:
            weights = facts.weights
            mean = sum(weights) / len(weights) if weights else ""
            last = weights[-1] if weights else ""
            yield site, facts.asked, facts.used, mean, last, _counts(facts.reasons, facts.reasons)


def site_shares(rounds: Sequence[Event], sites: Mapping[str, SiteRounds]) -> Iterator[Row]:
    """Yield a row per site and model, the largest share first.

    Site, model (empty where there is one), share of the model, of the last round's step, rounds
    used, medians of the estimated noise, of the local steps and of the length of its updates over
    the round's median, and the bounds on them. Empty where the journal does not say.
    """
    influence = influence_of(rounds)
    for model in range(len(influence.models)):
        step = influence.last.get(model, {})
        total = sum(step.values())
        for site, share in sorted(influence.shares(model).items(), key=lambda pair: -pair[1]):
            of_step: Cell = step[site] / total if site in step and total else ""
            facts, steps = sites[site], _median(sites[site].steps)
            yield (
                site,
                model if len(influence.models) > 1 else "",
                share,
                of_step,
                facts.used,
                _median(facts.noise),
                int(steps) if isinstance(steps, float) and steps.is_integer() else steps,
                _median(facts.lengths),
                _counts(facts.treatments, _TREATMENTS),
            )


def cluster_findings(rounds: Sequence[Event]) -> Iterator[Row]:
    """Yield the last cluster search's results; without one, the first round's.

    R-DPCFL searches in round 1 alone.
    """
    gauges = [_gauges(event) for event in rounds if "cluster" in _gauges(event)]
    searches = [search for search in gauges if "clusters_mss" in search]
    last = (searches[-1:] or gauges[:1] or [{}])[0]
    for key, words in CLUSTERS.items():
        if (value := _number(last.get(key))) is not None:
            yield words, value


def site_clusters(sites: Mapping[str, SiteRounds]) -> Iterator[Row]:
    """Yield each site's sequence of clusters, its confidence, and the rounds in which it chose."""
    for site, facts in sites.items():
        if facts.clusters:
            yield site, " → ".join(facts.clusters), facts.confidence, ", ".join(facts.chose)


def _counts(counts: Mapping[str, int], order: Sequence[str] | Mapping[str, int]) -> str:
    return "; ".join(f"{words} ({counts[words]} ×)" for words in order if counts[words])


def _median(values: Sequence[float]) -> Cell:
    return float(statistics.median(values)) if values else ""


def _gauges(event: Event) -> Mapping[str, object]:
    gauges = event.get("gauges")
    return gauges if isinstance(gauges, dict) else {}


def _at(values: object, row: int) -> float | None:
    """Return a finite number of a journal's list; else None."""
    value = _number(values[row]) if isinstance(values, list) and row < len(values) else None
    return value if value is not None and math.isfinite(value) else None


def _number(value: Any) -> float | None:
    """Return a journal's number, infinite and NaN included; else None."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
