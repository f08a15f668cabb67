"""The guards and the strategies that both parts of the study ``guards`` cross."""

from __future__ import annotations

from collections.abc import Sequence

from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.monitoring.rejection import Rejection, rejections_in

GUARDS = ("none", "cap", "evidence", "content")
"""Guards that refuse or bound weights; centred clipping changes the updates themselves."""

STRATEGIES = ("robust-hdp-drift", "mmse")
"""Rules of weights; the last is that of the quick table of attacks, the first that of costs."""

QUICK_GUARDS = ("none", "content")
"""Guards of the quick form of the table of attacks."""

RATE = 0.01
"""η of every run on MNIST, as in the other quick studies of these lists of ε."""


def refused_in(events: Sequence[Event]) -> set[str]:
    """Return the sites that the guard refused in any round."""
    return {
        site
        for event in events
        for site, code in rejections_in(event).items()
        if code is Rejection.GUARD
    }


def final_accuracy(events: Sequence[Event]) -> float:
    """Return the accuracy of the last round's model, in per cent."""
    return 100 * float(events[-1]["metrics"]["accuracy"])
