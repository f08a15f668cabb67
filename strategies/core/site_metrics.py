"""Metrics of sites' own held-out records, combined for a round.

Sites keep their counts of records to themselves, so each counts the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hdpfl_flower.models.site_summary import METRICS, PERSONAL, SITE, SiteMeasures, counts, means
from strategies.core.interface import Disclosed

BY_LEVEL = ("accuracy", "personal-accuracy")
"""Metrics by privacy level, as in FedHDP's Table 1 (TMLR)."""


def mean_metrics(
    by_site: Mapping[str, Mapping[str, float]], disclosed: Disclosed
) -> dict[str, float]:
    """Return each metric's mean over the sites, by name.

    Where a site that opted out is among them, also ``NAME-LEVEL`` and ``NAME-LEVEL-variance`` for
    the levels ``private`` and ``opted-out``: mean and variance over the level's sites (that of one
    site is 0). A site that does not disclose its ε is in no level.

    Args:
        by_site: site → metric → value.
        disclosed: site → fact → number.

    >>> found = {"a": {"accuracy": 0.5}, "b": {"accuracy": 0.75}}
    >>> mean_metrics(found, {"a": {"epsilon": 1.0}, "b": {"epsilon": 2.0}})
    {'accuracy': 0.625}
    """
    epsilons = {site: disclosed.get(site, {}).get("epsilon", math.nan) for site in by_site}
    groups = {"": list(by_site)}
    if math.inf in epsilons.values():
        groups["-private"] = [site for site in by_site if math.isfinite(epsilons[site])]
        groups["-opted-out"] = [site for site in by_site if math.isinf(epsilons[site])]
    metrics: dict[str, float] = {}
    with np.errstate(over="ignore", invalid="ignore"):  # any finite number is a site's to say
        for group, sites in groups.items():
            for name in sorted({name for site in sites for name in by_site[site]}):
                values = [by_site[site][name] for site in sites if name in by_site[site]]
                if not group:
                    metrics[name] = float(np.mean(values))
                elif name in BY_LEVEL:
                    metrics[f"{name}{group}"] = float(np.mean(values))
                    metrics[f"{name}{group}-variance"] = float(np.var(values))
    return metrics


def measured_at_sites(
    by_site: Mapping[str, Mapping[str, float]], missing: Mapping[str, str], disclosed: Disclosed
) -> SiteMeasures:
    """Return the round's metrics, with their sites.

    They are those of :func:`mean_metrics` and, as in a simulation that the server tests for each
    site, the mean over the sites (``site-accuracy``, …) and their worst tenth
    (``site-accuracy-worst``, ``personal-accuracy-worst``, …).

    Args:
        by_site: site → metric → value.
        missing: site → why it is not in ``by_site``.
        disclosed: site → fact → number.
    """
    plain = {site: {m: facts[m] for m in METRICS if m in facts} for site, facts in by_site.items()}
    personal = {
        site: {m: facts[PERSONAL + m] for m in METRICS if PERSONAL + m in facts}
        for site, facts in by_site.items()
    }
    counted = {
        **{name: sum(name in facts for facts in plain.values()) for name in METRICS},
        **counts(plain, SITE),
        **counts(personal, PERSONAL),
    }
    return SiteMeasures(
        mean_metrics(by_site, disclosed) | means(plain, SITE) | means(personal, PERSONAL),
        len(by_site) + len(missing),
        {name: number for name, number in counted.items() if number},
        dict(missing),
    )
