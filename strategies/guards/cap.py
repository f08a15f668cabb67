"""Guard ``cap``: refuses proven liars, bounds weights by 3/n."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.linalg.types import Vector
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.by_records import by_rows, weighted_rows
from strategies.guards.guard import BY_SITE, ProvingGuard

CAP = 3.0
"""No site weighs more than this many times 1/n."""
_NOTHING = 1e-12
"""Smallest sum of weights that can be shared in proportion."""


class Cap(ProvingGuard):
    """Guard ``cap``: proofs, and no weight above ``CAP``/n."""

    needs: ClassVar[Mapping[str, str]] = {
        **BY_SITE,
        "is_weighted_sum": "take 'content' or 'none', or another strategy",
    }

    def screen(self, updates: RoundUpdates, model: Arrays | None = None) -> RoundUpdates:
        """Return the updates without zeros, copies and proven liars."""
        accepted = super().screen(updates, model)
        return self._without_proven(accepted)

    def reweigh(self, outcome: Outcome, accepted: RoundUpdates, rate: float = 1.0) -> Outcome:
        """Return the outcome with bounded weights, and ``capped``."""
        bounded = _capped(outcome, accepted)
        is_cut = bounded.weights < outcome.weights * (1 - 1e-9)
        self._gauges = {"capped": is_cut.astype(np.float64)}
        return super().reweigh(bounded, accepted, rate)


def _capped(outcome: Outcome, accepted: RoundUpdates) -> Outcome:
    """Return the outcome with no weight above ``CAP``/n, in any class row."""
    limit, rows = CAP / len(accepted.sites), outcome.row_weights
    if rows is not None:
        shares = np.array([cap_weights(block, limit) for block in rows.shares])
        rows = replace(rows, shares=shares)
        capped = by_rows(rows, weighted_rows(rows, accepted.updates), outcome.gauges)
        return replace(capped, group=outcome.group)
    weights = cap_weights(outcome.weights, limit)
    update = weighted_sum(outcome.scale * weights, accepted.updates)
    return replace(outcome, update=update, weights=weights)


def cap_weights(weights: Vector, limit: float) -> Vector:
    """Return convex weights of at most ``limit``, shape ``(n,)``.

    Water-filling: the weight that is cut off goes to the sites below the limit, in proportion to
    their weights, until none exceeds it. Sites without weight share the rest. Where ``limit`` is
    below 1/n, every weight is 1/n.

    >>> cap_weights(np.array([0.8, 0.1, 0.1, 0.0]), 0.5)
    array([0.5 , 0.25, 0.25, 0.  ])
    """
    capped, full = weights.copy(), np.zeros(len(weights), dtype=np.bool_)
    limit = max(limit, 1 / len(weights))
    # Every pass fills at least one more site, so that there are n passes at most.
    while (capped > limit * (1 + 1e-12)).any():
        # `full` only grows: a site that was cut off never falls below the limit again.
        full |= capped > limit
        left = 1 - limit * int(full.sum())
        below = np.where(full, 0, weights)
        if below.sum() < _NOTHING:
            below = (~full).astype(np.float64)
        capped = np.where(full, limit, below * (left / max(below.sum(), _NOTHING)))
    return capped
