"""Local steps of each site a round, from the public terms or from disclosed facts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.updates import RoundUpdates

WIDEST = 10.0
"""A disclosed number of steps counts as the median times or over this much at most: a lie about it
scales a site's share by no more."""

FACTS = frozenset({"batch-size", "declared-records"})
"""Disclosed facts that determine a site's steps."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LocalSteps:
    """The local steps of a round's sites.

    Attributes:
        counts: kᵢ, at least 1, shape ``(n,)``; 1 for all where they are not known.
        known: sites with a known number, by the terms or by disclosed facts; shape ``(n,)``.
    """

    counts: Floats
    known: npt.NDArray[np.bool_]


def facts_needed(terms: RunTerms) -> frozenset[str]:
    """Return the facts that determine a site's steps: none where ``local-steps`` sets them."""
    return frozenset() if terms.local_steps else FACTS


def local_steps(terms: RunTerms, batch_sizes: Floats, records: Floats) -> LocalSteps:
    """Return k of every site: ``local-steps``, else ⌈K·N/b⌉ of disclosed N and b.

    A site that does not disclose both gets the median of those that do. Where fewer than half of
    the sites do, all get 1: one site cannot set the measure for the rest.

    Args:
        terms: the run's.
        batch_sizes: b, NaN where it is not disclosed, shape ``(n,)``.
        records: declared N, likewise.

    Guarantees:
        All counts lie within a factor of 10 of their median, whatever was disclosed.

    >>> local_steps(RunTerms(), np.array([10.0, 20.0, np.nan]), np.array([100.0, 100.0, 100.0]))
    LocalSteps(counts=array([10. ,  5. ,  7.5]), known=array([ True,  True, False]))
    """
    n = len(batch_sizes)
    if terms.local_steps:
        return LocalSteps(np.full(n, float(terms.local_steps)), np.ones(n, dtype=np.bool_))
    # Below 1 nothing is a number of records: a disclosed 0 would divide by zero.
    usable = np.isfinite(batch_sizes) & np.isfinite(records) & (batch_sizes >= 1) & (records >= 1)
    if not usable.any() or 2 * usable.sum() < n:
        return LocalSteps(np.ones(n), np.zeros(n, dtype=np.bool_))
    disclosed = np.ceil(terms.local_epochs * records[usable] / batch_sizes[usable])
    middle = float(np.median(disclosed))
    counts = np.full(n, middle)
    counts[usable] = np.clip(disclosed, max(1.0, middle / WIDEST), WIDEST * middle)
    return LocalSteps(counts, usable)


def disclosed_steps(terms: RunTerms, updates: RoundUpdates) -> LocalSteps:
    """Return the local steps of a round's sites, from their disclosed facts."""
    nothing = np.full(len(updates.sites), np.nan)
    batch_sizes = updates.disclosed.get("batch-size", nothing)
    return local_steps(terms, batch_sizes, updates.disclosed.get("declared-records", nothing))
