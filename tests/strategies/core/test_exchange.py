"""Replies: matched to their messages, and let go of one by one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import ModuleType
from uuid import uuid4

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from hdpfl_flower import server_wire, wire
from strategies.core import exchange as module
from strategies.core.exchange import Exchange


def asked(source: ModuleType, sites: int) -> tuple[Exchange, list[Message]]:
    """Return an exchange and the replies to it, nothing else holding them."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    exchange = source.Exchange(
        RecordDict(), wire.TRAIN, {str(i): i + 1 for i in range(sites)}, 1, 9
    )
    replies = []
    for i, message in enumerate(exchange.messages):
        message.metadata.__dict__["_message_id"] = uuid4().hex
        payload = wire.encode_update(np.full(10, i, np.float32))
        replies.append(Message(wire.write_update(payload, 10), reply_to=message))
    return exchange, replies


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """Memory must come back when the last reference goes, not when cycles are collected."""
    gc.disable()
    yield
    gc.enable()


def most_alive(source: ModuleType) -> int:
    """Return how many replies were alive at most when a next one came."""
    exchange, replies = asked(source, 5)
    watched, seen = [weakref.ref(reply) for reply in replies], []
    for site, reply in exchange.match(replies):
        assert server_wire.read_update(reply.content, 10)[0] == int(site)
        seen.append(sum(ref() is not None for ref in watched[: len(seen) + 1]))
        del reply
    assert len(seen) == 5
    assert not replies
    return max(seen)


@pytest.mark.usefixtures("_no_collector")
def test_a_reply_is_gone_before_the_next_one_comes() -> None:
    assert most_alive(module) == 1


def test_replies_that_are_no_list_are_matched_too_and_the_first_counts() -> None:
    exchange, replies = asked(module, 3)
    doubled = [replies[2], replies[0], replies[2], replies[1]]
    assert [site for site, _ in exchange.match(iter(doubled))] == ["2", "0", "1"]
    exchange, replies = asked(module, 3)
    assert [site for site, _ in exchange.match([*replies, replies[0]])] == ["0", "1", "2"]
