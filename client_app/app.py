"""ClientApp: one guard around the handlers of all message types.

A round's order: decode → consent → plan → read the records → reserve → train → seal → encode.
Nothing leaves the site but the fields that ``wire.py`` lists. Whatever goes wrong, the
server receives one of four constant codes; the reason is written to the site's own log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch  # noqa: F401 - seconds that 'reply-after' need not cover
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.releases import half_of
from client_app.releases.base import SummedHalf
from client_app.site import refusals
from client_app.site.consent import check_consent
from client_app.site.disclosed_facts import disclosed_facts
from client_app.site.site import PaidPlan, Site, check_sizes, open_site
from client_app.training import trainer_of
from hdpfl_flower import wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import Declined, HDPFLError, Pending, Reason, Refused
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.privacy.policy import check_policy, check_round
from hdpfl_flower.releases import releases_asked, sent_once
from hdpfl_flower.releases.base import ReleaseKind
from hdpfl_flower.releases.of_run import ends_first, makes_personal_model, sent_kinds
from hdpfl_flower.releases.rounds import CLIPPED_UPDATE, UPDATE
from hdpfl_flower.reply_time import Arrival, arrival, wait_until_due
from hdpfl_flower.system.printable import site_log
from hdpfl_flower.wire import Instructions, WireError, reply_with

if TYPE_CHECKING:
    from client_app.site.personal_state import Vector

log = site_log()

Handler = Callable[[Site, Instructions], RecordDict]


def guarded(handler: Handler | None) -> Callable[[Message, Context], Message]:
    """Wrap ``handler``: every message gets a reply, without a reason.

    Every reply, a refusal too, leaves when the profile's ``reply-after`` says, and is built then:
    its metadata do not reveal when the work was done.

    Args:
        handler: of messages of one type; None for a type that no handler answers.

    Guarantees:
        Never raises but for ``KeyboardInterrupt``, never returns None: a ClientApp that raises
        sends its exception's text to the server, and one that returns None wedges its node.
    """

    def handle(message: Message, context: Context) -> Message:
        arrived = None
        try:
            # The clock starts first: all work, reading the profile included, lies within the wait.
            arrived = arrival(context.node_config)
            answered = answer(message, context, arrived.profile)
            return reply_with(answered, message, wait_until_due(arrived))
        except KeyboardInterrupt:
            raise
        except BaseException as reason:  # counting and waiting must reveal no more
            log.error("failed: %s", _words_of(reason))
            return _last_resort(message, arrived)

    def answer(message: Message, context: Context, profile: Profile | None) -> RecordDict | int:
        """Return the content to send, or the code of a refusal."""
        try:
            if handler is None:
                raise WireError("message: no handler is known for its type")
            check_sizes(message.content, profile)
            instructions = wire.read_instructions(message.content)
            site = open_site(context, instructions.terms, profile)
            _check_run(site, instructions, handler)
            if instructions.use == wire.OFFSET and handler is not train:
                raise WireError("message: an offset belongs only to a round of training")
            return handler(site, instructions)
        except KeyboardInterrupt:
            raise
        except Declined as reason:
            code, why = _CODES.get(type(reason), wire.DECLINED), refusals.word_of(reason)
            log.warning("%s: %s", wire.REASONS[code], reason)
        except BaseException as reason:  # the guard: nothing may pass it
            log.error("failed: %s", _words_of(reason))
            code, why = wire.FAILED, refusals.word_of(reason)
        refusals.note_refusal(profile, code, why)
        return code

    return handle


def _check_run(site: Site, instructions: Instructions, handler: Handler) -> None:
    """Refuse a run that profile, operator or noise do not allow; raises ``HDPFLError``."""
    # Before any handler: terms that the policy declines read no record and charge no plan.
    check_policy(site.profile, instructions.terms)
    check_round(site.terms, instructions.server_round, joins=handler is join)
    # Before any handler, too: without consent nothing is read, charged or disclosed.
    check_consent(site, ask=handler is not finish)
    if handler in (train, evaluate) and ends_first(instructions.terms):
        raise Declined(
            Reason.TERMS, "the run consists only of its first message, and trains no model"
        )
    if half := site.terms.source.half("client_app.site.{}"):
        half.check_run(site)


_OURS = ("client_app.", "hdpfl_flower.")
_CODES: dict[type[Declined], int] = {Pending: wire.PENDING, Refused: wire.REFUSED}
"""Decisions with a code of their own."""


def _last_resort(message: Message, arrived: Arrival | None) -> Message:
    """Refuse after a failed wait or reply; wait as usual, if possible.

    Args:
        message: to answer.
        arrived: None where the profile could not be read, so that no work was done.
    """
    created_at = None
    try:
        created_at = wait_until_due(arrived) if arrived else None
    except KeyboardInterrupt:
        raise
    except BaseException as reason:  # twice: a signal ends the wait, and none of the work does
        log.error("the reply could not be held back: %s", type(reason).__name__)
        if arrived and arrived.reply_after:
            created_at = arrived.wall + arrived.reply_after
    return reply_with(wire.FAILED, message, created_at)


def _words_of(reason: BaseException) -> str:
    """Return an error's text for the site's log: only our own."""
    if isinstance(reason, ModuleNotFoundError) and str(reason.name).startswith(_OURS):
        return f"this app was made for other runs and holds no {reason.name} (hdpfl new --only)"
    return str(reason) if isinstance(reason, HDPFLError) else type(reason).__name__


def train(site: Site, instructions: Instructions) -> RecordDict:
    """Answer a round with one noisy update, idempotently.

    A site that trusts the server to add the noise answers with a clipped update without noise; no
    plan of its own pays for that.
    """
    terms = instructions.terms
    if makes_personal_model(terms):
        from client_app.after_run.personal_model import personal_model_path

        personal_model_path(site)  # declines without a folder, before anything is charged
    trainer = trainer_of(site, instructions)
    paid_plan = plan_of(site)
    plan = paid_plan.plan if paid_plan else None
    at_start = [kind for kind in releases_asked(terms) if kind.when(site.task) == "start"]
    site.training_records()  # before any release: data that cannot be read costs no budget
    for once in at_start:
        if not _is_taken(site, once):  # where one is lost, the end of the run says so
            _release_once(site, instructions, once, paid_plan)
    choice = None
    if instructions.use == wire.CHOOSE:
        from client_app.releases.choice import choose

        # Sealed before the training: after a crash the same request trains the same model.
        choice = choose(site, instructions, trainer.models, plan)
        trainer.choose(int(choice))
    kind = CLIPPED_UPDATE if plan is None else UPDATE
    update = site.release(instructions, kind, lambda: trainer.run(plan))
    # After the seal: a process that ends in here loses no release.
    trainer.keep(replayed=update.replayed, plan=plan)
    if not update.replayed:
        _train_personal(site, instructions, trainer.start)
    return trainer.reply(update.payload, choice)


def _train_personal(site: Site, instructions: Instructions, shared: Vector) -> None:
    """Train the round's personal model, if the terms ask for one."""
    if instructions.terms.second is not None:
        from client_app.training.ditto import train_personal_model

        train_personal_model(site, instructions, shared)


