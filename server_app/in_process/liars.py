"""In-process Grid with attacking sites, to measure guards.

Only simulated sites attack: an attacker here needs its own update without noise, which a deployed
site never releases. A site that poisons its data
trains as an honest site does, on changed labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.task import Records
from hdpfl_flower.scenarios.attacks import OVERSTATED, Attack, AttackerView, Colluders
from server_app.in_process.grid import LocalGrid

_SEED = 0x11A5
"""Seed part of the liars, with site and round: attacks are repeatable."""

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Liar:
    """Liar of a round: partition, honest reply and update without noise."""

    index: int
    request: Message
    reply: Message
    clean: Vector

    @property
    def honest(self) -> Vector:
        """Honest update of the site, shape ``(d,)``."""
        return wire.read_update(self.reply.content, len(self.clean))


class AttackGrid(LocalGrid):
    """Local grid in which some sites send an attack."""

    def __init__(
        self,
        num_sites: int,
        present: Iterable[int] | None = None,
        *,
        attack: Attack,
        config: RunConfig | None = None,
    ) -> None:
        """Make the nodes.

        Raises:
            TermsError: a liar is none of them, or the data set has no classes to relabel.
        """
        super().__init__(num_sites, present, config=config)
        self.private = False  # a liar computes its own update without noise, by itself
        missing = {index + 2 for index in attack.sites} - set(self.get_node_ids())
        if missing:
            raise TermsError("attack: a site that lies takes no part in the run")
        if attack.poison and config is not None:
            # Here: a site that met it would refuse to train, with an unread reason.
            nothing = Records(np.empty((0, 1), np.float32), np.empty(0, np.int64))
            attack.poison(nothing, task_for(config.terms))
        self._attack = attack
        self._first: dict[int, Vector] = {}
        self._first_mean: Vector | None = None
        for index in attack.sites:
            self._contexts[index + 2].poison = attack.poison

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Let every node answer, then replace the liars' updates."""
        asked = list(messages)
        replies = list(super().send_and_receive(asked, timeout=timeout))
        if self._attack.kind == "overstated-epsilon":
            return replies
        liars = {
            place: _Liar(
                message.metadata.dst_node_id - 2,
                message,
                reply,
                self.noiseless_update(message, self._contexts[message.metadata.dst_node_id]),
            )
            for place, (message, reply) in enumerate(zip(asked, replies, strict=True))
            if message.metadata.message_type == wire.TRAIN
            and message.metadata.dst_node_id - 2 in self._attack.sites
            and not reply.has_error()
        }
        for place, lie in zip(liars, self._forge(list(liars.values()), len(asked)), strict=True):
            replies[place] = lie
        return replies

    def reply(self, message: Message, context: Context) -> Message:
        """Return an honest node's answer; an overstated ε lies at joining."""
        reply = super().reply(message, context)
        lies = self._attack.overstates and message.metadata.message_type == wire.JOIN
        if not lies or context.node_id - 2 not in self._attack.sites or reply.has_error():
            return reply
        facts = wire.read_site(reply.content)
        return Message(wire.write_site({**facts, "epsilon": OVERSTATED}), reply_to=message)

    def _forge(self, liars: Sequence[_Liar], sites: int) -> list[Message]:
        """Return the liars' replies of a round with ``sites`` nodes."""
        if not liars:
            return []
        together = Colluders(
            np.stack([liar.clean for liar in liars]),
            np.stack([liar.honest for liar in liars]),
            sites,
        )
        replies, leader = [], None
        for liar in liars:
            server_round = wire.read_instructions(liar.request.content).server_round
            sight = AttackerView(
                liar.clean,
                liar.honest,
                self._first.get(liar.index),
                np.random.default_rng([_SEED, liar.index, server_round]),
                together,
                self._first_mean,
            )
            # The first liar of a round leads; Attack.forge decides how the others use its update.
            if leader is None:
                leader = Attack(self._attack.kind, self._attack.sites).forge(sight, None)
            update = self._attack.forge(sight, leader)
            # Its own first lie: attacks that replay it read it in later rounds.
            self._first.setdefault(liar.index, update)
            payload = wire.encode_update(update)
            reply = Message(wire.write_update(payload, len(update)), reply_to=liar.request)
            reply.metadata.__dict__["_message_id"] = uuid4().hex
            replies.append(reply)
        if self._first_mean is None:
            self._first_mean = together.clean.mean(0)
        return replies
