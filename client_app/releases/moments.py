"""First message of a site: noisy sum of clipped vectors.

``hdpfl_flower/data/record_moments.py`` has the vectors and their bound. Of each unit one record is
summed: training takes one record of an id, and without ids the record is the unit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from client_app.releases.base import SummedHalf, Work
from client_app.site.site import Site
from hdpfl_flower import wire
from hdpfl_flower.data.record_moments import Floats, Layout, held_back, record_sum
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.privacy.noise import add_noise
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases import asked_kind
from hdpfl_flower.releases.moments import Moments
from hdpfl_flower.wire import Instructions


class MomentsHalf(SummedHalf):
    """Noisy sum of the vectors of the training records."""

    def prepare(self, site: Site, plan: Plan, arrays: Arrays | None) -> Work:
        """Return the sum with the plan's noise."""
        del arrays
        return partial(_noisy, site, self._layout(site), self._exact(site), _noise_of(plan))

    def summed(self, site: Site, plan: Plan, instructions: Instructions) -> Work:
        """Return a masked part of the sum over all sites."""
        source = site.terms.source.half("client_app.site.{}")
        noise, z = site.streams(1, Moments.release).noise, _noise_of(plan)
        work: Work = source.masked_part(site, instructions, self._exact(site), z, noise)
        return work

    def _exact(self, site: Site) -> Callable[[], Floats]:
        """Return the sum's computation: once it is reserved, and for no other request."""
        return partial(record_sum, self._layout(site), site.training_records())

    def _layout(self, site: Site) -> Layout:
        kind = asked_kind(site.terms, Moments)
        if kind is None or site.terms.scales:
            raise Declined(Reason.TERMS, "a first message needs records without 'scales'")
        return kind.layout(site.terms, site.task)


def _noisy(site: Site, layout: Layout, exact: Callable[[], Floats], z: float) -> bytes:
    stream = site.streams(1, Moments.release).noise
    noisy = add_noise(torch.from_numpy(exact()), z, stream).numpy()
    shown = held_back(layout, noisy, site.profile.policy.min_count)
    return wire.encode_update(shown.astype(np.float32))


def _noise_of(plan: Plan) -> float:
    return plan.gaussian(Moments.release).noise_multiplier


HALF = MomentsHalf()
