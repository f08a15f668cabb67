"""Personal prior: noisy label counts, and their correction of outputs.

A model that is trained over all sites knows their common mix of labels; a site that knows its own
mix corrects the outputs by the logarithm of its share of each class (label shift: Saerens, Latinne
and Decaestecker, Neural Computation 14, 2002, eq. 2.4). The counts are released once a run, with
Gaussian noise that the run's plan pays for, and never leave the site. A regression has no classes:
there the site's mean residual under the final model is released in their place, and added.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from client_app.after_run.personal_model import PersonalModel
from client_app.releases.base import SiteHalf, Work
from client_app.site.site import Site
from hdpfl_flower import wire
from hdpfl_flower.models.evaluation import predict_apart
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import RandomStream, add_noise
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases.prior import Prior

Vector = npt.NDArray[np.float32]
FLOOR = 0.1
"""Least count of a class, in noise multipliers. Chosen with the shrinkage on seed 0 of MNIST
(docs/concepts/personal.md): floors of .1 and .25 are alike, from .5 on labels that a site lacks
keep too much of their weight."""
LEAST = 0.5
"""Least count of a class without noise (Krichevsky and Trofimov's half a record)."""
BOUND = 0.25
"""Bound on a residual, in units of the scaled target, whose range is 1."""
_GRID = 2.0**20
_TINY = 1e-12


def count_labels(
    task: Task, records: Records, noise_multiplier: float, stream: RandomStream
) -> bytes:
    """Return the noisy count of each class, encoded.

    Args:
        task: with classes.
        records: of which each unit has one.
        noise_multiplier: z_h of the plan's counts; 0 only where ε is infinite.
        stream: of this release alone.

    Guarantees:
        One record more or less changes one count by 1: with its noise the release is a Gaussian
        mechanism of multiplier z_h.
    """
    counts = np.bincount(records.targets.astype(np.int64), minlength=task.classes)
    exact = torch.from_numpy(counts.astype(np.float32))
    return wire.encode_update(add_noise(exact, noise_multiplier, stream).numpy())


def sum_residuals(
    spec: str,
    task: Task,
    arrays: Arrays,
    records: Records,
    noise_multiplier: float,
    stream: RandomStream,
    device: str = "auto",
) -> bytes:
    """Return the noisy sum of clipped residuals of a regression, encoded.

    Args:
        spec: of the model.
        task: a regression.
        arrays: of the site's final model.
        records: of which each unit has one.
        noise_multiplier: z_h of the plan's counts; 0 only where ε is infinite.
        stream: of this release alone.
        device: where the model is computed.

    Guarantees:
        One record more or less changes the sum by at most 1: a Gaussian mechanism of multiplier
        z_h, whatever the model is.
    """
    Prior().check_task(task)
    total = 0.0
    if len(records):
        predictions = predict_apart(spec, task, arrays, records.features, device)
        outputs = predictions[:, 0].astype(np.float64)
        residuals = np.nan_to_num(np.clip((records.targets - outputs) / BOUND, -1, 1))
        # Whole multiples of a grid: their sum is exact, in whichever order.
        total = float(np.round(residuals * _GRID).sum() / _GRID)
    # In float64 until the noise is in it: a float32 of a large sum would move by more than 1.
    exact = torch.tensor([total], dtype=torch.float64)
    return wire.encode_update(add_noise(exact, noise_multiplier, stream).numpy().astype(np.float32))


def mean_offset(total: Vector, noise_multiplier: float, records: float) -> Vector:
    """Return the output offset of noisy residuals, shape ``(1,)``.

    Its share that is more than noise: m·(1 − Var/m²)₊, the estimate of James and Stein (1961) for
    one mean.

    Args:
        total: noisy, of :func:`sum_residuals`, shape ``(1,)``.
        noise_multiplier: z_h, the standard deviation of its noise.
        records: the declared number of records.
    """
    share = max(0.0, 1 - (noise_multiplier / max(abs(float(total[0])), _TINY)) ** 2)
    return np.asarray(share * BOUND / records * total, np.float32)


def log_prior(task: Task, counts: Vector, noise_multiplier: float) -> Vector:
    """Return the output offsets of noisy counts, shape ``(task.outputs,)``.

    The counts are first shrunk to their mean by the share of their variance that is noise (Stein's
    estimate), so that a site with the common mix of labels adds little but zeros. Then log π̂ less
    its mean over the classes, which for a softmax is the same up to a constant, or the log-odds of
    the second class where the model has one logit. The common mix of labels is unknown here and
    counts as even; where it is not (Heart: 56 % of all records), accuracy is the same within its
    noise, 80.7 against 79.6 with the true mix taken out and 78.6 without a prior.

    Args:
        task: with classes.
        counts: noisy, shape ``(task.classes,)``.
        noise_multiplier: z_h, the standard deviation of their noise.
    """
    exact = counts.astype(np.float64)
    mean, variance = exact.mean(), exact.var(ddof=1)
    share = max(0.0, 1 - noise_multiplier**2 / max(variance, _TINY))
    least = max(FLOOR * noise_multiplier, LEAST)
    logs = np.log(np.maximum(mean + share * (exact - mean), least))
    if task.loss == "logistic":
        return np.array([logs[1] - logs[0]], np.float32)
    return np.asarray(logs - logs.mean(), np.float32)


class PriorHalf(SiteHalf):
    """Counts of labels at the start, or sum of residuals under the final model."""

    def prepare(self, site: Site, plan: Plan, arrays: Arrays | None) -> Work:
        """Return the count, or with ``arrays`` the sum."""
        noise, records = noise_of(plan), site.training_records()
        return partial(self._measure, site, records, noise, arrays)

    def _measure(self, site: Site, records: Records, z: float, arrays: Arrays | None) -> bytes:
        stream = site.streams(1, Prior.release).noise
        if arrays is None:
            return count_labels(site.task, records, z, stream)
        device = site.profile.training.device
        return sum_residuals(site.terms.model, site.task, arrays, records, z, stream, device)

    def applied(
        self, site: Site, plan: Plan, model: PersonalModel, payload: bytes
    ) -> PersonalModel:
        """Return the model with the prior's offset on its outputs."""
        release, z = wire.read_sealed(payload), noise_of(plan)
        if site.task.classes:
            return replace(model, added=log_prior(site.task, release, z))
        declared = site.profile.training.declared_records
        return replace(model, added=mean_offset(release, z, declared))


def noise_of(plan: Plan) -> float:
    """Return z_h of the plan's counts; raises ``AccountingError`` without them."""
    return plan.gaussian(Prior.release).noise_multiplier


HALF = PriorHalf()