def plan_of(site: Site) -> PaidPlan | None:
    """Return the round's plan; None if the trusted server adds the noise.

    Raises:
        Declined: the terms changed since the plan was frozen.
    """
    if not site.terms.source.site_plans:  # check_policy has asked the profile about it
        if site.ledger.frozen_plan(site.terms.run_id) is not None:
            raise Declined(Reason.TERMS, "'noise' changed after the plan was frozen")
        return None
    return site.paid_plan


def _is_taken(site: Site, kind: ReleaseKind) -> bool:
    """Return whether the run's one release of a kind is in the ledger, in any state."""
    key = (site.terms.run_id, kind.place(site.terms), kind.release)
    return key in site.ledger.account().releases


def _release_once(
    site: Site,
    instructions: Instructions,
    kind: ReleaseKind,
    paid_plan: PaidPlan | None,
    arrays: Arrays | None = None,
) -> bytes | None:
    """Return the run's one release of a kind, sealed; None: no plan pays, or it is lost.

    A release that broke off before its seal is spent: nothing draws it a second time. Where the
    kind is optional, the run continues without it.

    Args:
        site: owner of the records.
        instructions: of the message.
        kind: settings of the kind.
        paid_plan: of the run.
        arrays: of the final model; None at the start of a run.
    """
    if paid_plan is None or not paid_plan.plan.paid(kind.release):
        return None
    once = replace(instructions, server_round=kind.place(site.terms))
    half, plan = half_of(kind), paid_plan.plan
    is_summed = isinstance(half, SummedHalf) and site.terms.source.is_summed
    if arrays is None:
        # One request for every message of the run, of any round and model. A sum of another set is
        # another release, and so is one under other terms: masks vanish among sites that add the
        # same share of the noise alone.
        summed = (once.of_noise, site.terms.to_json()) if is_summed else ()
        request = [kind.release, site.terms.run_id, *summed]
        digest = hashlib.sha256(json.dumps(request).encode())
        once = replace(once, digest=digest.hexdigest())
    # Whatever fails in its preparation costs nothing.
    if isinstance(half, SummedHalf) and is_summed:
        work = half.summed(site, plan, once)
    else:
        work = half.prepare(site, plan, arrays)
    try:
        return site.release(once, kind, work).payload
    except Declined as reason:
        release = site.ledger.account().releases.get(
            (once.terms.run_id, once.server_round, kind.release)
        )
        # Under another final model: the personal model that is kept stays as it is.
        is_lost = release is not None and release.status == "lost"
        if reason.reason is not Reason.REPLAY or not (is_lost and kind.is_optional):
            raise
        log.warning("no '%s' in this run, because its release is lost: %s", kind.kind, reason)
        return None


