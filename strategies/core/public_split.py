"""Weights by disclosed ε, and the split into public and private.

PFA calls a site of loose ε *public*: its update carries little noise. Nothing here makes a site's
data public.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import TermsError
from hdpfl_flower.weighting.by_epsilon import counted_epsilons

Epsilons = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_PATTERN = "auto, gmm, kmeans, top:SHARE with 0 < SHARE ≤ 1, or threshold:EPSILON above 0"
_SPREAD_FLOOR = 1e-3
"""Least width of a component, as a share of the deviation of all ε."""


def split_public(epsilons: Epsilons, method: str) -> Mask:
    """Return which sites are public, shape ``(n,)``.

    Args:
        epsilons: every site's ε, shape ``(n,)``, as disclosed.
        method: ``auto`` (``gmm`` where that is :func:`stands`, else no site), ``gmm`` (upper part
            of a mixture of two normals, as PFA has it), ``kmeans`` (upper of two means),
            ``top:SHARE`` (the SHARE with the largest ε, at least one, with its ties) or
            ``threshold:EPSILON`` (at least that ε; may be no site).

    Guarantees:
        No private site has a larger ε than a public one. The order of the sites and any seed are
        irrelevant. Where all ε are equal, ``auto``, ``gmm`` and ``kmeans`` call all public. Under
        ``auto`` no site but the last public one moves others across by leaving: the split of those
        that are left is the same, or there is none any more.

    Raises:
        TermsError: ``method`` is none of these.

    >>> split_public(np.array([0.1, 10.0, 0.2, 9.0]), "gmm")
    array([False,  True, False,  True])
    """
    name, number = parse_split(method)
    if name == "auto":
        public = split_public(epsilons, "gmm")
        return public if stands(epsilons, public) else np.zeros(len(epsilons), dtype=np.bool_)
    values = counted_epsilons(epsilons)
    if name == "threshold":
        return np.asarray(epsilons >= number)
    ordered = np.sort(values)
    if name == "top":
        # The 1e-9 absorbs the product's error: 0.29·100 is just below 29 in float64.
        first = len(values) - max(1, math.floor(number * len(values) + 1e-9))
    elif ordered[-1] - ordered[0] <= 1e-9 * ordered[-1]:
        first = 0
    else:
        first = _two_means(ordered)
        if name == "gmm":
            first = _mixture(ordered, first)
    # By value, so that equal ε fall on the same side.
    return np.asarray(values >= ordered[first])


def stands(epsilons: Epsilons, public: Mask) -> bool:
    """Return whether the split stays when any one site is away.

    A mixture fits any list of ε, also one without a gap; there one site decides over the others.
    The only public site is not taken away: without it no site is left to compare with.

    >>> clear, even = np.array([0.5, 0.6, 0.7, 9.0, 10.0]), np.array([0.3, 0.5, 1.0, 2.0, 4.0, 8.0])
    >>> [stands(one, split_public(one, "gmm")) for one in (clear, even)]
    [True, False]
    """
    everyone = np.arange(len(epsilons))
    # Leave one out: n fits, each without one site, compared on the others.
    return all(
        np.array_equal(split_public(epsilons[everyone != i], "gmm"), public[everyone != i])
        for i in everyone
        if len(everyone) > 1 and not (public[i] and public.sum() == 1)
    )


def parse_split(method: str) -> tuple[str, float]:
    """Return the name of a split and its number, or 0.

    Raises:
        TermsError: not a split.
    """
    name, colon, text = method.partition(":")
    if method in ("auto", "gmm", "kmeans"):
        return method, 0.0
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    above = {"top": 1.0, "threshold": math.inf}.get(name)
    if not colon or above is None or not 0 < number <= above:
        raise TermsError(f"run config: 'public-split' is '{method}'; write {_PATTERN}")
    return name, number


def _two_means(ordered: Epsilons) -> int:
    """Return the start of the upper of two clusters.

    In one dimension the best clusters are intervals, so all n − 1 cuts are tried: no start, no
    seed, no local minimum.
    """
    n, sums = len(ordered), np.cumsum(ordered)
    below = np.arange(1, n)
    # Within-cluster squares are least where those between, Σ (sum of a cluster)²/its size, are most
    between = sums[:-1] ** 2 / below + (sums[-1] - sums[:-1]) ** 2 / (n - below)
    return int(np.argmax(between)) + 1


def _mixture(ordered: Epsilons, first: int) -> int:
    """Return the start of the upper of two normal components.

    EM starts from the best two means, so that it has no seed. The wider component may claim the
    smallest ε as well; the public sites are the unbroken run of its sites at the top, and where
    that run is empty, the upper of the two means.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    floor = (_SPREAD_FLOOR * ordered.std()) ** 2
    parts = ordered[:first], ordered[first:]
    column = ordered[:, None]
    # Weights, means and variances start from the two clusters; a full covariance of one dimension
    # has shape (1, 1).
    model = GaussianMixture(
        2,
        reg_covar=floor,
        tol=1e-6,
        max_iter=500,
        weights_init=np.array([len(cluster) / len(ordered) for cluster in parts]),
        means_init=np.array([[cluster.mean()] for cluster in parts]),
        precisions_init=np.array([[[1 / (cluster.var() + floor)]] for cluster in parts]),
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # as good as it gets is good enough
        upper = model.fit(column).predict(column) == np.argmax(model.means_[:, 0])
    # The number of upper sites at the top, up to the first one that is not.
    run = int(np.argmin(upper[::-1])) if not upper.all() else 0
    return len(ordered) - run if run else first
