"""Per-site tests on public records distributed like the site's own.

Under a natural split, a Dirichlet split or shards the sites have different kinds of records, and a
pooled test set measures a model for a client that does not exist. Here each record of the
public test set belongs to a stratum, and a site's test gives each stratum its share of the site's
records:

    natural, contiguous   stratum = natural owner, if the data set has owners: a site of one owner
                          is tested only on that owner's test records, with equal weights
    every other split     stratum = class; for a regression or survival, which no split sorts by
                          target, all records are one stratum

No training record is used for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import DataError
from hdpfl_flower.linalg.types import Vector
from hdpfl_flower.models.task import Records, Task
from hdpfl_tools.simulation.datasets import Dataset

Rows = npt.NDArray[np.int64]

NOTHING_LIKE_IT = "no public test record is like the site's own"
"""Reason why a site is not tested."""

_KEEPS_OWNERS = ("natural", "contiguous")


@dataclass(frozen=True)
class OwnTests:
    """Test set weighted by each site's own records.

    Attributes:
        task: of the models.
        test: the public test set, as the data set has it.
        strata: stratum of each test record, from 0, shape ``(n,)``.
        shares: share of each stratum in a site's test, shape ``(sites, strata)``; a row sums to 1,
            or to 0 if no test record is like the site's own.
        targets: each site's most frequent class, or its mean target, shape ``(sites,)``.
    """

    task: Task
    test: Records
    strata: Rows
    shares: Vector
    targets: Vector

    def measures(
        self, outputs: npt.NDArray[np.float32], targets: npt.NDArray[np.generic]
    ) -> dict[str, Vector]:
        """Return the mean measures by stratum, each of shape ``(strata,)``.

        Args:
            outputs: of a model on the test set, shape ``(n, task.outputs)``.
            targets: of the test set, as the sites see them, shape ``(n,)``.

        Returns:
            ``accuracy`` and ``loss``; for a regression ``loss``, ``mse`` and ``mae``; for survival
            ``loss``, since its concordance is of pairs. NaN in a stratum without a test record.
        """
        import torch

        from hdpfl_flower.models.losses import record_losses

        predicted, wanted = torch.from_numpy(outputs), torch.from_numpy(targets)
        values = {"loss": record_losses(self.task, predicted, wanted).double().numpy()}
        if self.task.classes:
            chosen = (
                predicted.argmax(1) if self.task.loss == "softmax" else (predicted[:, 0] > 0).long()
            )
            values["accuracy"] = (chosen == wanted).double().numpy()
        elif not self.task.intervals:
            errors = (predicted[:, 0] - wanted).double()
            values["mse"], values["mae"] = errors.square().numpy(), errors.abs().numpy()
        return {name: self._by_stratum(value) for name, value in values.items()}

    def of_site(self, site: int, measured: Mapping[str, Vector]) -> dict[str, float]:
        """Return a model's metrics for a site; empty without a test.

        Args:
            site: its number.
            measured: :meth:`measures` of the model.

        Returns:
            The metrics of ``evaluation.measures``, over the site's own distribution. For a
            regression ``accuracy`` is R², missing where the targets of the test do not vary.
        """
        return self.of_sites([site], measured)[0]

    def of_sites(
        self, sites: Sequence[int], measured: Mapping[str, Vector]
    ) -> list[dict[str, float]]:
        """Return :meth:`of_site` for each of ``sites``."""
        shares = self.shares[np.asarray(sites, np.int64)]
        # A NaN mean has no test record: no site has a share there, but 0·NaN is NaN.
        finite = {name: np.nan_to_num(means) for name, means in measured.items()}
        columns = {name: (shares * means).sum(1).tolist() for name, means in finite.items()}
        metrics: list[dict[str, float]] = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        if "mse" in columns:
            for facts, variance in zip(metrics, self._variances[list(sites)].tolist(), strict=True):
                if variance > 1e-12:
                    # R² over the site's own distribution.
                    facts["accuracy"] = 1 - facts["mse"] / variance
        for place in np.flatnonzero(~shares.any(axis=1)):
            metrics[place] = {}
        return metrics

    def of_constant(self, site: int) -> dict[str, float]:
        """Return the site's metrics of a constant predictor, without a model.

        In the form of :meth:`of_site`.

        Predicts the most frequent class, which has no loss, or the mean target. Empty for survival.
        """
        if self.task.intervals:
            return {}
        constant = self.targets[site]
        if not self.task.classes:
            outputs = np.full((len(self.test), 1), constant, np.float32)
            return self.of_site(site, self.measures(outputs, self.test.targets))
        right = self._by_stratum((self.test.targets == constant).astype(np.float64))
        return self.of_site(site, {"accuracy": right})

    @cached_property
    def _variances(self) -> Vector:
        """Variance of the target in each site's test, shape ``(sites,)``."""
        targets = self.test.targets.astype(np.float64)
        # Centred first: otherwise E t² − (E t)² would lose digits.
        targets = targets - targets.mean()
        first, second = (np.nan_to_num(self._by_stratum(targets**k)) for k in (1, 2))
        variances: Vector = self.shares @ second - (self.shares @ first) ** 2
        return variances

    def _by_stratum(self, values: Vector) -> Vector:
        number = self.shares.shape[1]
        counts = np.bincount(self.strata, minlength=number)
        sums = np.bincount(self.strata, values, minlength=number)
        means = np.full(number, np.nan)
        np.divide(sums, counts, out=means, where=counts > 0)
        return means


def own_tests(data: Dataset, sites: Sequence[Rows], partition: str) -> OwnTests:
    """Return the tests of simulated sites.

    Args:
        data: the data set that is split, with a test set.
        sites: each site's rows of the training records.
        partition: the split that made them.

    Raises:
        DataError: the data set has no test set.
    """
    if data.test is None:
        raise DataError("this data set has no public test set")
    train, strata = _strata(data, data.test, partition)
    number = int(max(train.max(initial=-1), strata.max(initial=-1))) + 1
    shares = np.array([np.bincount(train[rows], minlength=number) for rows in sites], np.float64)
    # A stratum without a test record has no mean; the site's other strata share its weight.
    shares[:, np.bincount(strata, minlength=number) == 0] = 0
    totals = shares.sum(axis=1, keepdims=True)
    shares = np.divide(shares, totals, out=np.zeros_like(shares), where=totals > 0)
    targets = [_constant(data.task, data.train.targets[rows]) for rows in sites]
    return OwnTests(data.task, data.test, strata, shares, np.array(targets))


def _strata(data: Dataset, test: Records, partition: str) -> tuple[Rows, Rows]:
    """Return the strata of the training and test records."""
    keeps = partition.strip().split(":")[0] in _KEEPS_OWNERS
    if keeps and data.owners is not None and data.test_owners is not None:
        return data.owners, data.test_owners
    if data.task.classes:
        return data.train.targets.astype(np.int64), test.targets.astype(np.int64)
    return np.zeros(len(data.train), np.int64), np.zeros(len(test), np.int64)


def _constant(task: Task, targets: npt.NDArray[np.generic]) -> float:
    if task.classes:
        return float(np.bincount(targets.astype(np.int64)).argmax())
    return float(targets.astype(np.float64).mean())
