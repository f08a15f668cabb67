"""A kind of release that the product does not have: a charged quantile of one number column.

Each site counts its units between public borders of the schema's bounds, with Gaussian noise in
each count; the server sums the counts and reads the quantile off them. In the product it would be
this file, its half at a site (``quantile_half.py``) and its name in the registry of
``hdpfl_flower/releases/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.config.settings import Share, ShareOrNone
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.schema import NumberColumn, Schema
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.accounting import Gaussians
from hdpfl_flower.releases.base import Basis, ReleaseKind, once

BINS = 50


class Quantile(ReleaseKind):
    """Noisy counts of a column's values between public borders."""

    kind, main, release = "quantile", "share", "quantile"
    is_sent = True
    consent = "one noisy count of the values of a column between public borders, at the end"
    event = "quantile"
    title = "Quantile of a column over the sites"
    price = "noise of a count of values between public borders, sent once"
    item = "count"
    content = "of a column's values between public borders, with noise in each"
    report = "Quantile: the values of a column are counted between public borders, with that noise."
    column: str = Field("", description="Name of a number column of the schema.")
    q: Share = Field(0.5, description="Share of the records below the value that is estimated.")
    share: ShareOrNone = Field(0.0, description="Share of a site's ε that it alone would cost.")

    def check(self, terms: RunTerms) -> None:
        """Refuse a column that the schema does not bound."""
        self.place_of(terms)

    def place_of(self, terms: RunTerms) -> tuple[int, NumberColumn]:
        """Return the column's feature and bounds."""
        schema = Schema.load(terms.schema_text or terms.dataset)
        start = 0
        for column in schema.columns:
            if column.name == self.column and isinstance(column, NumberColumn):
                return start, column
            start += len(column.feature_names)
        raise TermsError("run config: 'after.quantile.column' is no number column of the schema")

    def cost(self, basis: Basis) -> Gaussians:
        """Return one release: one record more or less moves one count by 1."""
        return once(basis, self.share)

    def numbers(self, terms: RunTerms, task: Task) -> int:
        """Return the public number of counts."""
        return BINS

    def read(
        self, rows: npt.NDArray[np.float32], without: Mapping[str, str], terms: RunTerms, task: Task
    ) -> dict[str, Any]:
        """Return the quantile of the summed counts."""
        facts = {"sites": len(rows), "without": dict(without), "measures": {}}
        if len(rows):
            below = np.maximum(rows.sum(0), 0).cumsum()
            low, high = self.place_of(terms)[1].bounds
            share = (np.searchsorted(below, self.q * below[-1]) + 0.5) / BINS
            value = low + (high - low) * float(share)
            width = (high - low) / BINS
            name = f"{self.q:g} quantile of {self.column}"
            facts["measures"] = {
                name: {"value": value, "low": value - width, "high": value + width}
            }
        return facts
