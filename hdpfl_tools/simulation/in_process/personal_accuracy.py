"""Accuracy of personal models by privacy level, in simulations only.

A site's personal model, the global one and a constant predictor are tested on public records that
are distributed as the site's own (``scenarios/site_tests.py``): the accuracy that the site would
see on new records like its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from client_app.after_run.personal_model import PersonalModel
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.models.networks import Arrays, unflatten
from hdpfl_flower.models.site_summary import (
    METRICS,
    PERSONAL,
    SiteMeasures,
    counts,
    means,
    worst_tenth,
)
from hdpfl_flower.models.task import Records
from hdpfl_flower.system.files import replace_file
from hdpfl_tools.simulation.scenarios.site_tests import OwnTests

Vector = npt.NDArray[np.float32]

PERSONAL_MINORITY = "personal-accuracy-minority"
"""Last round's metric of personal models in groups of sites."""

NOT_TRAINED = "the site has no personal model, because it took part in no round"
"""Why a personal model is not tested."""


@dataclass(frozen=True)
class SiteModels:
    """Facts of one simulated site.

    Attributes:
        number: its own.
        epsilon: its ε; ``inf`` opted out.
        personal: its personal model: a vector of the global model's shapes (Ditto), shape ``(d,)``,
            or a whole model; None before its first round.
        group: which of the test sets is like its own records.
    """

    number: int
    epsilon: float
    personal: Vector | PersonalModel | None
    group: int = 0


SiteScores = tuple[SiteModels, Mapping[str, Mapping[str, float]]]
"""Site with each model's metrics for it, see :func:`site_scores`."""


def site_scores(
    spec: str,
    site_tests: OwnTests,
    model: Arrays,
    tests: Sequence[Records],
    sites: Iterable[SiteModels],
) -> Iterator[SiteScores]:
    """Yield each site with each model's metrics on its distribution.

    The models are ``global``, ``personal`` (of the sites that took part at least once) and
    ``constant``: the site's most frequent class, which has no loss, or its mean target. A site with
    one class is solved by the constant.

    Args:
        spec: of the models.
        site_tests: the test set as each site's records weigh it.
        model: the global one; empty where no site uses it as it is.
        tests: the test set as each group sees it.
        sites: those to test; one without a test yields no metrics.
    """

    def measured(arrays: Arrays, group: int) -> Mapping[str, npt.NDArray[np.float64]]:
        test = tests[group]
        outputs = predict(spec, site_tests.task, arrays, test.features)
        return site_tests.measures(outputs, test.targets)

    # The global model once a group, not once a site; a personal one is its site's alone.
    everywhere = [measured(model, group) for group in range(len(tests))] if model else []
    for site in sites:
        scores: dict[str, Mapping[str, float]] = {"constant": site_tests.of_constant(site.number)}
        if model:
            scores["global"] = site_tests.of_site(site.number, everywhere[site.group])
        if isinstance(site.personal, PersonalModel):
            test = tests[site.group]
            outputs = site.personal.outputs(site_tests.task, test.features)
            here = site_tests.measures(outputs, test.targets)
            scores["personal"] = site_tests.of_site(site.number, here)
        elif site.personal is not None:
            arrays = unflatten(site.personal, model)
            scores["personal"] = site_tests.of_site(site.number, measured(arrays, site.group))
        yield site, {name: facts for name, facts in scores.items() if facts}


def personal_table(scores: Iterable[SiteScores]) -> list[dict[str, Any]]:
    """Return a row per level (private, opted out) and model.

    A row has ``accuracy`` and its ``variance``, ``worst`` (the mean accuracy of the worst tenth of
    the sites), and ``loss``, ``mse`` and ``mae`` where they are defined. A run with
    A kept second model without pull has the row of local training alone.
    """
    values: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for site, models in scores:
        level = "opted out" if math.isinf(site.epsilon) else "private"
        for name, facts in models.items():
            values.setdefault((level, name), []).append(facts)
    return [
        {"level": level, "model": name, "sites": len(sites), **_row(sites)}
        for (level, name), sites in sorted(values.items())
    ]


def personal_measures(scores: Sequence[SiteScores], minority: Container[int] = ()) -> SiteMeasures:
    """Return the mean and worst tenth of personal metrics, all sites.

    Beside them stands the mean accuracy of the sites of the smallest groups.

    Args:
        scores: :func:`site_scores`.
        minority: the smallest groups.
    """
    personal = {str(s.number): models["personal"] for s, models in scores if "personal" in models}
    small = [
        models["personal"]["accuracy"]
        for site, models in scores
        if site.group in minority and "accuracy" in models.get("personal", {})
    ]
    return SiteMeasures(
        means(personal, PERSONAL) | ({PERSONAL_MINORITY: float(np.mean(small))} if small else {}),
        len(scores),
        counts(personal, PERSONAL),
        {str(s.number): NOT_TRAINED for s, _ in scores if s.personal is None},
    )


def write_personal_table(rows: list[dict[str, Any]], folder: Path) -> None:
    """Write the table as ``personal.json`` in a run's folder."""
    text = json.dumps(rows, indent=1) + "\n"
    replace_file(folder / "personal.json", text.encode(), mode=0o644)


def _row(sites: Sequence[Mapping[str, float]]) -> dict[str, float]:
    row: dict[str, float] = {}
    for metric in METRICS:
        values = [facts[metric] for facts in sites if metric in facts]
        if values:
            row[metric] = float(np.mean(values))
        if values and metric == "accuracy":
            row |= {"variance": float(np.var(values)), "worst": worst_tenth(metric, values)}
    return row
