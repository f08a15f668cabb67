"""Summary of tests at many sites: mean, worst tenth and count.

A mean over sites does not show which are left out, so the number of sites counted, and the reason
for each one left out, go with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SITE, PERSONAL, WORST = "site-", "personal-", "-worst"
"""Parts of metric names: prefixes of the site's and the personal model, worst-tenth suffix.

Both models are tested on records like the site's own.
"""

METRICS = ("accuracy", "concordance", "loss", "mse", "mae")
"""Metrics of a model on records, in the order of tables."""


NOBODY_MEASURED = (
    "no site answered with metrics: exact ones leave where a profile discloses them and its "
    "'exact-answers' are not used up; 'after.scores' asks for a noisy histogram within ε"
)
"""Reason why a run with tests at the sites has no metrics."""
NOT_ASKED = (
    "nobody measured this model: the sites hold the records, and the run asked none of them. Two "
    "ways out: 'after.scores' asks each site for a noisy histogram of scores, within its ε; or "
    "'evaluation' = 'sites' asks for exact results, outside of ε, of sites whose profile discloses "
    "'metrics' within its 'exact-answers'"
)
"""Reason why a run over sites' own records has no measures, and the two remedies."""


@dataclass(frozen=True)
class SiteMeasures:
    """Metrics of a round and the sites that they cover.

    Attributes:
        metrics: name → value.
        asked: sites that were asked for a test.
        counted: metric → number of sites in its mean.
        missing: site → reason why none of its metrics is counted.
        by_site: site → metric → value; for the end of a simulation, not for the journal.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    asked: int = 0
    counted: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    by_site: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """The journal's entry on tested sites; empty without tests."""
        if not self.asked:
            return {}
        counted, missing = dict(self.counted), dict(self.missing)
        return {"tested": {"sites": self.asked, "counted": counted, "missing": missing}}


def is_error(metric: str) -> bool:
    """Return whether a smaller value of the metric is better, as of a loss or an error.

    >>> is_error("personal-loss"), is_error("site-mse-worst"), is_error("accuracy-private")
    (True, True, False)
    """
    return bool({"loss", "mse", "mae", "brier"} & set(metric.split("-")))


def worst_tenth(metric: str, values: Sequence[float]) -> float:
    """Return the mean of the worst tenth of sites, rounded up.

    Args:
        metric: decides which end is the worst.
        values: one per site, at least one; the result is NaN if one is NaN.

    >>> worst_tenth("accuracy", [0.5] * 9 + [0.25]), worst_tenth("loss", [1.0, 2.0])
    (0.25, 2.0)
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if np.isnan(ordered).any():
        return float("nan")
    number = -(-len(ordered) // 10)
    with np.errstate(over="ignore"):
        return float(np.mean(ordered[-number:] if is_error(metric) else ordered[:number]))


def means(by_site: Mapping[str, Mapping[str, float]], prefix: str) -> dict[str, float]:
    """Return each metric's mean and worst tenth over the sites.

    Args:
        by_site: site → metric → value; a metric that a site lacks is taken over the others.
        prefix: prefix of the names.

    >>> sites = {"a": {"accuracy": 0.5}, "b": {"accuracy": 1.0, "loss": 0.25}}
    >>> means(sites, "site-")["site-accuracy"], means(sites, "site-")["site-accuracy-worst"]
    (0.75, 0.5)
    """
    metrics: dict[str, float] = {}
    for name in _names(by_site):
        values = [facts[name] for facts in by_site.values() if name in facts]
        with np.errstate(over="ignore", invalid="ignore"):
            metrics[f"{prefix}{name}"] = float(np.mean(values))
        metrics[f"{prefix}{name}{WORST}"] = worst_tenth(name, values)
    return metrics


def counts(by_site: Mapping[str, Mapping[str, float]], prefix: str) -> dict[str, int]:
    """Return the number of sites in each mean, without worst tenths."""
    return {
        f"{prefix}{name}": sum(name in facts for facts in by_site.values())
        for name in _names(by_site)
    }


def in_brief(event: Mapping[str, Any]) -> str:
    """Return a log line of a round's metrics, with site counts.

    >>> facts = {"metrics": {"site-loss": 0.5}, "tested": {"sites": 3, "counted": {"site-loss": 2}}}
    >>> in_brief(facts)
    ', site-loss 0.5000 (2 of 3 sites)'
    """
    tested = event.get("tested", {})
    text = ""
    for name, value in event["metrics"].items():
        if name.endswith((WORST, "-variance")):
            continue
        text += f", {name} {float(value):.4f}"  # a journal has "nan" as a text
        if tested.get("counted", {}).get(name, tested.get("sites")) != tested.get("sites"):
            text += f" ({tested['counted'][name]} of {tested['sites']} sites)"
    return text


def _names(by_site: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = set().union(*by_site.values())
    return [name for name in METRICS if name in names]
