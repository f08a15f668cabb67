"""Updates of any Flower ClientApp that a client's own ledger pays for: plan, seal, replay."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from hdpfl_flower import wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined, LedgerError, Reason, WireError, is_ctrl_c, log_text
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger, cap_for_runs
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_flower.reply_time import Arrival, wait_until_due
from hdpfl_flower.system.paths import expanded
from hdpfl_flower.system.printable import site_log

log = site_log()

Floats = npt.NDArray[np.float64]
LedgerPath = Path | str | Callable[[Context], Path | str]
"""A ledger's file, or a function of a node's context that returns it: clients of a simulation have
one each."""
Release = Callable[[Plan, int], npt.NDArray[np.float32]]
"""Function of a plan and a round: the noisy update of the arrays' trained numbers."""


class ChargedUpdates:
    """One run's terms at a client, and the way of an update through its ledger.

    Guarantees:
        A round is answered once: the same request gets the same bytes, and none after the ledger,
        or the plan's rounds, are spent. The whole run is charged before any work, and every update
        is sealed in the ledger before it leaves. A reply holds the update and a constant as the
        number of examples. A constant code stands for decisions before the work, which the message,
        the ledger and the terms alone decide.
    """

    def __init__(
        self,
        ledger: LedgerPath,
        profile: dict[str, Any],
        terms: RunTerms,
        weight_key: str,
        anchor: LedgerPath | None = None,
    ) -> None:
        """Set the client's terms, without reading or charging.

        Raises:
            ProfileError, TermsError: a number is out of range.
        """
        self._profile, self._terms = Profile.parse(profile), terms
        self._ledger, self._anchor, self._weight_key = ledger, anchor, weight_key

    def create_ledger(
        self, path: Path | str, runs: int, anchor: Path | str | None = None
    ) -> tuple[float, float]:
        """Create a ledger for ``runs`` such runs; return (ε, δ), the promise for all of them.

        Args:
            path: the file.
            runs: runs of these terms that it admits.
            anchor: small file on other storage that names the ledger's last entry, against a
                ledger that is set back; as ``anchor`` of the handler names it.

        Guarantees:
            δ is that of a run times ``runs``. ε is the least for which a Rényi filter of one order,
            or the plain sum where that is less, admits them; rounded up.

        Raises:
            LedgerError: the file exists, or ``runs`` is below 1.
        """
        if runs < 1:
            raise LedgerError("a ledger must hold at least one run")
        plan = make_plan(self._profile, self._terms)
        epsilon, delta, order = cap_for_runs(plan, runs)
        anchor_path = expanded(anchor) if anchor is not None else None
        Ledger.create(expanded(path), epsilon, delta, anchor_path, order=order).close()
        return epsilon, delta

    def _reply(
        self, message: Message, context: Context, prepare: Callable[[ArrayRecord], Release]
    ) -> Message:
        """Return a noisy update in reply to a round, or a constant code; never raises.

        Args:
            message: of the server.
            context: of the node.
            prepare: takes the model's arrays and does all that may fail without a charge; it reads
                no record. Its result does the work, once, after the charge.
        """
        arrived = Arrival(time.monotonic(), time.time(), self._profile)
        answered = self._content_or_code(message, context, prepare)
        return wire.reply_with(answered, message, wait_until_due(arrived))

    def _content_or_code(
        self, message: Message, context: Context, prepare: Callable[[ArrayRecord], Release]
    ) -> RecordDict | int:
        try:
            return self._answer(message, context, prepare)
        except Declined as reason:
            log.warning("declined: %s", reason)
            return wire.DECLINED
        except BaseException as reason:  # the guard: an exception's text would be sent
            if is_ctrl_c(reason):
                raise
            log.error("failed: %s", log_text(reason))
            return wire.FAILED

    def _answer(
        self, message: Message, context: Context, prepare: Callable[[ArrayRecord], Release]
    ) -> RecordDict:
        if message.metadata.message_type.split(".")[0] != "train":
            raise Declined(
                Reason.POLICY,
                "only rounds of training are answered: ε does not cover what an app measures "
                "on its records; set fraction_evaluate=0.0 in the server's strategy",
            )
        key, arrays = one_record(message.content)
        server_round = _round_of(message.content)
        terms = self._terms.updated(run_id=str(message.metadata.run_id))
        release = prepare(arrays)
        ledger = self._open(context)
        try:
            plan, charged = self._plan(ledger, terms)
            if not plan.covers(server_round):
                raise Declined(
                    Reason.TERMS, "the round is beyond the rounds that 'rounds' pays for; raise it"
                )
            asked = f"{server_round}\n{wire.model_digest(arrays)}".encode()
            request = Request(
                terms.run_id, server_round, "update", hashlib.sha256(asked).hexdigest()
            )
            payload = ledger.reserve(request, charged, max_releases=plan.rounds)
            if not isinstance(payload, bytes):
                with payload as reservation:
                    payload = reservation.seal(wire.encode_update(release(plan, server_round)))
                ledger.mark_sent(request.key)
        finally:
            ledger.close()
        moved = self._moved(arrays, wire.read_sealed(payload))
        return RecordDict({key: moved, "metrics": MetricRecord({self._weight_key: 1})})

    def _open(self, context: Context) -> Ledger:
        path = _place(self._ledger, context)
        if not path.is_file():
            raise LedgerError(
                f"there is no ledger {path}; make it once with: "
                f"{type(self).__name__}(…).create_ledger(path, runs=10)"
            )
        return Ledger(path, _place(self._anchor, context) if self._anchor is not None else None)

    def _plan(self, ledger: Ledger, terms: RunTerms) -> tuple[Plan, ChargedPlan]:
        """Return the run's plan: frozen by the ledger, or new."""
        if (frozen := ledger.frozen_plan(terms.run_id)) is not None:
            if frozen.terms != terms.to_json():
                raise Declined(Reason.TERMS, "the terms changed during the run; set them back")
            return frozen.read(), frozen
        plan = make_plan(self._profile, terms)
        return plan, ChargedPlan(plan.to_json(), terms.to_json(), plan.epsilon, plan.delta)

    def _moved(self, arrays: ArrayRecord, update: npt.NDArray[np.float32]) -> ArrayRecord:
        """Return the arrays with the update added, of the same names, shapes and types."""
        return moved(arrays, update, frozenset(arrays))


