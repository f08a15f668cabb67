"""When a reply leaves: a constant time after the request came, so that its time tells nothing.

How long the work takes follows the records that the batches happened to hold, and ε does not cover
it. A profile's ``reply-after`` holds every reply back, refusals too.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path

from flwr.app import Context

from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.profile import Profile

log = logging.getLogger("hdpfl.site")


def hold(begun: float, context: Context) -> None:
    """Wait until a multiple of the profile's ``reply-after`` has passed since ``begun``.

    Args:
        begun: when the request came, by ``time.monotonic()``, seconds.
        context: of the node, which names the profile. Without one, or with one that cannot be read,
            there is no wait: such a node has trained nothing.

    Guarantees:
        Returns at the first multiple that has not passed yet. A site whose work is never longer
        than ``reply-after`` always returns at the same time.
    """
    reply_after = _reply_after(context)
    if not reply_after:
        return
    multiple = max(1, math.ceil((time.monotonic() - begun) / reply_after))
    if multiple > 1:
        log.warning(
            "the work took longer than 'reply-after': the reply leaves at %d times that, which "
            "tells that it was late; raise it",
            multiple,
        )
    end = begun + multiple * reply_after
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)


def _reply_after(context: Context) -> float:
    path = context.node_config.get("profile")
    if not isinstance(path, str):
        return 0.0
    try:
        return Profile.load(Path(path).expanduser()).reply_after
    except HDPFLError:
        return 0.0
