"""When a reply leaves: a constant time after the request arrived, so that its time says nothing.

How long the work takes follows the records that the batches happened to hold, and ε does not cover
it. A profile's ``reply-after`` holds every reply back, refusals too. Flower stamps a reply with the
time at which it is built and with what is then left of the request's own time to live, and sends
both: a reply is built after the wait, and bears the constant time in place of Flower's.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message

from hdpfl_flower.printable import site_log
from hdpfl_flower.config.profile import Profile

log = site_log()

_LONGEST_SLEEP = 3600.0
"""Seconds of one sleep; the system refuses to sleep for more than some hundred years."""


@dataclass(frozen=True)
class Arrival:
    """When a message arrived, and how long its reply is held back.

    Attributes:
        since: by ``time.monotonic()``, seconds.
        at: by the clock on the wall, seconds since 1970 (UTC).
        reply_after: of the profile, seconds; 0: the reply is not held back.
    """

    since: float
    at: float
    reply_after: float


def arrival(context: Context) -> Arrival:
    """Return when the message in hand arrived: now.

    Args:
        context: of the node, which names the profile; without one there is no wait. The profile is
            read here, before any work, so that one which goes away meanwhile does not end the wait.

    Raises:
        ProfileError: the profile cannot be read, so nothing is to be worked on.
    """
    since, at = time.monotonic(), time.time()
    return Arrival(since, at, _reply_after(context))


def hold(arrived: Arrival) -> float | None:
    """Wait until a multiple of the profile's ``reply-after`` has passed since the message arrived.

    Returns:
        The time that the reply is to bear, seconds since 1970: the arrival's and that multiple,
        exactly, whatever the wait took. None where nothing is held back.

    Guarantees:
        Returns at the first multiple that has not passed yet. A site whose work is never longer
        than ``reply-after`` always returns at the same time, and with the same number.
    """
    if not arrived.reply_after:
        return None
    multiple = max(1, math.ceil((time.monotonic() - arrived.since) / arrived.reply_after))
    if multiple > 1:
        log.warning(
            "the work took longer than 'reply-after': the reply leaves at %d times that, which "
            "tells that it was late; raise it",
            multiple,
        )
    end = arrived.since + multiple * arrived.reply_after
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LONGEST_SLEEP))
    return arrived.at + multiple * arrived.reply_after


def stamp(reply: Message, request: Message, created_at: float | None) -> Message:
    """Return ``reply`` with the time that it bears set, and what is left of the request's life.

    Args:
        reply: just built.
        request: what it answers.
        created_at: what :func:`hold` returned; None leaves what Flower wrote.

    Guarantees:
        Both numbers are functions of the request and of ``created_at`` alone.
    """
    if created_at is not None:
        reply.metadata.created_at = created_at
        reply.metadata.ttl = request.metadata.created_at + request.metadata.ttl - created_at
    return reply


def _reply_after(context: Context) -> float:
    path = context.node_config.get("profile")
    return Profile.load(Path(path).expanduser()).reply_after if isinstance(path, str) else 0.0