def evaluate(site: Site, instructions: Instructions) -> RecordDict:
    """Answer with metrics of the model, if disclosed."""
    from client_app.releases.metrics import answer

    return answer(site, instructions)


def answer_once(kind: str, site: Site, instructions: Instructions) -> RecordDict:
    """Answer with the run's one payload of a kind that is sent.

    Args:
        kind: name of a registered kind that is sent.
        site: owner of the records.
        instructions: of the message, with the final model, or any before round 1.

    Raises:
        Declined: no plan pays for it, the site took no part in the run, or it was released for
            another model; a lost one stays lost.
    """
    from client_app.after_run.final_model import took_part
    from client_app.training.trainer import read_model

    settings = next((sent for sent in sent_kinds(site.terms) if sent.kind == kind), None)
    paid_plan = site.paid_plan if site.terms.source.per_record else None
    if settings is None or paid_plan is None or not paid_plan.plan.paid(settings.release):
        raise Declined(Reason.TERMS, f"the server asks for '{kind}', but none are planned")
    # A site that skipped the run would be charged all of it for one payload.
    if not settings.is_first and not took_part(site):
        raise Declined(
            Reason.TERMS, f"the server asks for {kind} of a run in which this site took no part"
        )
    settings.check_task(site.task)
    arrays = None if settings.is_first else read_model(site, instructions)
    payload = _release_once(site, instructions, settings, paid_plan, arrays)
    if payload is None:
        raise Declined(Reason.REPLAY, f"the '{kind}' of this run are lost")
    is_part = settings.is_first and site.terms.source.is_summed
    return wire.write_payload(kind, payload, "uint64" if is_part else "float32")


def join(site: Site, instructions: Instructions) -> RecordDict:
    """Answer with the constants that the profile discloses; no record is read."""
    del instructions
    return wire.write_site(disclosed_facts(site))


def finish(site: Site, instructions: Instructions) -> RecordDict:
    """Store the final model of a joined run, and close the run."""
    from client_app.after_run.final_model import close_run, is_closed, keep_final_model

    if site.profile.state is not None and not ends_first(instructions.terms):
        # Before all else: a second model of an ended run changes and releases nothing.
        keep_final_model(site, instructions, site.profile.state.path)
    if makes_personal_model(instructions.terms) and not is_closed(site):
        _end_run(site, instructions)
    close_run(site)
    return wire.write_site({})


def _end_run(site: Site, instructions: Instructions) -> None:
    """Tune the final model if planned; store the personal model."""
    from client_app.after_run.final_model import took_part
    from client_app.after_run.personal_model import (
        assemble,
        personal_model_path,
        save_personal_model,
        untuned_model,
    )
    from client_app.training.trainer import read_model

    if not took_part(site):
        return
    whole = assemble(site, read_model(site, instructions), instructions.server_round)
    model = untuned_model(site, whole)
    paid_plan = site.paid_plan if site.terms.source.per_record else None
    for kind in releases_asked(site.terms):
        half = half_of(kind)
        if paid_plan is None:
            model = half.at_home(site, model)
        elif not kind.is_sent:
            at_start = kind.when(site.task) == "start"
            arrays = None if at_start else model.arrays
            payload = _release_once(site, instructions, kind, paid_plan, arrays)
            if payload is not None:
                model = half.applied(site, paid_plan.plan, model, payload)
    save_personal_model(personal_model_path(site), model)


class SiteApp(ClientApp):
    """Flower's ClientApp, with every message of any type behind the guard.

    Flower's own class raises where no handler is registered for a type, and sends the text of that
    error, with the server's own content, to the server at once.
    """

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer ``message``; a type that is none of a handler's or a sent kind's is refused."""
        return guarded(_handler_of(message.metadata.message_type))(message, context)


def _handler_of(message_type: str) -> Handler | None:
    """Return the handler of a message type, or None."""
    kind = wire.kind_asked(message_type)
    if kind in sent_once():
        return partial(answer_once, kind)
    return _HANDLERS.get(message_type)


_HANDLERS: dict[str, Handler] = {
    wire.TRAIN: train,
    wire.EVALUATE: evaluate,
    wire.JOIN: join,
    wire.FINISH: finish,
}
app = SiteApp()
