"""Constant reply time after a request's arrival, for refusals too.

How long the work takes depends on the records in the batches, and ε does not cover that. A
profile's ``reply-after`` delays every reply to a multiple of that time. Flower writes into a reply
the time at which it was built and the rest of the request's time to live, and sends both: a reply
is built after the wait, and carries the constant time in place of Flower's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.system.paths import expanded
from hdpfl_flower.system.printable import site_log

log = site_log()

_LONGEST_SLEEP = 3600.0
"""Seconds of one sleep; the system refuses to sleep for more than some hundred years."""


@dataclass(frozen=True, repr=False)
class Arrival:
    """Arrival time of a message, and the profile that answers it.

    Attributes:
        since: by ``time.monotonic()``, seconds.
        wall: by the clock on the wall, seconds since 1970 (UTC).
        profile: parsed once for the whole message; None: the node has none.
    """

    since: float
    wall: float
    profile: Profile | None

    @property
    def reply_after(self) -> float:
        """Seconds, from the profile; 0: replies leave when ready."""
        return self.profile.reply_after if self.profile is not None else 0.0


def node_profile(node_config: Mapping[str, Any]) -> Profile | None:
    """Return the profile that the node's configuration names, if any.

    Raises:
        ProfileError: the file is missing or wrong.
    """
    path = node_config.get("profile")
    return Profile.load(expanded(path)) if isinstance(path, str) else None


def arrival(node_config: Mapping[str, Any]) -> Arrival:
    """Return when the message in hand arrived: now.

    Args:
        node_config: it names the profile, which is read here, before any work: a profile that is
            removed meanwhile does not shorten the wait.

    Raises:
        ProfileError: the profile cannot be read, so no work may begin.
    """
    since, wall = time.monotonic(), time.time()  # before the profile: reading it takes time, too
    return Arrival(since, wall, node_profile(node_config))


def wait_until_due(arrived: Arrival) -> float | None:
    """Wait until a multiple of ``reply-after`` since the arrival.

    Returns:
        The time that the reply carries, seconds since 1970: the arrival's and that multiple,
        exactly, whatever the wait took. None without a ``reply-after``.

    Guarantees:
        Returns at the first multiple that has not passed yet. If the work is never longer than
        ``reply-after``, a site always returns after the same time, and with the same number.
    """
    if not arrived.reply_after:
        return None
    # The monotonic clock: setting the clock on the wall must not shorten a wait.
    multiple = max(1, math.ceil((time.monotonic() - arrived.since) / arrived.reply_after))
    if multiple > 1:
        log.warning(
            "the work took longer than 'reply-after': the reply leaves at %d times that, which "
            "discloses that it was late; raise it",
            multiple,
        )
    end = arrived.since + multiple * arrived.reply_after
    # A sleep may end early, and is cut at _LONGEST_SLEEP: the loop waits for the rest.
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LONGEST_SLEEP))
    return arrived.wall + multiple * arrived.reply_after
