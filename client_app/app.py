"""The ClientApp: one guard around every handler; decode → plan → reserve → train → seal → encode.

Nothing but what ``wire.py`` lists leaves here. Whatever goes wrong, the server learns one of two
constant codes; the reason goes to the site's own log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

import client_app.fast_torch_import  # noqa: F401 - before all that imports torch
from client_app.site import refusals
from client_app.site.site import Site, open_site
from client_app.site.reply_time import Arrival, arrival, hold, stamp
from hdpfl_flower import wire
from hdpfl_flower.ledger.account import FrozenPlan, Request
from hdpfl_flower.errors import Declined, HDPFLError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.plan import Plan, check_policy
from hdpfl_flower.printable import site_log
from hdpfl_flower.privacy.trust import CLIPPED_UPDATE
from hdpfl_flower.wire import Instructions, WireError

log = site_log()

Handler = Callable[[Site, Instructions], RecordDict]


def guarded(handler: Handler | None) -> Callable[[Message, Context], Message]:
    """Wrap ``handler`` so that every message gets a reply, and no reply carries a reason.

    Every reply, a refusal, too, leaves when the profile's ``reply-after`` says, and is built then:
    its metadata say nothing of when the work was done.

    Args:
        handler: of messages of one type; None for types that there are not.

    Guarantees:
        Never raises but for ``KeyboardInterrupt``, never returns None: a ClientApp that raises
        sends its exception's text to the server, and one that returns None wedges its node.
    """

    def handle(message: Message, context: Context) -> Message:
        arrived = None
        try:
            arrived = arrival(context)
            answered = answer(message, context)
            return _reply(answered, message, hold(arrived))
        except KeyboardInterrupt:
            raise
        except BaseException as reason:  # what counts and waits must not tell more, either
            log.error("failed: %s", _words_of(reason))
            return _last_resort(message, arrived)

    def answer(message: Message, context: Context) -> RecordDict | int:
        """Return what to send: a content, or the code of a refusal."""
        try:
            if handler is None:
                raise WireError("message: no handler is known for its type")
            instructions = wire.read_instructions(message.content)
            site = open_site(context, instructions.terms)
            check_policy(site.profile, instructions.terms)
            return handler(site, instructions)
        except KeyboardInterrupt:
            raise
        except Declined as reason:
            log.warning("declined: %s", reason)
            code, why = wire.DECLINED, refusals.word_of("declined", reason)
        except BaseException as reason:  # the guard: nothing may pass it
            log.error("failed: %s", _words_of(reason))
            code, why = wire.FAILED, refusals.word_of("failed", reason)
        refusals.note_refusal(context, code, why)
        return code

    return handle


def _reply(answered: RecordDict | int, message: Message, created_at: float | None) -> Message:
    """Return the message that carries a content, or the code of a refusal, and bears that time."""
    if isinstance(answered, int):
        return stamp(wire.refusal(answered, message), message, created_at)
    return stamp(Message(answered, reply_to=message), message, created_at)


def _last_resort(message: Message, arrived: Arrival | None) -> Message:
    """Refuse where waiting or building the reply failed: held back as any other, if it can be.

    Args:
        message: what is answered.
        arrived: None where the profile could not be read, so that no work was done.
    """
    created_at = None
    try:
        created_at = hold(arrived) if arrived else None
    except KeyboardInterrupt:
        raise
    except BaseException as reason:  # twice: a signal ends the wait, and none of the work does
        log.error("the reply could not be held back: %s", type(reason).__name__)
        if arrived and arrived.reply_after:
            created_at = arrived.at + arrived.reply_after
    return _reply(wire.FAILED, message, created_at)


def _words_of(reason: BaseException) -> str:
    """Return what the site's log may say of an error: the text of our own alone."""
    return str(reason) if isinstance(reason, HDPFLError) else type(reason).__name__


def train(site: Site, instructions: Instructions) -> RecordDict:
    """Answer a round with one noisy update; the same request gets the same bytes."""
    from client_app.training.client_level import ClientLevelTrainer
    from client_app.training.trainer import Trainer

    if instructions.terms.noise == "server":  # check_policy has asked the profile about it
        return _train_for_trusted_server(site, instructions)
    trainer_of = Trainer if instructions.terms.noise == "records" else ClientLevelTrainer
    trainer = trainer_of(site, instructions)
    ledger = site.ledger
    plan, frozen = site.plan(ledger)
    if not plan.covers(instructions.server_round):
        raise Declined("terms: the round is not one that the plan pays for")
    choice = None
    if instructions.use == wire.CHOOSE:
        choice = _choose(site, ledger, instructions, plan, frozen)
        instructions = wire.with_choice(instructions, choice)
        trainer = trainer_of(site, instructions)

    with _then_personal_model(site, instructions, lambda: trainer.run(plan)) as work:
        payload = _release(site, ledger, instructions, "update", frozen, work, plan.rounds)
    return wire.write_update(payload, trainer.size, choice)


