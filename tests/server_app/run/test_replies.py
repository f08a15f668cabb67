"""A reply that is announced and not sent, and the others."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from server_app.run import replies as pulling
from server_app.run.replies import pull_once_more


class Deployed:
    """A grid on which the reply to the first message is announced and never sent."""

    def __init__(self, held: float) -> None:
        self.held, self.pulled = held, 0

    def push_messages(self, messages: Iterable[str]) -> list[str]:
        return list(messages)

    def pull_messages(self, left: set[str]) -> list[SimpleNamespace]:
        self.pulled += 1
        if self.pulled == 1:
            time.sleep(self.held)
            return []
        there = sorted(left - {"never"})
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=x)) for x in there]


@pytest.mark.parametrize(("timeout", "asked"), [(0.1, "never ab"), (0.6, "ab"), (None, "ab")])
def test_a_reply_that_is_not_sent_makes_no_other_one_late(
    timeout: float | None, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "PULL_SECONDS", 0.01)
    grid: Any = Deployed(0.2)
    pull_once_more(grid)
    words = ["never", "a", "b"] if "never" in asked else ["a", "b"]
    replies = grid.send_and_receive(words, timeout=timeout)
    assert sorted(reply.metadata.reply_to_message_id for reply in replies) == ["a", "b"]
    assert grid.pulled == 2
