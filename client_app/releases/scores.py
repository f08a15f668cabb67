"""Charged histogram of the final model's scores of held-out records.

Of each unit one record is counted: training and holdout take one record of an id, and without
ids the record is the unit. So one unit more or less moves one count by 1, and with the plan's noise
the release is a Gaussian mechanism of its multiplier. The server's estimates from the sum over the
sites are in ``server_app/releases/scores.py``.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from client_app.releases.base import SiteHalf, Work
from client_app.site.site import Site
from hdpfl_flower import wire
from hdpfl_flower.errors import DataError
from hdpfl_flower.measures.score_cells import CELLS, count_cells
from hdpfl_flower.models.evaluation import predict_apart
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import RandomStream, add_noise
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases.scores import Scores


def noisy_cells(
    spec: str,
    task: Task,
    arrays: Arrays,
    records: Records | None,
    noise_multiplier: float,
    stream: RandomStream,
    device: str = "auto",
) -> bytes:
    """Return noisy counts of ``records`` in public cells, encoded.

    Args:
        spec: of the model.
        task: of two classes.
        arrays: of the model.
        records: of which each unit has one; None or none: noise alone.
        noise_multiplier: z of the plan's scores; 0 only where ε is infinite.
        stream: of this release alone.
        device: where the model is computed.

    Raises:
        DataError: the task is not of two classes.

    Guarantees:
        One record more or less changes one number by at most 1, before the noise, whatever the
        model is: with its noise the release is a Gaussian mechanism of that multiplier.
    """
    Scores().check_task(task)
    exact = np.zeros(CELLS, np.float32)
    if records is not None and len(records):
        # Each row by itself: its score does not depend on the others.
        outputs = predict_apart(spec, task, arrays, records.features, device)
        exact = count_cells(task, outputs, records.targets.astype(np.int64))
    return wire.encode_update(add_noise(torch.from_numpy(exact), noise_multiplier, stream).numpy())


class ScoresHalf(SiteHalf):
    """Histogram of the message's model on the records held out."""

    def prepare(self, site: Site, plan: Plan, arrays: Arrays | None) -> Work:
        """Return the count.

        A site that holds out no records sends noise alone, of the same shape: whether it has any
        is not to be seen.
        """
        if arrays is None:
            raise DataError("scores need a model")
        records, z = site.test_records(), plan.gaussian(Scores.release).noise_multiplier
        return partial(self._count, site, arrays, records, z)

    def _count(self, site: Site, arrays: Arrays, records: Records | None, z: float) -> bytes:
        stream = site.streams(site.terms.rounds, Scores.release).noise
        device = site.profile.training.device
        return noisy_cells(site.terms.model, site.task, arrays, records, z, stream, device)


HALF = ScoresHalf()
