"""Simulated sites of one process train their round together, where the model can be stacked.

Only a grid in this process (``server_app/simulation/local.py``) calls this, and only where a trusted server
adds the noise: no site's plan pays for the round, so none is charged before the work. What it
leaves with a node is the end of that node's own local SGD for that very request. Each site answers
its message by itself all the same: it checks, reserves, clips, seals and encodes. A deployed site,
and one under Ray, never sees any of it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message

from client_app.training.client_level import UPDATE, ClientLevelTrainer
from client_app.personal.ditto import PERSONAL, personal_job
from client_app.training.plain_sgd import Job
from client_app.site.simulated import InProcessContext, Trained
from client_app.site.site import Site, open_site
from client_app.training.stacked_sgd import Stack, stack_for
from client_app.training.trainer import pick_device
from hdpfl_flower import wire
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.privacy.plan import check_policy
from hdpfl_flower.wire import Instructions

_KEPT = 2**24
"""Parameters of the results that wait for their messages at one time: 64 MiB."""

Asked = tuple[Message, InProcessContext]
"""A message and the node that it is for."""


@dataclass(frozen=True, repr=False)
class _Part:
    """One node's part of a stack: where its result goes, under which key, and its steps."""

    trained: Trained
    key: tuple[str, str]
    job: Job


def portions(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield the messages, in order, in parts whose results together take bounded memory."""
    records = messages[0].content.array_records.values() if messages else ()
    size = sum(math.prod(array.shape) for record in records for array in record.values())
    count = max(_KEPT // max(size, 1), 1)
    for first in range(0, len(messages), count):
        yield messages[first : first + count]


@contextlib.contextmanager
def trained_together(asked: Sequence[Asked]) -> Iterator[None]:
    """Train what can be trained together; inside the block the nodes hold what is theirs.

    Whatever cannot be, for whatever reason, is left to the site, whose answer says why.
    """
    try:
        for (stack, learning_rate), parts in _parts(asked).items():
            ends = stack.train([part.job for part in parts], learning_rate)
            for part, end in zip(parts, ends, strict=True):
                part.trained[part.key] = end
        yield
    finally:
        for _, context in asked:
            context.trained.clear()


def _parts(asked: Sequence[Asked]) -> dict[tuple[Stack, float], list[_Part]]:
    """Return what can be trained together, by model and learning rate."""
    found: dict[tuple[Stack, float], list[_Part]] = {}
    read: dict[int, Instructions] = {}  # by the content's identity: a round has few
    for message, context in asked:
        if message.metadata.message_type != wire.TRAIN:
            continue
        try:
            content = message.content
            if id(content) not in read:
                read[id(content)] = wire.read_instructions(content)
            instructions = read[id(content)]
            terms = instructions.terms
            if terms.noise != "server":
                continue
            site = open_site(context, terms)
            check_policy(site.profile, terms)
            device = pick_device(site.profile.training.device)
            stack = stack_for(terms.model, task_for(terms), device)
            if stack is not None:
                parts = found.setdefault((stack, terms.learning_rate), [])
                parts += _of_site(site, instructions, context.trained)
        except Exception:  # noqa: S112  # the site meets it again, and answers with its code
            continue
    return found


def _of_site(site: Site, instructions: Instructions, trained: Trained) -> Iterator[_Part]:
    """Yield the passes of one site: its update, and its personal model where terms ask for one."""
    trainer = ClientLevelTrainer(site, instructions)
    stream = site.streams(instructions.server_round, UPDATE).sampling
    yield _Part(trained, (instructions.digest, UPDATE), trainer.job(stream))
    job = personal_job(site, instructions)
    if job is not None:
        yield _Part(trained, (instructions.digest, PERSONAL), job)
