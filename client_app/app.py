"""ClientApp: one guard around the handlers of all message types.

A round's order: decode → consent → plan → read the records → reserve → train → seal → encode.
Nothing leaves the site but the fields that ``wire.py`` lists. Whatever goes wrong, the
server receives one of four constant codes; the reason is written to the site's own log.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch  # noqa: F401 - seconds that 'reply-after' need not cover
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.releases import half_of
from client_app.site import refusals
from client_app.site.consent import check_consent
from client_app.site.disclosed_facts import disclosed_facts
from client_app.site.site import Site, check_sizes, open_site
from hdpfl_flower import wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import Declined, HDPFLError, Pending, Reason, Refused
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Reservation
from hdpfl_flower.linalg.step_direction import Vector
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.plan import CHOICE, UPDATE, Plan, rounds_asked
from hdpfl_flower.privacy.policy import (
    CLIPPED_UPDATE,
    check_policy,
    check_round,
)
from hdpfl_flower.releases import KINDS, asked, asked_kind, stays
from hdpfl_flower.releases.base import ReleaseKind
from hdpfl_flower.releases.of_run import makes_personal_model
from hdpfl_flower.reply_time import Arrival, arrival, wait_until_due
from hdpfl_flower.system.printable import site_log
from hdpfl_flower.wire import Instructions, WireError, reply_with

if TYPE_CHECKING:
    from client_app.training.client_level import ClientLevelTrainer
    from client_app.training.trainer import Trainer

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
            # Before any handler: terms that the policy declines read no record and charge no plan.
            check_policy(site.profile, instructions.terms)
            check_round(site.terms, instructions.server_round, joins=handler is join)
            # Before any handler, too: without consent nothing is read, charged or disclosed.
            check_consent(site, ask=handler is not finish)
            if instructions.use == wire.OFFSET and handler is not train:
                raise WireError("message: an offset is for a round of training")
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
    trainer = _trainer(site, instructions)
    plan, charged = plan_of(site, instructions)
    site.training_records()  # before any release: data that cannot be read costs no budget
    for kind in asked(terms):
        # Once a run; where one is lost, the end of the run says so.
        if kind.when(site.task) == "start" and not _is_taken(site, kind):
            _release_once(site, instructions, kind, plan, charged)
    choice = None
    if instructions.use == wire.CHOOSE:
        # Sealed before the training: after a crash the same request trains the same model.
        choice = _choose(site, instructions, trainer.models, plan, charged)
        trainer.choose(int(choice))
    released = _release(
        site,
        instructions,
        CLIPPED_UPDATE if plan is None else UPDATE,
        charged,
        lambda: trainer.run(plan),
        rounds_asked(terms) if plan is None else plan.rounds,
    )
    # After the seal: a process that ends in here loses no release.
    trainer.keep(replayed=released.replayed, plan=plan)
    if not released.replayed:
        _train_personal(site, instructions, trainer.start)
    return wire.write_update(released.payload, trainer.size, choice)


def _trainer(site: Site, instructions: Instructions) -> Trainer | ClientLevelTrainer:
    """Return the round's training, checked without a record."""
    if instructions.terms.noise == "records":
        from client_app.training.trainer import Trainer

        return Trainer(site, instructions)
    from client_app.training.client_level import ClientLevelTrainer

    return ClientLevelTrainer(site, instructions)


def _train_personal(site: Site, instructions: Instructions, shared: Vector) -> None:
    """Train the round's personal model, if the terms ask for one."""
    if instructions.terms.second is not None:
        from client_app.training.ditto import train_personal_model

        train_personal_model(site, instructions, shared)


def plan_of(site: Site, instructions: Instructions) -> tuple[Plan, ChargedPlan] | tuple[None, None]:
    """Return the round's plan; None if the trusted server adds the noise.

    Raises:
        Declined: the terms changed since the plan was frozen.
    """
    if instructions.terms.noise == "server":  # check_policy has asked the profile about it
        if site.ledger.frozen_plan(instructions.terms.run_id) is not None:
            raise Declined(Reason.TERMS, "'noise' changed after the plan was frozen")
        return None, None
    return site.plan


