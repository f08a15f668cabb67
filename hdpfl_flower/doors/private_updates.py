"""Client-level privacy for any Flower ClientApp: clip, noise, ledger.

:class:`PrivateUpdates` is a mod, the private counterpart of Flower's ``LocalDpMod``, which keeps
no account: its (ε, δ) is that of one round for ε ≤ 1. Here one plan pays for all rounds of a
run, and a ledger on the client's own disk for all runs.
"""

from __future__ import annotations

import copy
import hashlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from hdpfl_flower import wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined, HDPFLError, Reason, WireError
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.central_dp import clip_update
from hdpfl_flower.privacy.noise import ReleaseStreams, add_noise
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_flower.reply_time import Arrival, wait_until_due
from hdpfl_flower.system.printable import site_log

log = site_log()

Floats = npt.NDArray[np.float64]


class PrivateUpdates:
    """ClientApp mod: clipped, noisy updates, charged to the client's ledger.

    ``ClientApp(mods=[PrivateUpdates(ledger, epsilon=1.0, delta=1e-5, rounds=20)])``; the ledger is
    made once, with its lifetime budget: ``Ledger.create(path, epsilon=3.0, delta=1e-5).close()``.

    Guarantees:
        All updates that leave in a run are (ε, δ)-DP for any change of the client's records, one
        or all of them: each is clipped to C as a whole and gets one Gaussian release's noise for
        2C, calibrated by PLD for all rounds. All runs together stay within the ledger's budget. A
        round is answered once: the same request gets the same bytes, and none after the budget, or
        the plan's rounds, are spent. Every update is sealed in the ledger before it leaves.

        Nothing else leaves: the reply holds the update and a constant as the number of examples;
        the app's metrics are dropped, and messages other than of training are declined. Whatever
        the app does in place of returning one model of the right size (an exception, ``sys.exit``,
        an error reply, other arrays, numbers that are not finite) counts as an update of zeros,
        with noise, sealed and charged: there is a reply, of the same form, whatever the records
        are. A constant code stands for decisions before the app is called, by the message, the
        ledger and the terms alone.

        Not covered: a process that is killed or never ends (for want of memory, by a fault of
        native code): its round is lost and charged, and the server sees it; the time of a
        reply, without ``reply_after``, or where the work takes longer; an app that sends data by
        other ways, as by a logger of experiments; mods that stand before this one in ``mods``.
        ``context.state`` has no noise and stays with the client's SuperNode: an app may train
        from it, and must not send it. Ctrl-C ends a simulation as ever; in a SuperNode's own
        process Flower takes the signal, so that a ``KeyboardInterrupt`` there is the app's.
    """

    def __init__(
        self,
        ledger: Path | str | Callable[[Context], Path | str],
        *,
        epsilon: float,
        delta: float,
        rounds: int,
        clip_norm: float = 1.0,
        weight_key: str = "num-examples",
        reply_after: float = 0.0,
    ) -> None:
        """Set the client's terms, without reading or charging.

        Args:
            ledger: the file, or a function of a node's context that returns it (clients of a
                simulation have one each).
            epsilon: ε of one run.
            delta: δ of one run.
            rounds: rounds of a run that are paid for.
            clip_norm: C, the bound on the l2 norm of the whole update.
            weight_key: key of the constant 1 that stands for the number of examples.
            reply_after: seconds from a message's arrival at which every reply leaves, a refusal
                too, with that time in its metadata; where the work takes longer, the next multiple.
                Choose it longer than any round. 0: when it is ready.

        Raises:
            ProfileError, TermsError: a number is out of range.
        """
        budget = {"epsilon": float(epsilon), "delta": float(delta)}
        self._profile = Profile.parse(
            {
                "budget": budget,
                "run": budget,
                "training": {"batch-size": 1, "declared-records": 1},
                "policy": {"client-noise": True},
                "reply-after": float(reply_after),
            }
        )
        self._terms = RunTerms().updated(
            strategy="fedavg", noise="client", rounds=rounds, clip_norm=float(clip_norm)
        )
        self._ledger, self._weight_key = ledger, weight_key

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Answer a round with a noisy update, other messages with a constant code."""
        arrived = Arrival(time.monotonic(), time.time(), self._profile)
        answered = self._content_or_code(message, context, call_next)
        return wire.reply_with(answered, message, wait_until_due(arrived))

    def _content_or_code(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> RecordDict | int:
        try:
            return self._answer(message, context, call_next)
        except KeyboardInterrupt:
            raise
        except Declined as reason:
            log.warning("declined: %s", reason)
            return wire.DECLINED
        except BaseException as reason:  # the guard: an exception's text would be sent
            log.error("failed: %s", reason if isinstance(reason, HDPFLError) else type(reason))
            return wire.FAILED

    def _answer(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> RecordDict:
        if message.metadata.message_type.split(".")[0] != "train":
            raise Declined(
                Reason.POLICY,
                "only rounds of training are answered: what an app "
                "measures on its records is not covered by ε",
            )
        key, arrays = _one_record(message.content)
        start, server_round = _vector(arrays), _round_of(message.content)
        terms = self._terms.updated(run_id=str(message.metadata.run_id))
        path = self._ledger(context) if callable(self._ledger) else self._ledger
        ledger = Ledger(Path(path).expanduser())
        try:
            plan, charged = self._plan(ledger, terms)
            if not plan.covers(server_round):
                raise Declined(Reason.TERMS, "the round is not one that 'rounds' pays for")
            asked = f"{server_round}\n{wire.model_digest(arrays)}".encode()
            request = Request(
                terms.run_id, server_round, "update", hashlib.sha256(asked).hexdigest()
            )
            payload = ledger.reserve(request, charged, max_releases=plan.rounds)
            if not isinstance(payload, bytes):
                with payload as reservation:
                    # A copy: names and shapes of the reply are those that the server sent.
                    update = _update_of(call_next, copy.deepcopy(message), context, start)
                    noisy = _noisy(update, plan, server_round, terms.clip_norm)
                    payload = reservation.seal(wire.encode_update(noisy))
                ledger.mark_sent(request.key)
        finally:
            ledger.close()
        return RecordDict(
            {
                key: _moved(arrays, start, wire.read_sealed(payload)),
                "metrics": MetricRecord({self._weight_key: 1}),
            }
        )

    def _plan(self, ledger: Ledger, terms: RunTerms) -> tuple[Plan, ChargedPlan]:
        """Return the run's plan: frozen by the ledger, or new."""
        if (frozen := ledger.frozen_plan(terms.run_id)) is not None:
            if frozen.terms != terms.to_json():
                raise Declined(Reason.TERMS, "'rounds' or 'clip_norm' changed in mid-run")
            return frozen.read(), frozen
        plan = make_plan(self._profile, terms)
        return plan, ChargedPlan(plan.to_json(), terms.to_json(), plan.epsilon, plan.delta)


