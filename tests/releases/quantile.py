"""A kind of release that the product does not have: a charged quantile of one number column.

Each site counts its units between public borders of the schema's bounds, with Gaussian noise in
each count; the server sums the counts and reads the quantile off them. In the product it would be
this file, its halves (``quantile_half.py``, ``quantile_reading.py``) and its name in the registry
of ``hdpfl_flower/releases/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from hdpfl_flower.config.settings import Share, ShareOrNone
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.schema import NumberColumn, Schema
from hdpfl_flower.privacy.accounting import Gaussians
from hdpfl_flower.releases.base import Basis, ReleaseKind, once

BINS = 50


def places(terms: RunTerms) -> dict[str, tuple[int, NumberColumn]]:
    """Return the first feature and the bounds of each number column, by its name."""
    found, start = {}, 0
    for column in Schema.load(terms.schema_text or terms.dataset).columns:
        if isinstance(column, NumberColumn):
            found[column.name] = start, column
        start += len(column.feature_names)
    return found


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

    def contradictions(self, terms: RunTerms) -> Iterator[str]:
        """Yield a column that the schema does not bound."""
        if self.column not in places(terms):
            yield "'after.quantile.column' is no number column of the schema"

    def place_of(self, terms: RunTerms) -> tuple[int, NumberColumn]:
        """Return the column's feature and bounds."""
        return places(terms)[self.column]

    def cost(self, basis: Basis) -> Gaussians:
        """Return one release: one record more or less moves one count by 1."""
        return once(basis, self.share)
