"""Messages out, replies back, each to the site it belongs to."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from flwr.app import Message, RecordDict

log = logging.getLogger("hdpfl.server")


class Exchange:
    """One message to each of some sites, and the replies to them.

    Attributes:
        messages: to hand to the grid, in the sites' order.
    """

    def __init__(
        self,
        content: RecordDict,
        kind: str,
        nodes: Mapping[str, int],
        server_round: int = 0,
        ttl: float | None = None,
    ) -> None:
        """Address ``content`` to the ``nodes`` of the sites; it is pushed once for all of them."""
        self._sites = list(nodes)
        self.messages = [
            Message(content, node, kind, ttl=ttl, group_id=str(server_round))
            for node in nodes.values()
        ]

    def match(self, replies: Iterable[Message]) -> Iterator[tuple[str, Message]]:
        """Yield (site, reply), the first reply of each site alone.

        A reply is matched by the message it answers: errors made on the way have no node of their
        own, and a site cannot answer for another.
        """
        site_of = {
            message.metadata.message_id: site
            for site, message in zip(self._sites, self.messages, strict=True)
        }
        for reply in replies:
            site = site_of.pop(reply.metadata.reply_to_message_id, None)
            if site is None:
                log.warning("a reply to no open message was dropped")
            else:
                yield site, reply
