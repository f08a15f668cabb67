"""Harrell's concordance of a discrete hazard: who is predicted to have the event sooner has it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ROWS = 1024
"""Records that are compared with all others at a time: memory is _ROWS · n bytes."""


def risk_of(outputs: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return minus the expected number of intervals survived, shape ``(n,)``.

    Args:
        outputs: logits of the hazard in each interval, shape ``(n, T)``.

    >>> risk_of(np.zeros((1, 2)))
    array([-0.75])
    """
    # log(1 − σ(z)) = −log(1 + e^z); S(t) = Π over the intervals up to t.
    survived = np.exp(-np.cumsum(np.logaddexp(0, outputs.astype(np.float64)), axis=1))
    risks: npt.NDArray[np.float64] = -survived.sum(axis=1)
    return risks


def concordance(risks: npt.NDArray[np.float64], targets: npt.NDArray[np.generic]) -> float:
    """Return the share of comparable pairs in which the sooner event has the higher risk.

    A pair is comparable where one record has its event in an interval that the other survived; a
    tie of risks counts as half (Harrell et al., JAMA 1982). NaN without such a pair, or where a
    risk is not a number.

    Args:
        risks: shape ``(n,)``; more is sooner.
        targets: 2 · interval + event, shape ``(n,)``.

    >>> concordance(np.array([3.0, 2.0, 1.0]), np.array([1, 3, 4]))
    1.0
    """
    last, event = np.asarray(targets, dtype=np.int64) // 2, np.asarray(targets) % 2 == 1
    # Censored in an interval is survived through it: after an event in the same one.
    end = 2 * last + ~event
    if np.isnan(risks).any():
        return float("nan")
    pairs, right = 0, 0.0
    with_event = np.flatnonzero(event)
    for first in range(0, len(with_event), _ROWS):
        some = with_event[first : first + _ROWS]
        later = end[None, :] > end[some, None]
        higher, same = risks[some, None] > risks[None, :], risks[some, None] == risks[None, :]
        pairs += int(later.sum())
        right += int((later & higher).sum()) + int((later & same).sum()) / 2
    return right / pairs if pairs else float("nan")
