"""Clusters in a run's report: findings, and each site's model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hdpfl_flower.monitoring.journal import Event

FOUND = (
    ("clusters", "clusters (M)"),
    ("clusters_mss", "least separation (MSS)"),
    ("clusters_mpo", "largest overlap (MPO)"),
    ("clusters_separated", "trusted (1: yes, 0: no)"),
    ("clusters_label_skew", "label proportions explain them (1: yes, 0: no, nan: not checked)"),
    ("last_soft_round", "last round of models drawn by probability (E_c)"),
)
"""Gauges of R-DPCFL (TMLR 2025, section 4), with their words."""


def has_clusters(rounds: Sequence[Event]) -> bool:
    """Return whether the run has several models."""
    return any("cluster" in _gauges(event) for event in rounds)


def found_clusters(rounds: Sequence[Event]) -> Iterable[tuple[str, float]]:
    """Yield the last cluster search's results; without one, the first round's.

    R-DPCFL looks in round 1 alone.
    """
    found = [_gauges(event) for event in rounds if "cluster" in _gauges(event)]
    looks = [gauges for gauges in found if "clusters_mss" in gauges]
    last = (looks[-1:] or found[:1] or [{}])[0]
    for key, words in FOUND:
        value = _number(last.get(key))
        if value is not None:
            yield words, value


def sites_clusters(rounds: Sequence[Event]) -> Iterable[tuple[str, str, str, str]]:
    """Yield each site's sequence of clusters and its confidence.

    The confidence is the largest probability of one cluster, when they were found. The last
    column is the rounds in which the site chose by itself.
    """
    spells: dict[str, list[str]] = {}
    confidence: dict[str, str] = {}
    chose: dict[str, list[str]] = {}
    for event in rounds:
        gauges = _gauges(event)
        for i, site in enumerate(event["accepted"]):
            cluster = _at(gauges.get("cluster"), i)
            if cluster is not None and spells.setdefault(site, [])[-1:] != [f"{cluster:.0f}"]:
                spells[site].append(f"{cluster:.0f}")
            sure = _at(gauges.get("cluster_confidence"), i)
            if sure is not None:
                confidence.setdefault(site, f"{sure:.3f}")
            if _at(gauges.get("chose"), i):
                chose.setdefault(site, []).append(str(event["round"]))
    for site, clusters in spells.items():
        rounds_chosen = ", ".join(chose.get(site, ()))
        yield site, " → ".join(clusters), confidence.get(site, ""), rounds_chosen


def _gauges(event: Event) -> Mapping[str, Any]:
    gauges = event.get("gauges")
    return gauges if isinstance(gauges, Mapping) else {}


def _at(values: object, index: int) -> float | None:
    return _number(values[index]) if isinstance(values, list) and index < len(values) else None


def _number(value: Any) -> float | None:
    """Return a journal's number, infinite and NaN included; else None."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
