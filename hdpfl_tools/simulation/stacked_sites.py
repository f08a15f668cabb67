"""Stacked training: simulated sites of one process step together.

Only a grid in this process (``in_process/grid.py``) calls this. It leaves with a node the result of
that node's own training for that very request; each site still answers its message by itself.
Deployed sites, and sites under Ray, do not use it.

Where a trusted server adds the noise, no site's plan pays for the round, so no plan is charged
before the work: the site checks, reserves, clips, seals and encodes after it. Where the sites add
noise to each step (``stack``), each checks and reserves in its own ledger before the work of all,
and seals after it: a process that ends in between loses the releases, and sends nothing of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flwr.app import Message

from client_app.after_run.personal_model import personal_model_path
from client_app.app import plan_of
from client_app.site.consent import check_consent
from client_app.site.site import Site, open_site
from client_app.training.client_level import ClientLevelTrainer
from client_app.training.ditto import PERSONAL, personal_job
from client_app.training.plain_sgd import LocalJob
from client_app.training.trainer import Trainer
from hdpfl_flower import wire
from hdpfl_flower.engines.unit_engines import UnitEngine
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.privacy.policy import check_policy, check_round
from hdpfl_flower.releases import releases_asked
from hdpfl_flower.releases.of_run import has_personal_state, makes_personal_model
from hdpfl_flower.releases.rounds import UPDATE
from hdpfl_flower.reply_time import node_profile
from hdpfl_flower.system.devices import pick_device
from hdpfl_flower.wire import Instructions
from hdpfl_tools.simulation.sites import InProcessContext, Trained
from hdpfl_tools.simulation.stacked_dpsgd import PrivateJob, train_stacked
from hdpfl_tools.simulation.stacked_sgd import Stack, stack_for

_KEPT = 2**24
"""Parameters of results that wait for their messages: 64 MiB."""

Asked = tuple[Message, InProcessContext]
"""A message and the node that it is for."""


@dataclass(frozen=True, repr=False)
class _Pass:
    """One node's pass over its records: steps, and place of the result."""

    trained: Trained
    key: tuple[str, str]
    job: LocalJob


@dataclass(frozen=True, repr=False)
class _ReservedRound:
    """One node's round of DP-SGD, reserved in its ledger, with its result's place."""

    trained: Trained
    key: tuple[str, str]
    job: PrivateJob


@dataclass(frozen=True, repr=False)
class _Found:
    """Key of joint training: model and rate; for DP-SGD also rows in memory."""

    passes: dict[tuple[Stack, float], list[_Pass]] = field(default_factory=dict)
    rounds: dict[tuple[Stack, float, int], list[_ReservedRound]] = field(default_factory=dict)


def portions(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield the messages in order, in parts of bounded memory."""
    records = messages[0].content.array_records.values() if messages else ()
    size = sum(math.prod(array.shape) for record in records for array in record.values())
    count = max(_KEPT // max(size, 1), 1)
    for first in range(0, len(messages), count):
        yield messages[first : first + count]


@contextlib.contextmanager
def trained_together(asked: Sequence[Asked], *, private: bool = False) -> Iterator[None]:
    """Train sites jointly; inside the block nodes hold their results.

    Whatever cannot be trained so, for any reason, is left to the site, which answers with its code.

    Args:
        asked: the messages and their nodes.
        private: also where the sites add noise to each step (``stack``).
    """
    try:
        groups = _read(asked, private)
        for (stack, learning_rate), passes in groups.passes.items():
            ends = stack.train([site_pass.job for site_pass in passes], learning_rate)
            for site_pass, end in zip(passes, ends, strict=True):
                # By the request's digest: the site takes it for that request and no other.
                site_pass.trained[site_pass.key] = end
        # All have reserved by now; each seals its own when it answers.
        for (stack, learning_rate, rows), rounds in groups.rounds.items():
            updates = train_stacked(
                stack, [reserved.job for reserved in rounds], learning_rate, rows
            )
            for reserved, update in zip(rounds, updates, strict=True):
                reserved.trained[reserved.key] = update
        yield
    finally:
        for _, context in asked:
            # Also those that no message took: a result must not outlive its round.
            context.trained.clear()
            while context.taken:
                with context.taken.popitem()[1]:
                    pass  # not sealed: it is lost


def _read(asked: Sequence[Asked], private: bool) -> _Found:
    """Return groups of joint training, by model and learning rate."""
    groups = _Found()
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
            if has_personal_state(terms):
                continue
            if terms.source.site_plans and not (private and terms.source.own_noise):
                continue
            site = open_site(context, terms, node_profile(context.node_config))
            check_policy(site.profile, terms)
            check_round(terms, instructions.server_round)
            device = pick_device(site.profile.training.device)
            stack = stack_for(terms.model, site.task, device)
            if stack is None:
                continue
            if terms.source.own_noise:
                _reserve(site, instructions, context, groups, stack)
                continue
            passes = groups.passes.setdefault((stack, terms.learning_rate), [])
            passes += _of_site(site, instructions, context.trained)
        except Exception:  # noqa: S112  # the site meets it again, and answers with its code
            continue
    return groups


def _reserve(
    site: Site, instructions: Instructions, context: InProcessContext, groups: _Found, stack: Stack
) -> None:
    """Reserve the site's update as ``app.train`` does, and note its work."""
    # A choice among models, and a kind at the start, are releases of their own before this one.
    if instructions.use == wire.CHOOSE:
        return
    check_consent(site, ask=True)
    if makes_personal_model(site.terms):
        personal_model_path(site)
    trainer = Trainer(site, instructions)
    paid = plan_of(site)
    at_start = any(kind.when(site.task) == "start" for kind in releases_asked(site.terms))
    if paid is None or at_start:
        return
    job = _job(site, instructions, trainer, paid.plan)
    if job is None:
        return
    key = instructions.digest, UPDATE.release
    taken = site.reserve(instructions, UPDATE)
    if isinstance(taken, bytes):
        return  # sealed before: the site sends the same bytes again
    context.taken[key] = taken
    rows = site.profile.training.physical_batch
    rounds = groups.rounds.setdefault((stack, instructions.terms.learning_rate, rows), [])
    rounds.append(_ReservedRound(context.trained, key, job))


def _job(site: Site, instructions: Instructions, trainer: Trainer, plan: Plan) -> PrivateJob | None:
    """Return the round for joint training, or None.

    In a stack no number of a record is proven to be its own to the last bit. Parts of a model,
    phases, an offset and units of several records train alone.
    """
    alone = trainer.personal is not None or trainer.offset is not None
    if not site.simulated or alone or isinstance(trainer.engine, UnitEngine):
        return None
    server_round = instructions.server_round
    return PrivateJob(
        trainer.start,
        site.training_records(),
        plan.round(server_round, instructions.terms.clip_norm),
        site.streams(server_round, UPDATE.release),
        trainer.pull,
    )


def _of_site(site: Site, instructions: Instructions, trained: Trained) -> Iterator[_Pass]:
    """Yield a site's passes: update, and personal model if requested."""
    trainer = ClientLevelTrainer(site, instructions)
    stream = site.streams(instructions.server_round, UPDATE.release).sampling
    yield _Pass(trained, (instructions.digest, UPDATE.release), trainer.job(stream))
    job = personal_job(site, instructions, trainer.start)
    if job is not None:
        yield _Pass(trained, (instructions.digest, PERSONAL), job)