def _choose(
    site: Site,
    instructions: Instructions,
    models: Sequence[Arrays],
    plan: Plan | None,
    charged: ChargedPlan | None,
) -> bytes:
    """Return the sealed choice among the models of the message."""
    from client_app.training.private_choice import choose_privately

    choices = None if plan is None else plan.cost_of(CHOICE)
    if choices is None or isinstance(choices, Steps) or not choices.count:
        raise Declined(Reason.TERMS, "no 'choice' is planned, and the server asks for one")
    return _release(
        site,
        instructions,
        CHOICE,
        charged,
        lambda: choose_privately(site, instructions.server_round, models, choices),
        choices.count,
    ).payload


def _is_taken(site: Site, kind: ReleaseKind) -> bool:
    """Return whether the run's one release of a kind is in the ledger, in any state."""
    key = (site.terms.run_id, kind.place(site.terms), kind.release)
    return key in site.ledger.account().releases


def _release_once(
    site: Site,
    instructions: Instructions,
    kind: ReleaseKind,
    plan: Plan | None,
    charged: ChargedPlan | None,
    arrays: Arrays | None = None,
) -> bytes | None:
    """Return the run's one release of a kind, sealed; None: no plan pays, or it is lost.

    A release that broke off before its seal is spent: nothing draws it a second time. Where the
    kind is optional, the run continues without it.

    Args:
        site: owner of the records.
        instructions: of the message.
        kind: settings of the kind.
        plan: of the run.
        charged: the same, as the ledger has it.
        arrays: of the final model; None at the start of a run.
    """
    if plan is None or (paid := plan.paid(kind.release)) == 0:
        return None
    work = half_of(kind).prepare(site, plan, arrays)  # whatever fails in it costs nothing
    once = replace(instructions, server_round=kind.place(site.terms))
    if arrays is None:
        # One request for every message of the run, of any round and model.
        digest = hashlib.sha256(json.dumps([kind.release, site.terms.run_id]).encode())
        once = replace(once, digest=digest.hexdigest())
    try:
        return _release(site, once, kind.release, charged, work, paid).payload
    except Declined as reason:
        release = site.ledger.account().releases.get(
            (once.terms.run_id, once.server_round, kind.release)
        )
        # Under another final model: the personal model that is kept stays as it is.
        is_lost = release is not None and release.status == "lost"
        if reason.reason is not Reason.REPLAY or not (is_lost and kind.is_optional):
            raise
        log.warning("no '%s' in this run, its release is lost: %s", kind.kind, reason)
        return None


def evaluate(site: Site, instructions: Instructions) -> RecordDict:
    """Answer with metrics on the site's test records, if disclosed.

    They are not covered by ε: the ledger counts each of them, over all runs, against the bound
    that the profile states, and the site's report says so.
    """
    from client_app.after_run.held_out import check_may_test, local_metrics, models_tested

    if "metrics" not in site.profile.disclose:
        raise Declined(Reason.PROFILE, "'disclose' does not list 'metrics'")
    check_may_test(site, instructions.server_round)
    tests = local_metrics(site, instructions)
    payload = _release(
        site, instructions, "metrics", None, tests, exact=models_tested(site)
    ).payload
    return wire.write_metrics(payload)


def answer_once(kind: str, site: Site, instructions: Instructions) -> RecordDict:
    """Answer with the run's one payload of a kind that is sent.

    Args:
        kind: name of a registered kind that is sent.
        site: owner of the records.
        instructions: of the message, with the final model.

    Raises:
        Declined: no plan pays for it, the site took no part in the run, or it was released for
            another model; a lost one stays lost.
    """
    from client_app.after_run.final_model import took_part
    from client_app.training.trainer import read_model

    settings = asked_kind(site.terms, KINDS[kind])
    plan, charged = site.plan if site.terms.noise == "records" else (None, None)
    if settings is None or plan is None or not plan.paid(settings.release):
        raise Declined(Reason.TERMS, f"no '{kind}' are planned, and the server asks for them")
    if not took_part(site):  # else the end of a run would charge all of it for one payload
        raise Declined(
            Reason.TERMS, f"this site took no part in the run whose {kind} are asked for"
        )
    settings.check_task(site.task)
    arrays = read_model(site, instructions)
    payload = _release_once(site, instructions, settings, plan, charged, arrays)
    if payload is None:
        raise Declined(Reason.REPLAY, f"the '{kind}' of this run are lost")
    return wire.write_payload(kind, payload)


