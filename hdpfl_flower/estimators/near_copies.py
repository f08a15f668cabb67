"""Which updates of a round are near copies of each other.

What two updates share counts as signal. Of a copy that is jittered a little, all but the jitter is
shared, so that both would pass for noiseless and take all the weight. Here a group of near copies
counts as one client: its members get the level that each has with the others of its group left out,
times their number.

Two sites that collude and two honest ones whose signals agree, and agree with nobody else's, cannot
be distinguished in one round; nor can three. So the rule acts on both, and only where it must: on
updates of which next to nothing is left when the copy has predicted them, and whose levels rise
manifold when the copy is left out. Where a third client has the same signal, they do not rise.
Nor does it act where half of the round or more, and more than two, are near copies: then they are
clusters, or liars in the majority; nor where half of the others have a partner for themselves too.
The guard ``evidence`` (``shared_noise.py``) refuses sites, by proof; this is no accusation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.factor_analysis import FactorModel, factor_analysis
from hdpfl_flower.estimators.identification import relative_errors
from hdpfl_flower.linalg.types import Matrix, Vector

Groups = list[npt.NDArray[np.intp]]

COPIES = "two or more updates are near copies: each group of them counts as one client"
LEFT = 0.02
"""Share of an update's energy that a copy leaves unpredicted, at most."""
LEFT_OF_DIFFERENCES = 0.2
"""The same of a difference of two uploads, which holds little signal for honest sites to agree on.
"""
RISES = 4.0
"""By how much each level rises when the copies are left out, at least, as a ratio of variances."""
UNSURE = 0.2
"""Relative standard error of such a level, at most: a factor that two rows have for themselves, for
one, leaves it open."""
BLATANT = 1e-4
"""Share that no honest noise leaves: a copy where the rest are too few to show who has the signal.
Honest noise would have to be 1/20,000 of the signal."""
_FEWEST_OTHERS = 6
"""Rows outside the copies below which they show nothing of clusters."""
_PARTNER = 0.5
"""Squared partial correlation with a partner: the partner predicts half of what the rest do not.
"""
_RIDGE = 8 * float(np.finfo(np.float32).eps)
"""More than the rounding of second moments of float32 rows, by which the correlation of two copies
may exceed 1; then their matrix would have a negative eigenvalue and no copy would be found."""