def _choose(
    site: Site, ledger: Ledger, instructions: Instructions, plan: Plan, frozen: FrozenPlan
) -> bytes:
    """Return the sealed choice of the model that suits the site's records, of all that came."""
    from client_app.training.private_choice import choose_privately

    if plan.choices is None or not plan.choices.count:
        raise Declined("terms: no 'selections' are planned, and the server asks for a choice")
    choices = plan.choices
    return _release(
        site, ledger, instructions, "choice", frozen,
        lambda: choose_privately(site, instructions, choices), choices.count,
    )  # fmt: skip


def _train_for_trusted_server(site: Site, instructions: Instructions) -> RecordDict:
    """Answer with a clipped update without noise; no plan of this site's pays for it."""
    from client_app.training.client_level import ClientLevelTrainer

    ledger = site.ledger
    if ledger.frozen_plan(instructions.terms.run_id) is not None:
        raise Declined("terms: 'noise' changed after the plan was frozen")
    trainer = ClientLevelTrainer(site, instructions)

    with _then_personal_model(site, instructions, lambda: trainer.run(None)) as work:
        released = _release(site, ledger, instructions, CLIPPED_UPDATE, None, work)
    return wire.write_update(released, trainer.size)


@contextlib.contextmanager
def _then_personal_model(
    site: Site, instructions: Instructions, work: Callable[[], bytes]
) -> Iterator[Callable[[], bytes]]:
    """Yield ``work``; where it was done, train the personal model once its payload is sealed.

    A process that dies over the personal model loses no release; a replay trains nothing.
    """
    from client_app.personal.ditto import train_personal_model

    done = []

    def noted() -> bytes:
        payload = work()
        done.append(True)
        return payload

    yield noted
    if done:
        train_personal_model(site, instructions)


def evaluate(site: Site, instructions: Instructions) -> RecordDict:
    """Answer with metrics of models on the site's own test records, if it discloses them.

    They are not covered by ε; the ledger notes each of them, and the site's report says so.
    """
    from client_app.personal.held_out import local_metrics

    if "metrics" not in site.profile.disclose:
        raise Declined("profile: 'disclose' does not list 'metrics'")
    payload = _release(
        site, site.ledger, instructions, "metrics", None, lambda: local_metrics(site, instructions)
    )
    return wire.write_metrics(payload)


def join(site: Site, instructions: Instructions) -> RecordDict:
    """Say who this is, in constants that the profile discloses; no record is read."""
    disclose, profile = site.profile.disclose, site.profile
    facts: dict[str, int | float] = {}
    if site.index is not None:
        facts["partition"] = site.index[0]
    if "batch-size" in disclose:
        facts["batch-size"] = profile.training.batch_size
    if "declared-records" in disclose:
        facts["declared-records"] = profile.training.declared_records
    if "epsilon" in disclose:
        facts["epsilon"] = profile.run.epsilon
    if "noise-std" in disclose and site.simulated and instructions.terms.noise == "records":
        terms = instructions.terms
        with contextlib.suppress(Declined):  # no plan, no noise: it will decline to train, too
            plan, _ = site.plan(site.ledger)
            facts["noise-std"] = plan.update_noise_std(1, terms.clip_norm, terms.learning_rate)
    return wire.write_site(facts)


def finish(site: Site, instructions: Instructions) -> RecordDict:
    """Keep the final model in the site's state folder, if it has one and took part in the run."""
    from client_app.personal.final_model import check_may_keep, keep_final_model

    if site.profile.state is not None:
        check_may_keep(site, site.profile.state.path)
        keep_final_model(site, instructions)
    return wire.write_site({})


def _release(
    site: Site,
    ledger: Ledger,
    instructions: Instructions,
    kind: str,
    plan: FrozenPlan | None,
    work: Callable[[], bytes],
    paid: int = 0,
) -> bytes:
    """Reserve, work, seal; return the payload that is now safe to send.

    Args:
        site: who releases.
        ledger: its ledger.
        instructions: what is asked.
        kind: of the release.
        plan: what covers it, None for what no plan covers.
        work: makes the payload.
        paid: releases of this kind that the plan pays for; 0: any number.
    """
    terms, budget = instructions.terms, site.profile.budget
    told = site.profile.run.epsilon if kind == CLIPPED_UPDATE else None
    if not site.simulated and (lost := ledger.broken_off()) is not None:
        log.warning("the work on round %d broke off: its process was killed, or its disk was full; "
                    "nothing of it left", lost[1])  # fmt: skip
    request = Request(terms.run_id, instructions.server_round, kind, instructions.digest, told)
    taken = ledger.reserve(
        request,
        plan,
        max_runs=site.profile.policy.runs,
        max_releases=paid,
        cap=(budget.epsilon, budget.delta),
        again=site.simulated,
    )
    if isinstance(taken, bytes):
        return taken
    with taken:
        payload = taken.seal(work())
    ledger.mark_sent(request.key)
    return payload


class SiteApp(ClientApp):
    """Flower's ClientApp, with every message behind the guard, whatever its type is.

    Flower's own raises where no handler is registered for a type, and its text, with what the
    server sent, goes to the server at once.
    """

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer ``message``; a type that is not exactly one of the four is refused."""
        return guarded(_HANDLERS.get(message.metadata.message_type))(message, context)


_HANDLERS: dict[str, Handler] = {
    wire.TRAIN: train,
    wire.EVALUATE: evaluate,
    wire.JOIN: join,
    wire.FINISH: finish,
}
app = SiteApp()