def _update_of(
    call_next: Callable[[Message, Context], Message],
    message: Message,
    context: Context,
    start: Floats,
) -> Floats:
    """Return the app's update of ``start``, or zeros if it returns no model of that size.

    One record may decide which: both are updates within the bound, under the same noise.
    """
    try:
        trained = _vector(_one_record(call_next(message, context).content)[1])
        if trained.shape == start.shape:
            with np.errstate(all="ignore"):
                return trained - start
        log.error("the app's model has another size; the update is zeros")
    except BaseException as reason:
        # An operator's, unless another handler takes the signal, as Flower's does at a SuperNode.
        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if isinstance(reason, KeyboardInterrupt) and ours:
            raise
        words = reason if isinstance(reason, HDPFLError) else type(reason).__name__
        log.error("the app failed: %s; the update is zeros", words)
    return np.zeros_like(start)


def _noisy(
    update: Floats, plan: Plan, server_round: int, clip_norm: float
) -> npt.NDArray[np.float32]:
    """Return the clipped update with fresh noise; zeros if not finite."""
    import torch

    with np.errstate(all="ignore"):  # an app may have set them to raise
        clipped = torch.from_numpy(clip_update(update, clip_norm))
    std = plan.round(server_round, clip_norm).noise_std
    noisy: npt.NDArray[np.float64] = add_noise(clipped, std, ReleaseStreams.fresh().noise).numpy()
    return noisy.astype(np.float32)


def _one_record(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return a message's ArrayRecord; raises ``WireError`` unless exactly one."""
    records = list(content.array_records.items())
    if len(records) != 1 or not records[0][1]:
        raise WireError("message: not exactly one record of arrays")
    return records[0]


def _vector(arrays: ArrayRecord) -> Floats:
    """Return the arrays as one vector, float64, shape ``(d,)``; raises ``WireError``."""
    parts = [array.numpy() for array in arrays.values()]
    if not all(values.dtype in (np.float32, np.float64) for values in parts):
        raise WireError("message: an array is no float32 or float64; send trainable parameters")
    return np.concatenate([values.ravel() for values in parts]).astype(np.float64)


def _moved(arrays: ArrayRecord, start: Floats, update: npt.NDArray[np.float32]) -> ArrayRecord:
    """Return ``start`` + ``update`` as arrays of the same names, shapes and types."""
    if len(start) != len(update):
        raise WireError("message: the model has another size than the update")
    total, position, moved = start + update, 0, ArrayRecord()
    for name, array in arrays.items():
        size = int(np.prod(array.shape))
        values = total[position : position + size].reshape(array.shape)
        moved[name] = Array(values.astype(array.dtype))
        position += size
    return moved


def _round_of(content: RecordDict) -> int:
    """Return the round number in the config of Flower's strategies."""
    for record in content.config_records.values():
        number = record.get("server-round") if isinstance(record, ConfigRecord) else None
        if type(number) is int:
            return number
    raise WireError("message: no 'server-round' in its config; Flower's strategies write it")