def join(site: Site, instructions: Instructions) -> RecordDict:
    """Answer with the constants that the profile discloses; no record is read."""
    del instructions
    return wire.write_site(disclosed_facts(site))


def finish(site: Site, instructions: Instructions) -> RecordDict:
    """Store the final model of a joined run, and close the run."""
    from client_app.after_run.final_model import close_run, is_closed, keep_final_model

    if site.profile.state is not None:
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
    plan, charged = site.plan if site.terms.noise == "records" else (None, None)
    for kind in asked(site.terms):
        half = half_of(kind)
        if plan is None:
            model = half.at_home(site, model)
        elif not kind.is_sent:
            at_start = kind.when(site.task) == "start"
            arrays = None if at_start else model.arrays
            payload = _release_once(site, instructions, kind, plan, charged, arrays)
            model = model if payload is None else half.applied(site, plan, model, payload)
    save_personal_model(personal_model_path(site), model)


class Released(NamedTuple):
    """A sealed payload, which may be sent.

    Attributes:
        payload: the sealed bytes.
        replayed: whether an earlier message had them sealed, so that no work was done for this one.
    """

    payload: bytes
    replayed: bool


def _release(
    site: Site,
    instructions: Instructions,
    kind: str,
    plan: ChargedPlan | None,
    work: Callable[[], bytes],
    paid: int = 0,
    exact: int = 0,
) -> Released:
    """Reserve, work, seal; return the payload, now safe to send.

    Args:
        site: sender of the release.
        instructions: the request.
        kind: of the release.
        plan: covers the release; None: no plan does.
        work: makes the payload.
        paid: releases of this kind that the run may take; 0: any number.
        exact: answers without noise that it holds.
    """
    # In a simulation that trains its sites together, reserved for this very request already.
    taken: Reservation | bytes | None = site.reserved(instructions.digest, kind)
    if taken is None:
        taken = reserve(site, instructions, kind, plan, paid, exact)
    # The same request was sealed before: the same bytes, so that two noises cannot be averaged.
    if isinstance(taken, bytes):
        return Released(taken, replayed=True)
    with taken:
        # Sealed before it can be sent: a repeated request finds these very bytes.
        payload = taken.seal(work())
    # Before Flower sends the reply: "sent" means handed over, not arrived.
    if not stays(kind):
        site.ledger.mark_sent((instructions.terms.run_id, instructions.server_round, kind))
    return Released(payload, replayed=False)


def reserve(
    site: Site,
    instructions: Instructions,
    kind: str,
    plan: ChargedPlan | None,
    paid: int,
    exact: int = 0,
) -> Reservation | bytes:
    """Charge and reserve a release before the work; arguments as :func:`_release`.

    Returns:
        The reservation, or the payload that the same request sealed before.

    Raises:
        Declined: the ledger refuses.
        LedgerError: it cannot be written.
    """
    terms, budget = instructions.terms, site.profile.budget
    declared = site.profile.run.epsilon if kind == CLIPPED_UPDATE else None
    if not site.simulated and (lost := site.ledger.broken_off()) is not None:
        log.warning(
            "the work on round %d broke off: its process was killed, or its disk was full; "
            "nothing of it left",
            lost[1],
        )
    request = Request(
        terms.run_id, instructions.server_round, kind, instructions.digest, declared, exact
    )
    # Charged and reserved before the work. A crash from here to the seal makes the release LOST: it
    # stays taken, and nothing of it has left. Only a seeded simulation does it again, with the same
    # noise.
    return site.ledger.reserve(
        request,
        plan,
        max_runs=site.profile.policy.runs,
        max_releases=paid,
        max_exact=math.inf if site.simulated else budget.exact_answers,
        cap=(budget.epsilon, budget.delta),
        again=site.simulated,
    )


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
    if kind in KINDS and KINDS[kind].is_sent:
        return partial(answer_once, kind)
    return _HANDLERS.get(message_type)


_HANDLERS: dict[str, Handler] = {
    wire.TRAIN: train,
    wire.EVALUATE: evaluate,
    wire.JOIN: join,
    wire.FINISH: finish,
}
app = SiteApp()