def near_copies(
    moments: Matrix,
    dimension: int,
    model: FactorModel,
    effective: float | None = None,
    most_left: float = LEFT,
) -> Groups:
    """Return the groups of near copies, each of two rows or more, ascending; mostly none.

    Rows are joined from the closest pair on. Of every group so found the inverse of the moments
    shows how much worse its members are predicted without each other; only where that is manifold
    for all of them are their levels estimated anew: most honest rounds cost one inverse.

    Args:
        moments: second moments, shape ``(n, n)``; a positive diagonal.
        dimension: d, the coordinates they are of.
        model: the factor model of all rows.
        effective: see :func:`~hdpfl_flower.estimators.factor_analysis.factor_analysis`.
        most_left: share of an update's energy that a copy leaves unpredicted, at most.
    """
    n, scale = len(moments), np.sqrt(np.diag(moments))
    if n < 3:
        return []
    # left = 1 − c²: the share of one update that the other leaves unpredicted.
    correlations = moments / np.outer(scale, scale)
    left = 1 - np.square(np.clip(correlations, -1, 1))
    first, second = np.nonzero(np.triu(left <= most_left, 1))
    if not len(first):
        return []
    precision = np.linalg.inv(correlations + _RIDGE * np.eye(n))
    groups, base = {i: np.array([i]) for i in range(n)}, model.variances.copy()
    found: dict[int, npt.NDArray[np.intp]] = {}
    for place in np.argsort(left[first, second], kind="stable"):
        one, other = (int(groups[int(i)][0]) for i in (first[place], second[place]))
        if one == other:
            continue
        group = np.union1d(groups[one], groups[other])
        groups.update(dict.fromkeys((int(i) for i in group), group))
        # What the rows outside the group leave of a member, over what all rows leave, 1/(R⁻¹)ᵢᵢ.
        ratios = np.diag(precision)[group] * _own(precision, group)
        if np.any(ratios < RISES / 2):
            continue
        few = len(group) <= max(2, (n - 1) // 2)
        blatant = few and bool(left[np.ix_(group, group)].max() <= BLATANT)
        risen = _without_each_other(moments, (dimension, effective), group, blatant)
        if risen is not None and np.all(risen >= RISES * base[group]):
            found = {i: members for i, members in found.items() if i not in group}
            found[int(group[0])] = group
            base[group] = risen
    result = [found[i] for i in sorted(found)]
    if sum(len(group) for group in result) > max(2, (n - 1) // 2):
        return []
    return [] if result and _is_of_pairs(correlations, result) else result


def _is_of_pairs(correlations: Matrix, groups: Groups) -> bool:
    """Return whether half of the rows outside the groups have a partner for themselves too.

    That is one without whom they are predicted twice as badly. Then the round is made of clusters
    of two, and a near pair is the quietest of them.
    """
    kept = one_of_each(groups, len(correlations))
    firsts = np.array([group[0] for group in groups])
    others = np.flatnonzero(~np.isin(kept, firsts))
    if len(others) < _FEWEST_OTHERS:
        return False
    precision = np.linalg.inv(correlations[np.ix_(kept, kept)] + _RIDGE * np.eye(len(kept)))
    scale = np.sqrt(np.diag(precision))
    partial = np.square(precision / np.outer(scale, scale))[np.ix_(others, others)]
    np.fill_diagonal(partial, 0)
    return bool(np.mean(partial.max(axis=1) > _PARTNER) >= 0.5)


def _own(precision: Matrix, group: npt.NDArray[np.intp]) -> Vector:
    """Return what the rows outside a group leave unpredicted of each member."""
    own: Vector = np.diag(np.linalg.inv(precision[np.ix_(group, group)]))
    return own


def _without_each_other(
    moments: Matrix, size: tuple[int, float | None], group: npt.NDArray[np.intp], blatant: bool
) -> Vector | None:
    """Return the level of each of a group with the others left out.

    None where the rest are too few to estimate them, unless the copies are blatant.
    """
    rest = np.setdiff1d(np.arange(len(moments)), group)
    levels = np.empty(len(group))
    for place, member in enumerate(group):
        kept = np.append(rest, member)
        part = factor_analysis(moments[np.ix_(kept, kept)], *size)
        levels[place] = part.variances[-1]
        if not blatant:
            errors = relative_errors(part, size[1] or size[0]) if part.identified else None
            if errors is None or not errors[-1, -1] <= UNSURE**2:
                return None
    return levels


def one_of_each(groups: Groups, n: int) -> npt.NDArray[np.intp]:
    """Return the rows without all but the first of every group, ascending.

    >>> one_of_each([np.array([1, 3]), np.array([2, 4, 5])], 7)
    array([0, 1, 2, 6])
    """
    extra = [group[1:] for group in groups]
    return np.setdiff1d(np.arange(n), np.concatenate(extra) if extra else np.empty(0, np.intp))


def shared_out(
    levels: Vector, kept: npt.NDArray[np.intp], groups: Groups, squares: Vector
) -> Vector:
    """Return the levels of all rows from those of :func:`one_of_each`.

    A group's members have their first one's level in proportion to their mean squares: they are
    multiples of each other but for the share ``LEFT``.

    Args:
        levels: of the rows ``kept``, shape ``(len(kept),)``.
        kept: the result of :func:`one_of_each`.
        groups: of near copies.
        squares: mean squares of all rows, shape ``(n,)``.
    """
    everybody = np.empty(len(squares))
    everybody[kept] = levels
    for group in groups:
        first = group[0]
        everybody[group] = everybody[first] * squares[group] / squares[first]
    return everybody


def counts_of(groups: Groups, n: int) -> Vector:
    """Return how many near copies each row stands among, itself included, shape ``(n,)``.

    >>> counts_of([np.array([1, 3])], 4)
    array([1., 2., 1., 2.])
    """
    counts = np.ones(n)
    for group in groups:
        counts[group] = len(group)
    return counts
