"""A site's half of ``quantile.py``: its counts and their noise."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from client_app.releases.base import SiteHalf, Work
from client_app.site.site import Site
from hdpfl_flower import wire
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.noise import add_noise
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases import asked_kind
from tests.releases.quantile import BINS, Quantile


class QuantileHalf(SiteHalf):
    """Counts of the units of training."""

    def prepare(self, site: Site, plan: Plan, arrays: Arrays | None) -> Work:
        """Return the count."""
        z = plan.gaussian(Quantile.release).noise_multiplier
        return partial(self._count, site, site.training_records(), z)

    def _count(self, site: Site, records: Records, z: float) -> bytes:
        settings = asked_kind(site.terms, Quantile)
        assert settings is not None
        scaled = records.features[:, settings.place_of(site.terms)[0]]
        bins = np.clip((scaled + 1) / 2 * BINS, 0, BINS - 1).astype(np.int64)
        counts = np.bincount(bins, minlength=BINS).astype(np.float32)
        stream = site.streams(site.terms.rounds, Quantile.release).noise
        return wire.encode_update(add_noise(torch.from_numpy(counts), z, stream).numpy())


HALF = QuantileHalf()
