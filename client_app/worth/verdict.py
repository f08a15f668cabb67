"""Verdict in words on a run's model, from its gains."""

from __future__ import annotations

from collections.abc import Iterable

from hdpfl_flower.measures.bootstrap import Estimate

WORTH = "worth it"
NOT_WORTH = "not worth it"
CANNOT_TELL = "cannot tell with so few records"


def verdict(over_home: Estimate, over_constant: Estimate) -> str:
    """Return the verdict on a model.

    Args:
        over_home: its gain over the model that the site trains alone.
        over_constant: its gain over the constant.

    Returns:
        :data:`WORTH` where both intervals lie above 0, :data:`NOT_WORTH` where one of them lies
        below 0, else :data:`CANNOT_TELL`. A verdict other than the last is wrong only where an
        interval is: as all of a comparison hold at once with its confidence, so do the verdicts.

    >>> verdict(Estimate(0.1, 0.02, 0.2), Estimate(0.3, 0.1, 0.4))
    'worth it'
    >>> verdict(Estimate(0.1, 0.0, 0.2), Estimate(0.3, 0.1, 0.4))
    'cannot tell with so few records'
    """
    if over_home.above and over_constant.above:
        return WORTH
    if over_home.below or over_constant.below:
        return NOT_WORTH
    return CANNOT_TELL


def verdict_on_run(of_models: Iterable[str]) -> str:
    """Return the verdict on joining: the run's best.

    It is as sure as those of the models: their intervals hold at once, whichever is chosen.

    >>> verdict_on_run([NOT_WORTH, CANNOT_TELL]), verdict_on_run([NOT_WORTH, WORTH])
    ('cannot tell with so few records', 'worth it')
    """
    found = set(of_models)
    return next(each for each in (WORTH, CANNOT_TELL, NOT_WORTH) if each in found)
