"""Harrell's concordance of a discrete hazard."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def survival_of(outputs: npt.NDArray[np.floating]) -> Floats:
    """Return the survival probability up to each interval, shape ``(n, T)``.

    Args:
        outputs: logits of the hazard in each interval, shape ``(n, T)``.

    >>> survival_of(np.zeros((1, 2)))
    array([[0.5 , 0.25]])
    """
    # log(1 − σ(z)) = −log(1 + e^z); S(t) = Π over the intervals up to t.
    survival: Floats = np.exp(-np.cumsum(np.logaddexp(0, outputs.astype(np.float64)), axis=1))
    return survival


def risk_of(outputs: npt.NDArray[np.floating]) -> Floats:
    """Return minus the expected number of intervals survived, shape ``(n,)``.

    >>> risk_of(np.zeros((1, 2)))
    array([-0.75])
    """
    risks: Floats = -survival_of(outputs).sum(axis=1)
    return risks


def concordance(risks: Floats, targets: npt.NDArray[np.generic]) -> float:
    """Return the share of comparable pairs ranked correctly by risk.

    Correctly: the sooner event has the higher risk.

    A pair is comparable where one record has its event in an interval that the other survived; a
    tie of risks counts as half (Harrell et al., JAMA 1982). NaN without a comparable pair, or where
    a risk is not a number.

    Args:
        risks: shape ``(n,)``; more is sooner.
        targets: 2 · interval + event, shape ``(n,)``.

    >>> concordance(np.array([3.0, 2.0, 1.0]), np.array([1, 3, 4]))
    1.0
    """
    return float(Concordance(risks, targets)(np.ones((1, len(risks))))[0])


class Concordance:
    """:func:`concordance` of weighted records; a pair weighs their product."""

    def __init__(self, risks: Floats, targets: npt.NDArray[np.generic]) -> None:
        """Rank the records once; arguments as above."""
        whole = np.asarray(targets, dtype=np.int64)
        self._last, self._event = whole // 2, whole % 2 == 1
        self._known = not np.isnan(risks).any()
        # The rank of each distinct risk, from the lowest: ties share one.
        self._rank = np.unique(risks, return_inverse=True)[1] if self._known else whole
        self._ranks = int(self._rank.max(initial=0)) + 1

    def __call__(self, weights: Floats) -> Floats:
        """Return concordances ``(c,)`` of weights ``(c, n)``; NaN if undefined."""
        return np.array([self._of(row) if self._known else np.nan for row in weights])

    def _of(self, weights: Floats) -> float:
        pairs = right = 0.0
        for interval in np.unique(self._last[self._event]):
            now = self._event & (self._last == interval)
            # A record censored in an interval survived it: it comes after an event in the same one.
            later = (self._last > interval) | ((self._last == interval) & ~self._event)
            same = np.bincount(self._rank[later], weights[later], self._ranks)
            lower = np.cumsum(same) - same
            rank = self._rank[now]
            right += float(weights[now] @ (lower[rank] + same[rank] / 2))
            pairs += float(weights[now].sum() * weights[later].sum())
        return right / pairs if pairs else float("nan")