def _place(given: LedgerPath, context: Context) -> Path:
    return expanded(given(context) if callable(given) else given)


def one_record(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return a message's ArrayRecord; raises ``WireError`` unless exactly one."""
    records = list(content.array_records.items())
    if len(records) != 1 or not records[0][1]:
        raise WireError("message: not exactly one record of arrays")
    return records[0]


def moved(
    arrays: ArrayRecord, update: npt.NDArray[np.float32], trained: frozenset[str]
) -> ArrayRecord:
    """Return the arrays, those in ``trained`` moved by their part of ``update``, in order."""
    position, result = 0, ArrayRecord()
    for name, array in arrays.items():
        if name not in trained:
            result[name] = array
            continue
        values = array.numpy()
        steps = update[position : position + values.size]
        if steps.size != values.size:
            break
        after = values.astype(np.float64) + steps.reshape(values.shape)
        result[name] = Array(after.astype(values.dtype))
        position += values.size
    if position != len(update) or len(result) != len(arrays):
        raise WireError("message: the model and the update have different sizes")
    return result


def _round_of(content: RecordDict) -> int:
    """Return the round number in the config of Flower's strategies."""
    for record in content.config_records.values():
        number = record.get("server-round") if isinstance(record, ConfigRecord) else None
        if type(number) is int:
            return number
    raise WireError("message: its config has no 'server-round'; Flower's strategies write it")
