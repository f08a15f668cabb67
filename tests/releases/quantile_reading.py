"""Server's half of the quantile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.models.task import Task
from hdpfl_flower.releases.base import ReleaseKind
from server_app.releases import ServerHalf
from tests.releases.quantile import BINS, Quantile


class QuantileReading(ServerHalf):
    """The quantile of the summed counts."""

    def numbers(self, kind: ReleaseKind, terms: RunTerms, task: Task) -> int:
        """Return the public number of counts."""
        return BINS

    def read(
        self,
        kind: ReleaseKind,
        rows: npt.NDArray[np.float32],
        without: Mapping[str, str],
        terms: RunTerms,
    ) -> dict[str, Any]:
        """Return the quantile of the summed counts."""
        assert isinstance(kind, Quantile)
        facts: dict[str, Any] = {"sites": len(rows), "without": dict(without), "measures": {}}
        if len(rows):
            below = np.maximum(rows.sum(0), 0).cumsum()
            low, high = kind.place_of(terms)[1].bounds
            share = (np.searchsorted(below, kind.q * below[-1]) + 0.5) / BINS
            value = low + (high - low) * float(share)
            width = (high - low) / BINS
            name = f"{kind.q:g} quantile of {kind.column}"
            facts["measures"] = {
                name: {"value": value, "low": value - width, "high": value + width}
            }
        return facts


HALF = QuantileReading()
