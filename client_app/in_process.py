"""Stacked training: simulated sites of one process take their local steps together.

Only a grid in this process (``server_app/simulation/grid.py``) calls this, and only where a
trusted server adds the noise: no site's plan pays for the round, so no plan is charged before the
work. It leaves with a node the result of that node's own local SGD for that very request. Each
site still answers its message by itself: it checks, reserves, clips, seals and encodes. Deployed
sites, and sites under Ray, do not use it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message

from client_app.personal.ditto import PERSONAL, personal_job
from client_app.site.simulated import InProcessContext, Trained
from client_app.site.site import Site, node_profile, open_site
from client_app.training.client_level import UPDATE, ClientLevelTrainer
from client_app.training.plain_sgd import LocalJob
from client_app.training.stacked_sgd import Stack, stack_for
from client_app.training.trainer import pick_device
from hdpfl_flower import wire
from hdpfl_flower.privacy.policy import check_policy
from hdpfl_flower.wire import Instructions

_KEPT = 2**24
"""Parameters of the results that wait for their messages at any time: 64 MiB."""

Asked = tuple[Message, InProcessContext]
"""A message and the node that it is for."""


@dataclass(frozen=True, repr=False)
class _Pass:
    """One node's pass over its records: the steps, and where their result is stored."""

    trained: Trained
    key: tuple[str, str]
    job: LocalJob


def portions(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield the messages, in order, in parts whose results together take bounded memory."""
    records = messages[0].content.array_records.values() if messages else ()
    size = sum(math.prod(array.shape) for record in records for array in record.values())
    count = max(_KEPT // max(size, 1), 1)
    for first in range(0, len(messages), count):
        yield messages[first : first + count]


@contextlib.contextmanager
def trained_together(asked: Sequence[Asked]) -> Iterator[None]:
    """Train what can be trained together; inside the block each node holds its own results.

    Whatever cannot be trained so, for any reason, is left to the site, which answers with its code.
    """
    try:
        for (stack, learning_rate), passes in _passes(asked).items():
            ends = stack.train([one.job for one in passes], learning_rate)
            for one, end in zip(passes, ends, strict=True):
                # By the request's digest: the site takes it for that request and no other.
                one.trained[one.key] = end
        yield
    finally:
        for _, context in asked:
            # Also what no message took: a result must not outlive its round.
            context.trained.clear()


def _passes(asked: Sequence[Asked]) -> dict[tuple[Stack, float], list[_Pass]]:
    """Return what can be trained together, by model and learning rate."""
    found: dict[tuple[Stack, float], list[_Pass]] = {}
    read: dict[int, Instructions] = {}  # by the content's identity: a round has few
    for message, context in asked:
        if message.metadata.message_type != wire.TRAIN:
            continue
        try:
            content = message.content
            # A round's messages share a few contents: each is decoded once, not once a site.
            if id(content) not in read:
                read[id(content)] = wire.read_instructions(content)
            instructions = read[id(content)]
            terms = instructions.terms
            # Parts of a model train in phases, each site by itself.
            if terms.noise != "server" or terms.has_personal_state or terms.has_phases:
                continue
            site = open_site(context, terms, node_profile(context))
            check_policy(site.profile, terms)
            device = pick_device(site.profile.training.device)
            stack = stack_for(terms.model, site.task, device)
            if stack is not None:
                passes = found.setdefault((stack, terms.learning_rate), [])
                passes += _of_site(site, instructions, context.trained)
        except Exception:  # noqa: S112  # the site meets it again, and answers with its code
            continue
    return found


def _of_site(site: Site, instructions: Instructions, trained: Trained) -> Iterator[_Pass]:
    """Yield the passes of one site: its update, and its personal model where terms ask for one."""
    trainer = ClientLevelTrainer(site, instructions)
    stream = site.streams(instructions.server_round, UPDATE).sampling
    yield _Pass(trained, (instructions.digest, UPDATE), trainer.job(stream))
    job = personal_job(site, instructions, trainer.start)
    if job is not None:
        yield _Pass(trained, (instructions.digest, PERSONAL), job)
