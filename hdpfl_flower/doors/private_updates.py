"""Client-level privacy for any Flower ClientApp: clip, noise, ledger.

:class:`PrivateUpdates` is a mod, the private counterpart of Flower's ``LocalDpMod``, which keeps
no account: its (ε, δ) is that of one round for ε ≤ 1. Here one plan pays for all rounds of a
run, and a ledger on the client's own disk for all runs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Context, Message

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.doors.charged_updates import (
    ChargedUpdates,
    Floats,
    LedgerPath,
    Release,
    log,
    one_record,
)
from hdpfl_flower.errors import WireError, is_ctrl_c, log_text
from hdpfl_flower.privacy.clipped_update import clip_update
from hdpfl_flower.privacy.noise import ReleaseStreams, add_noise
from hdpfl_flower.privacy.plan import Plan, make_plan


class PrivateUpdates(ChargedUpdates):
    """ClientApp mod that makes updates private and charges a ledger.

    Use ``ClientApp(mods=[PrivateUpdates(ledger, epsilon=1.0, delta=1e-5, rounds=20)])``. Make the
    ledger once, for a number of runs, with :meth:`create_ledger`.

    Guarantees:
        All updates that leave in a run are (ε, δ)-DP for any change of the client's records, one
        or all of them. Each update is clipped to C as a whole and gets the noise of one Gaussian
        release with sensitivity 2C, calibrated by PLD for all rounds. All runs together stay within
        the ledger's budget. A round is answered only once: the same request gets the same bytes.
        No new update leaves after the budget, or the rounds of the plan, are used up. Every update
        is sealed in the ledger before it leaves.

        Nothing else leaves. The reply holds the update and a constant as the number of examples;
        the app's metrics are dropped, and messages other than for training are declined. If the app
        does anything other than return one model of the right size (an exception, ``sys.exit``, an
        error reply, other arrays, numbers that are not finite), its update counts as zeros, which
        get noise, are sealed and are charged. So there is always a reply of the same form, whatever
        the records are. Decisions before the app is called depend only on the message, the ledger
        and the terms, and are answered with a constant code.

        Not covered are a process that is killed or never ends (lack of memory, a fault in native
        code), whose round is lost and charged, which the server sees; the time of a reply without
        ``reply_after``, or if the work takes longer than that; an app that sends data in other
        ways, such as a logger of experiments; and mods that stand before this one in ``mods``.
        ``context.state`` has no noise and stays with the client's SuperNode: an app may train from
        it, but must not send it. Ctrl-C ends a simulation as usual. In a SuperNode's own process
        Flower handles the signal, so a ``KeyboardInterrupt`` there comes from the app.
    """

    def __init__(  # noqa: PLR0913 - the last by name
        self,
        ledger: LedgerPath,
        *,
        epsilon: float,
        delta: float,
        rounds: int,
        clip_norm: float = 1.0,
        weight_key: str = "num-examples",
        reply_after: float = 0.0,
        anchor: LedgerPath | None = None,
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
            anchor: the ledger's anchor, as ``ledger``, if it was made with one.

        Raises:
            ProfileError, TermsError: a number is out of range.
        """
        budget = {"epsilon": float(epsilon), "delta": float(delta)}
        profile = {
            "budget": budget,
            "run": budget,
            "training": {"batch-size": 1, "declared-records": 1},
            "policy": {"client-noise": True},
            "reply-after": float(reply_after),
        }
        terms = RunTerms().updated(
            strategy="fedavg", noise="client", rounds=rounds, clip_norm=float(clip_norm)
        )
        super().__init__(ledger, profile, terms, weight_key, anchor)

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Answer a round with a noisy update, other messages with a constant code."""

        def prepare(arrays: ArrayRecord) -> Release:
            start, clip_norm = _vector(arrays), self._terms.clip_norm

            def release(plan: Plan, server_round: int) -> npt.NDArray[np.float32]:
                # A copy: names and shapes of the reply are those that the server sent.
                update = _update_of(call_next, copy.deepcopy(message), context, start)
                return _noisy(update, plan, server_round, clip_norm)

            return release

        return self._reply(message, context, prepare)

    def clients_needed(self, numbers: int, signal_to_noise: float = 1.0) -> int:
        """Return the number of clients whose mean update is as long as its noise.

        This is the best case, in which all updates have the length C and the same direction; in
        any other case more clients are needed. The noise of the mean of n updates has the length
        2Cz·√(d/n), so n is 4z²d.

        Args:
            numbers: d, the number of trained parameters of the model.
            signal_to_noise: ratio of the length of the mean to the length of its noise.

        Raises:
            AccountingError: no noise can pay for the terms.
        """
        z = make_plan(self._profile, self._terms).noise_multiplier
        return max(1, math.ceil((signal_to_noise * 2 * z) ** 2 * numbers))


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
        trained = _vector(one_record(call_next(message, context).content)[1])
        if trained.shape == start.shape:
            with np.errstate(all="ignore"):
                return trained - start
        log.error(
            "the model that the app returned has another size; the update is zeros with noise"
        )
    except BaseException as reason:
        if is_ctrl_c(reason):
            raise
        log.error("the app failed: %s; the update is zeros with noise", log_text(reason))
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


def _vector(arrays: ArrayRecord) -> Floats:
    """Return the arrays as one vector, float64, shape ``(d,)``; raises ``WireError``."""
    parts = [array.numpy() for array in arrays.values()]
    if not all(values.dtype in (np.float32, np.float64) for values in parts):
        raise WireError("message: an array is not float32 or float64; send trainable parameters")
    return np.concatenate([values.ravel() for values in parts]).astype(np.float64)
