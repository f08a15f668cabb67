"""A Grid in this process in which some sites attack, to measure what a guard is worth.

Only simulated sites attack: an attacker here needs its own update without noise, which a deployed
site never releases.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.simulation.attacks import OVERSTATED, Attack, AttackerView
from server_app.simulation.grid import LocalGrid

_SEED = 0x11A5
"""Of the liars' randomness, with the site and the round: an attack can be repeated."""


class AttackGrid(LocalGrid):
    """A local grid in which the sites of an attack send what the attack says."""

    def __init__(
        self,
        num_sites: int,
        present: Iterable[int] | None = None,
        *,
        attack: Attack,
        config: RunConfig | None = None,
    ) -> None:
        """Make the nodes; raises ``TermsError`` where a liar is none of them."""
        super().__init__(num_sites, present, config=config)
        missing = {index + 2 for index in attack.sites} - set(self.get_node_ids())
        if missing:
            raise TermsError("attack: a site that lies takes no part in the run")
        self._attack = attack
        self._first: dict[int, npt.NDArray[np.float32]] = {}
        self._leader: tuple[int, npt.NDArray[np.float32]] | None = None

    def reply(self, message: Message, context: Context) -> Message:
        """Return what an honest node answers, or a liar."""
        reply = super().reply(message, context)
        index = context.node_id - 2
        if index not in self._attack.sites or reply.has_error():
            return reply
        kind = message.metadata.message_type
        if kind == wire.JOIN and self._attack.kind == "overstated-epsilon":
            facts = wire.read_site(reply.content)
            return Message(wire.write_site({**facts, "epsilon": OVERSTATED}), reply_to=message)
        if kind != wire.TRAIN or self._attack.kind == "overstated-epsilon":
            return reply
        update = self._forge(index, message, context, reply)
        payload = wire.encode_update(update)
        return Message(wire.write_update(payload, len(update)), reply_to=message)

    def _forge(
        self, index: int, message: Message, context: Context, reply: Message
    ) -> npt.NDArray[np.float32]:
        clean = self.noiseless_update(message, context)
        server_round = wire.read_instructions(message.content).server_round
        sight = AttackerView(
            clean,
            wire.read_update(reply.content, len(clean)),
            self._first.get(index),
            np.random.default_rng([_SEED, index, server_round]),
        )
        # The first liar of a round leads; what the others make of its update is for Attack.forge.
        led = self._leader is not None and self._leader[0] == server_round
        leader = self._leader[1] if self._leader is not None and led else None
        if leader is None:
            plain = Attack(self._attack.kind, self._attack.sites).forge(sight, None)
            self._leader = (server_round, plain)
        update = self._attack.forge(sight, leader)
        # Its own first lie: attacks that replay it read it in later rounds.
        self._first.setdefault(index, update)
        return update
