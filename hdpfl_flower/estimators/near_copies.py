"""Detection of near copies among a round's updates.

The shared part of two updates counts as signal. In a slightly jittered copy all but the jitter is
shared, so that both would pass for noiseless and take all the weight. Here a group of near copies
counts as one client: each member gets its level with the others of the group left out,
times their number.

Two sites that collude, and two honest ones with signals that agree only with each other, cannot
be distinguished in one round; nor can three. So this treatment applies to both, and only where
necessary: to updates that their copy predicts almost completely, with levels that rise manifold
when the copy is left out. If a third client has the same signal, they do not rise. Nor does it
apply if half of the round or more, and more than two, are near copies: then they are clusters, or a
majority of liars; nor if half of the others also have a partner of their own. The guards
(``copied_noise.py``) refuse sites, by proof; near copies are not an accusation.
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
"""Largest share of energy that a copy leaves unpredicted."""
LEFT_OF_DIFFERENCES = 0.2
"""Same limit for differences of two uploads.

A difference has little signal on which honest sites could agree.
"""
RISES = 4.0
"""Least rise of each level without the copies, as a variance ratio."""
UNSURE = 0.2
"""Largest relative standard error of such a level.

A factor of only two rows, for example, leaves the level open.
"""
BLATANT = 1e-4
"""Unpredicted share that no honest noise reaches.

Used if the other rows are too few to show the signal. Honest noise would have to be 1/20,000 of it.
"""
_FEWEST_OTHERS = 6
"""Rows outside the copies below which clusters cannot be seen."""
_PARTNER = 0.5
"""Squared partial correlation with a partner.

The partner predicts half of the part left by the other rows.
"""
_RIDGE = 8 * float(np.finfo(np.float32).eps)
"""Ridge above the rounding error of float32 second moments.

Rounding may take the correlation of two copies above 1; then their matrix would have a negative
eigenvalue and no copy would be found.
"""


def near_copies(
    moments: Matrix,
    dimension: int,
    model: FactorModel,
    effective: float | None = None,
    most_left: float = LEFT,
) -> Groups:
    """Return groups of two or more near copies, ascending; mostly none.

    Rows are joined from the closest pair on. For every joined group the inverse of the moments
    shows how much worse its members are predicted without each other; only if that is manifold
    for all of them are their levels estimated anew: most honest rounds cost one inverse.

    Args:
        moments: second moments, shape ``(n, n)``; a positive diagonal.
        dimension: d, the number of coordinates.
        model: the factor model of all rows.
        effective: see :func:`~hdpfl_flower.estimators.factor_analysis.factor_analysis`.
        most_left: largest share of an update's energy that a copy leaves unpredicted.
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
    copies: dict[int, npt.NDArray[np.intp]] = {}
    for place in np.argsort(left[first, second], kind="stable"):
        first_of, second_of = (int(groups[int(i)][0]) for i in (first[place], second[place]))
        if first_of == second_of:
            continue
        group = np.union1d(groups[first_of], groups[second_of])
        groups.update(dict.fromkeys((int(i) for i in group), group))
        # A member's part unpredicted by rows outside the group, over that of all rows, 1/(R⁻¹)ᵢᵢ.
        ratios = np.diag(precision)[group] * _own(precision, group)
        if np.any(ratios < RISES / 2):
            continue
        few = len(group) <= max(2, (n - 1) // 2)
        blatant = few and bool(left[np.ix_(group, group)].max() <= BLATANT)
        risen = _without_each_other(moments, (dimension, effective), group, blatant)
        if risen is not None and np.all(risen >= RISES * base[group]):
            copies = {i: members for i, members in copies.items() if i not in group}
            copies[int(group[0])] = group
            base[group] = risen
    result = [copies[i] for i in sorted(copies)]
    if sum(len(group) for group in result) > max(2, (n - 1) // 2):
        return []
    return [] if result and _is_of_pairs(correlations, result) else result


def _is_of_pairs(correlations: Matrix, groups: Groups) -> bool:
    """Return whether half of the other rows also have a partner.

    Without the partner they are predicted twice as badly. Then the round consists of clusters
    of two, and a near pair is only the quietest of them.
    """
    rows = one_of_each(groups, len(correlations))
    firsts = np.array([group[0] for group in groups])
    others = np.flatnonzero(~np.isin(rows, firsts))
    if len(others) < _FEWEST_OTHERS:
        return False
    precision = np.linalg.inv(correlations[np.ix_(rows, rows)] + _RIDGE * np.eye(len(rows)))
    scale = np.sqrt(np.diag(precision))
    partial = np.square(precision / np.outer(scale, scale))[np.ix_(others, others)]
    np.fill_diagonal(partial, 0)
    return bool(np.mean(partial.max(axis=1) > _PARTNER) >= 0.5)


def _own(precision: Matrix, group: npt.NDArray[np.intp]) -> Vector:
    """Return each member's part unpredicted by rows outside the group."""
    unpredicted: Vector = np.diag(np.linalg.inv(precision[np.ix_(group, group)]))
    return unpredicted


def _without_each_other(
    moments: Matrix, size: tuple[int, float | None], group: npt.NDArray[np.intp], blatant: bool
) -> Vector | None:
    """Return each member's level with the others left out.

    None if the rest are too few to estimate them, unless the copies are blatant.
    """
    rest = np.setdiff1d(np.arange(len(moments)), group)
    levels = np.empty(len(group))
    for place, member in enumerate(group):
        rows = np.append(rest, member)
        model = factor_analysis(moments[np.ix_(rows, rows)], *size)
        levels[place] = model.variances[-1]
        if not blatant:
            errors = relative_errors(model, size[1] or size[0]) if model.identified else None
            if errors is None or not errors[-1, -1] <= UNSURE**2:
                return None
    return levels


def one_of_each(groups: Groups, n: int) -> npt.NDArray[np.intp]:
    """Return all rows but the second and later of each group, ascending.

    >>> one_of_each([np.array([1, 3]), np.array([2, 4, 5])], 7)
    array([0, 1, 2, 6])
    """
    extra = [group[1:] for group in groups]
    return np.setdiff1d(np.arange(n), np.concatenate(extra) if extra else np.empty(0, np.intp))


def shared_out(
    levels: Vector, rows: npt.NDArray[np.intp], groups: Groups, squares: Vector
) -> Vector:
    """Return the levels of all rows from those of :func:`one_of_each`.

    A group's members have their first one's level in proportion to their mean squares: they are
    multiples of each other up to the share ``LEFT``.

    Args:
        levels: of ``rows``, shape ``(len(rows),)``.
        rows: the result of :func:`one_of_each`.
        groups: of near copies.
        squares: mean squares of all rows, shape ``(n,)``.
    """
    everybody = np.empty(len(squares))
    everybody[rows] = levels
    for group in groups:
        first = group[0]
        everybody[group] = everybody[first] * squares[group] / squares[first]
    return everybody


def counts_of(groups: Groups, n: int) -> Vector:
    """Return each row's number of near copies, itself included, shape ``(n,)``.

    >>> counts_of([np.array([1, 3])], 4)
    array([1., 2., 1., 2.])
    """
    counts = np.ones(n)
    for group in groups:
        counts[group] = len(group)
    return counts
