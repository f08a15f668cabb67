"""In-process Grid with sites that overstate their ε, to measure strategies that weigh by it.

Source: Malekmohammadi's thesis, Fig. 3.6. Only simulated sites lie.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from flwr.app import Context, Message

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_tools.simulation.in_process.grid import LocalGrid

OVERSTATED: Final = "overstated-epsilon"
"""Attack: a liar discloses ``STATED`` as its ε; its noise stays that of its own."""
STATED = 20.0
"""ε that a liar discloses: the largest that counts as a weight (``public_split.CEILING``)."""


@dataclass(frozen=True)
class Attack:
    """Attack and its liars: ``Attack("overstated-epsilon", sites=(3, 7))``.

    Attributes:
        name: ``overstated-epsilon``.
        sites: partitions of the liars.
    """

    name: Literal["overstated-epsilon"]
    sites: tuple[int, ...]


class AttackGrid(LocalGrid):
    """Local grid in which some sites overstate their ε when they join."""

    def __init__(
        self,
        num_sites: int,
        present: Iterable[int] | None = None,
        *,
        attack: Attack,
        config: RunConfig | None = None,
    ) -> None:
        """Make the nodes; raises ``TermsError`` if no site lies, or one that is not among them."""
        super().__init__(num_sites, present, config=config)
        self._liars = {index + 2 for index in attack.sites}
        if not self._liars or self._liars - set(self.get_node_ids()):
            raise TermsError(
                "attack: no site lies, or a lying site does not take part; name other sites"
            )

    def reply(self, message: Message, context: Context) -> Message:
        """Return the node's answer; a liar's at joining has a larger ε."""
        reply = super().reply(message, context)
        joins = message.metadata.message_type == wire.JOIN
        if not joins or context.node_id not in self._liars or reply.has_error():
            return reply
        facts = server_wire.read_site(reply.content)
        return Message(wire.write_site({**facts, "epsilon": STATED}), reply_to=message)
