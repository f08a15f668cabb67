"""What a rule is worth on a natural federation: over its records, and over its sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hdpfl_flower.models.site_summary import worst_tenth
from server_app.run.final_measures import read_final_measures
from server_app.simulation.metrics_by_site import best_of, better_alone, read_site_metrics
from studies.natural.federation import Split


@dataclass(frozen=True)
class Score:
    """One run's models on the test records of the sites.

    Attributes:
        loss: mean over the test records, each under the model of its site, in nats.
        accuracy: likewise.
        auroc: of the one model that all sites use, over all test records; NaN where each site has
            its own.
        worst: mean loss of the worst tenth of the sites.
    """

    loss: float
    accuracy: float
    auroc: float
    worst: float


def score_of_sites(folder: Path, split: Split, *, one_model: bool) -> Score:
    """Return the score of a finished run, each test record under the model of its site.

    Args:
        folder: the run's.
        split: whose test records it was tested on.
        one_model: whether all sites use the same model.
    """
    found = read_site_metrics(folder)
    losses = best_of(found, "loss")
    counts = np.bincount(split.test_owners)
    return Score(
        _over_records(losses, counts),
        _over_records(best_of(found, "accuracy"), counts),
        _measure(folder, "auroc") if one_model else np.nan,
        worst_tenth("loss", list(losses.values())),
    )


def score_of_pooled(folder: Path) -> Score:
    """Return the score of a finished run of one site with all records; no site is the worst."""
    loss, accuracy, auroc = (_measure(folder, n) for n in ("log-loss", "accuracy", "auroc"))
    return Score(loss, accuracy, auroc, np.nan)


def better_off_alone(alone: Path, joined: Path) -> float:
    """Return the share of the sites whose loss is less where each trains by itself."""
    sites, compared = better_alone(read_site_metrics(alone), read_site_metrics(joined), "loss")
    return len(sites) / compared


def constant_score(split: Split) -> Score:
    """Return the score of the training records' shares of the classes, without any privacy."""
    seen = np.bincount(split.train.targets.astype(np.int64), minlength=split.task.classes)
    shares, wanted = seen / seen.sum(), split.test.targets.astype(np.int64)
    losses, right = -np.log(shares[wanted]), wanted == shares.argmax()
    by_site = [losses[split.test_owners == site].mean() for site in np.unique(split.test_owners)]
    return Score(float(losses.mean()), float(right.mean()), 0.5, worst_tenth("loss", by_site))


def _measure(folder: Path, name: str) -> float:
    found = read_final_measures(folder).get("measures", {})
    return float(found.get(name, {}).get("value", np.nan))


def _over_records(values: Mapping[str, float], counts: npt.NDArray[np.int64]) -> float:
    """Return the mean over the records of a mean by site; a site counts by its test records."""
    weights = [counts[int(site)] for site in values]
    return float(np.average(list(values.values()), weights=weights))
