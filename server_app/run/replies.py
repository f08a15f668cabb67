"""Replies of a deployed round, pulled once more at its deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

PULL_SECONDS = 3.0
"""Between two looks of a ServerApp for replies, as Flower's."""


def pull_once_more(grid: Grid) -> None:
    """Have a deployed run's grid pull once more at the deadline.

    Flower pulls replies one by one and waits up to 180 seconds for one that was announced and is
    not sent: all others would be late.
    """

    def send_and_receive(
        messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        left, replies = set(grid.push_messages(messages)), []
        end, now = time.monotonic() + (math.inf if timeout is None else timeout), 0.0
        while left and now < end:
            now = time.monotonic()
            pulled = list(grid.pull_messages(left))
            replies += pulled
            left -= {reply.metadata.reply_to_message_id for reply in pulled}
            if left:
                time.sleep(min(PULL_SECONDS, max(end - time.monotonic(), 0.0)))
        return replies

    grid.send_and_receive = send_and_receive  # type: ignore[method-assign]
