"""Message on coefficients of a site: noisy sum of its training records' clipped vectors.

``hdpfl_flower/data/record_scores.py`` has the vectors and their bound. Of each unit one record is
summed: training takes one record of an id, and without ids the record is the unit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from client_app.releases.base import SiteHalf, Work
from client_app.site.site import Site
from hdpfl_flower import wire
from hdpfl_flower.data.record_moments import Floats
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.privacy.noise import add_noise
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases.coefficients import Coefficients


class CoefficientsHalf(SiteHalf):
    """Noisy sum of the vectors of the training records at the message's model."""

    def prepare(self, site: Site, plan: Plan, arrays: Arrays | None) -> Work:
        """Return the sum with the plan's noise."""
        if arrays is None:
            raise DataError("coefficients need a model")
        design = Coefficients().design(site.terms, site.task)
        start, records = design.start(arrays), site.training_records()
        z = plan.gaussian(Coefficients.release).noise_multiplier
        return partial(_noisy, site, partial(design.sum, start, records), z)


def _noisy(site: Site, exact: Callable[[], Floats], z: float) -> bytes:
    stream = site.streams(site.terms.rounds, Coefficients.release).noise
    noisy = add_noise(torch.from_numpy(exact()), z, stream).numpy()
    return wire.encode_update(noisy.astype(np.float32))


HALF = CoefficientsHalf()
