"""Test scores: FLamby's mean accuracy over hospitals, and pooled AUROC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.measures.ranks import auroc
from studies.natural.federation import Split

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TestScores:
    """Test scores of independent runs.

    Attributes:
        accuracies: mean of the hospitals' accuracies, with equal weights; shape ``(runs,)``.
        aurocs: over the test records of all hospitals, of the one model that they share, shape
            ``(runs,)``; NaN if each has its own.
    """

    accuracies: Floats
    aurocs: Floats

    @property
    def accuracy(self) -> float:
        """Mean over the runs."""
        return float(self.accuracies.mean())

    @property
    def spread(self) -> float:
        """Standard deviation of accuracy over runs (n − 1); NaN for one."""
        runs = len(self.accuracies)
        return float(self.accuracies.std(ddof=1)) if runs > 1 else float("nan")

    @property
    def auroc(self) -> float:
        """Mean over the runs."""
        return float(self.aurocs.mean())


def joined(scores: list[TestScores]) -> TestScores:
    """Return the concatenated runs of all scores."""
    return TestScores(
        np.concatenate([one.accuracies for one in scores]),
        np.concatenate([one.aurocs for one in scores]),
    )


def scores_of(models: Floats, split: Split) -> TestScores:
    """Return scores of linear models with bias, shape ``(runs, d + 1)``."""
    logits = models[:, :-1] @ split.test.features.T.astype(np.float64) + models[:, -1:]
    right = (logits > 0) == split.test.targets.astype(bool)
    by_hospital = [right[:, split.test_owners == site].mean(1) for site in range(split.sites)]
    ones = np.ones((1, len(split.test)))
    ranks = [float(auroc(row, split.test.targets > 0, ones)[0]) for row in logits]
    return TestScores(np.mean(by_hospital, axis=0), np.array(ranks))


def score_of_sites(accuracies: Mapping[str, float], area: float) -> TestScores:
    """Return the score of one run from its hospitals' accuracies."""
    return TestScores(np.array([np.mean(list(accuracies.values()))]), np.array([area]))


def constant_accuracy(split: Split) -> float:
    """Return the accuracy of each hospital's majority training label, without privacy."""
    found = []
    for site in range(split.sites):
        label = split.train.targets[split.owners == site].mean() > 0.5
        found.append((split.test.targets[split.test_owners == site] == label).mean())
    return float(np.mean(found))
