"""Scores of a strategy on a natural federation, by records and sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import stdtrit

from hdpfl_flower.models.constant import constant_outputs
from hdpfl_flower.models.losses import record_losses
from hdpfl_flower.models.site_summary import PERSONAL, worst_tenth
from server_app.in_process.metrics_by_site import best_of, better_alone, read_site_metrics
from server_app.run.final_measures import read_final_measures
from studies.natural.federation import Split

NONE = float("nan")


@dataclass(frozen=True)
class Score:
    """Scores of one run on the sites' test records; NaN if undefined.

    Attributes:
        loss: mean over the test records, each under the model of its site, in nats.
        accuracy: likewise, of classes.
        ranking: AUROC, or for survival the concordance, of the one model of all sites on all test
            records; if each site has its own, the mean over the sites' models on all records.
        ranking_low: lower end of its interval of 95 % over the test records.
        ranking_high: its upper end.
        slope: of the calibration, likewise; 1 is the best.
        by_site: mean loss over the sites, each with the same weight.
        worst: mean loss of the worst tenth of the sites.
        gain: mean over the test records of the constant's loss less this one.
        gain_reach: half the width of its interval of 95 %, over sites: the choice of tested sites
            is also random.
        sites: number of sites that take part and are tested.
    """

    loss: float
    accuracy: float = NONE
    ranking: float = NONE
    ranking_low: float = NONE
    ranking_high: float = NONE
    slope: float = NONE
    by_site: float = NONE
    worst: float = NONE
    gain: float = NONE
    gain_reach: float = NONE
    sites: int = 0


def score_of_sites(folder: Path, split: Split) -> Score:
    """Return a finished run's score, each record under its site's model.

    Args:
        folder: the run's.
        split: with the test records of the run.
    """
    found = read_site_metrics(folder)
    losses, right = best_of(found, "loss"), best_of(found, "accuracy")
    counts, constants = np.bincount(split.test_owners), constant_losses(split)
    gains = {site: constants[int(site)] - loss for site, loss in losses.items()}
    # Personal models are tested only at their sites, not on all test records.
    ranking = {} if found.get(PERSONAL) else _ranking(folder)
    return Score(
        _over_records(losses, counts),
        _over_records(right, counts) if right else NONE,
        **ranking,
        by_site=float(np.mean(list(losses.values()))),
        worst=worst_tenth("loss", list(losses.values())),
        gain=_over_records(gains, counts),
        gain_reach=_reach(gains, counts),
        sites=len(losses),
    )


def score_of_pooled(folder: Path, split: Split) -> Score:
    """Return the score of a finished pooled run, without worst site."""
    if split.task.classes:  # a site's own test has the class shares of its training records
        loss, right = (_measure(folder, name) for name in ("log-loss", "accuracy"))
    else:
        loss, right = best_of(read_site_metrics(folder), "loss")["0"], NONE
    constant = float(_constant_by_record(split).mean())
    return Score(loss, right, **_ranking(folder), gain=constant - loss, sites=1)


def better_off_alone(alone: Path, joined: Path) -> float:
    """Return the share of sites with less loss when training alone."""
    sites, compared = better_alone(read_site_metrics(alone), read_site_metrics(joined), "loss")
    return len(sites) / compared


def constant_score(split: Split) -> Score:
    """Return the constant predictor's score, without privacy."""
    losses, task = _constant_by_record(split), split.task
    right = NONE
    if task.classes:
        output = constant_outputs(task, split.train.targets)
        chosen = int(output.argmax()) if task.loss == "softmax" else int(output[0] > 0)
        right = float(np.mean(split.test.targets == chosen))
    own = [*constant_losses(split).values()]
    of_sites = {"by_site": float(np.mean(own)), "worst": worst_tenth("loss", own)}
    return Score(float(losses.mean()), right, 0.5, **of_sites, sites=len(own))


def constant_losses(split: Split) -> dict[int, float]:
    """Return each site's mean loss under the constant predictor."""
    losses = _constant_by_record(split)
    owners = split.test_owners
    return {int(site): float(losses[owners == site].mean()) for site in np.unique(owners)}


def _constant_by_record(split: Split) -> npt.NDArray[np.float64]:
    output = torch.from_numpy(constant_outputs(split.task, split.train.targets))
    outputs = output.expand(len(split.test), -1)
    found: npt.NDArray[np.float64] = (
        record_losses(split.task, outputs, torch.from_numpy(split.test.targets)).double().numpy()
    )
    return found


def _measure(folder: Path, name: str) -> float:
    found = read_final_measures(folder).get("measures", {})
    return float(found.get(name, {}).get("value", NONE))


def _ranking(folder: Path) -> dict[str, float]:
    found = read_final_measures(folder).get("measures", {})
    ranking = found.get("auroc") or found.get("concordance") or {}
    ends = {f"ranking_{end}": ranking.get(end) for end in ("low", "high")}
    known = {
        "ranking": ranking.get("value"),
        **ends,
        "slope": found.get("calibration-slope", {}).get("value"),
    }
    return {name: NONE if value is None else float(value) for name, value in known.items()}


def _over_records(values: Mapping[str, float], counts: npt.NDArray[np.int64]) -> float:
    """Return the record mean of site means, weighted by test records."""
    weights = [counts[int(site)] for site in values]
    return float(np.average(list(values.values()), weights=weights))


def _reach(values: Mapping[str, float], counts: npt.NDArray[np.int64]) -> float:
    """Return half the 95 % interval of that mean over random sites.

    The linearised error of a ratio of sums over clusters, with Student's t of their number less
    one (Cochran, Sampling Techniques, 1977, §6.4).
    """
    sites = len(values)
    if sites < 2:
        return NONE
    weights = np.array([counts[int(site)] for site in values], dtype=np.float64)
    apart = weights * (np.array(list(values.values())) - _over_records(values, counts))
    error = np.sqrt(np.sum(apart**2) * sites / (sites - 1)) / weights.sum()
    return float(stdtrit(sites - 1, 0.975) * error)
