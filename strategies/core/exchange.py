"""Messages to sites, with replies matched to their sites."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from flwr.app import Message, RecordDict

log = logging.getLogger("hdpfl.server")


class Exchange:
    """One message to each of some sites, with the replies.

    Attributes:
        sites: that are asked, in order.
        messages: to hand to the grid, in the sites' order.
    """

    def __init__(
        self,
        content: RecordDict | dict[str, RecordDict],
        kind: str,
        nodes: Mapping[str, int],
        server_round: int = 0,
        ttl: float | None = None,
    ) -> None:
        """Address ``content``, common or by site, to ``nodes``.

        Parts that several contents share, as the model's arrays, are pushed once for all of them.
        """
        self.sites = list(nodes)
        self.messages = [
            Message(
                content if isinstance(content, RecordDict) else content[site],
                node,
                kind,
                ttl=ttl,
                group_id=str(server_round),
            )
            for site, node in nodes.items()
        ]

    def match(self, replies: Iterable[Message]) -> Iterator[tuple[str, Message]]:
        """Yield (site, reply), the first reply of each site alone.

        A list of replies is emptied, so that each can be let go of once its content is copied: all
        replies of a round together are as large as the matrix that they go into.

        A reply is matched by the message it answers: errors made on the way have no node of their
        own, and a site cannot answer for another.
        """
        site_of = {
            message.metadata.message_id: site
            for site, message in zip(self.sites, self.messages, strict=True)
        }
        for reply in _letting_go(replies):
            # Removed with the first reply: a second one to the same message matches nothing.
            site = site_of.pop(reply.metadata.reply_to_message_id, None)
            if site is None:
                log.warning("a reply to no open message was dropped")
            else:
                yield site, reply
            del reply  # not held while the next one is awaited


def _letting_go(replies: Iterable[Message]) -> Iterator[Message]:
    """Yield each reply without keeping it; a list gets empty."""
    if not isinstance(replies, list):
        yield from replies
        return
    replies.reverse()
    while replies:
        yield replies.pop()
