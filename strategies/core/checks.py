"""Checks of replies before a strategy, and of its outcome afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from flwr.app import Message

from hdpfl_flower import server_wire, wire
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.linalg.sums import BLOCK, square_sum
from hdpfl_flower.monitoring.rejection import Rejected, Rejection
from hdpfl_flower.updates import Outcome, RoundUpdates, RowWeights
from hdpfl_flower.weighting.by_records import weighted_rows

MAX_NORM = 1e6
"""Largest l2 norm of a used update; honest noise stays far below."""

CRASHED = 8
"""Flower's code of a ClientApp whose process was killed."""

NO_REPLY = Rejected(Rejection.LATE, "no reply in time")

_ANSWERS = {
    wire.DECLINED: Rejected(Rejection.DECLINED, "declined"),
    wire.FAILED: Rejected(Rejection.FAILED, "failed"),
    wire.PENDING: Rejected(Rejection.PENDING, "pending: its operator has not approved the run"),
    wire.REFUSED: Rejected(Rejection.REFUSED, "refused by its operator"),
    1: Rejected(
        Rejection.UNDELIVERED,
        "the app was not loaded at the site: it may have approved another app",
    ),
    CRASHED: Rejected(Rejection.UNDELIVERED, "its work ended early"),
    **dict.fromkeys((3, 4, 5), NO_REPLY),  # the SuperLink's, for a site late or gone
}
"""Meanings of error codes in replies; codes below 100 are Flower's."""


class NoAnswerError(wire.WireError):
    """Error code in place of a reply's content.

    Attributes:
        rejected: the meaning of the code.
    """

    def __init__(self, code: int) -> None:
        """``code``: the site's own, or Flower's."""
        super().__init__(code)
        self.rejected = rejection_of(code)

    def __str__(self) -> str:
        return self.rejected.words


def rejection_of(error: wire.WireError | int) -> Rejected:
    """Return why a reply cannot be used, by code or content."""
    if isinstance(error, NoAnswerError):
        return error.rejected
    if isinstance(error, int):
        unknown = Rejected(Rejection.UNDELIVERED, f"not delivered: {error}")
        return _ANSWERS.get(error, unknown)
    return Rejected(Rejection.MALFORMED, str(error))


def read_checked(
    reply: Message,
    size: int,
    *,
    may_be_projected: bool = False,
    with_choice: bool = False,
) -> npt.NDArray[np.float32]:
    """Return the update in ``reply``, shape ``(size,)``, or ``(1,)`` if projected.

    Its norm is still to be checked, by :func:`check_norm`.

    Raises:
        wire.WireError: the site sent a code instead, or something that cannot be used.
    """
    check_delivered(reply)
    return server_wire.read_update(
        reply.content, size, may_be_projected=may_be_projected, with_choice=with_choice
    )


def read_test(reply: Message) -> dict[str, float]:
    """Return the metrics in ``reply``, finite numbers.

    Raises:
        wire.WireError: the site sent a code instead, or something that cannot be used.
    """
    check_delivered(reply)
    return server_wire.read_metrics(reply.content)


def read_payload(reply: Message, kind: str, numbers: int) -> npt.NDArray[np.float32]:
    """Return the payload of a kind of release in ``reply``, shape ``(numbers,)``.

    Raises:
        wire.WireError: the site sent a code instead, or something that cannot be used.
    """
    check_delivered(reply)
    payload = server_wire.read_payload(kind, reply.content, numbers)
    check_norm(payload)
    return payload


def check_delivered(reply: Message) -> None:
    """Raise ``NoAnswerError``, a ``wire.WireError``, for a reply without content."""
    if reply.has_error():
        raise NoAnswerError(reply.error.code)


def check_norm(update: npt.NDArray[np.float32]) -> float:
    """Return ‖u‖² of an update, or of its one number.

    Raises:
        wire.WireError: it is beyond ``MAX_NORM``².
    """
    square = square_sum(update)
    # Written so that NaN fails too.
    if not square <= MAX_NORM**2:
        raise wire.WireError("update: its norm is out of range")
    return square


def check_outcome(outcome: Outcome, updates: RoundUpdates) -> None:
    """Refuse an outcome that no strategy may return.

    Raises:
        StrategyError: weights not finite, negative or not summing to 1 (in every group), or an
            update that is not finite or has another shape.
    """
    if fault := next(_faults(outcome, updates), ""):
        raise StrategyError(f"the strategy returned {fault}")


def shares_of(outcome: Outcome) -> npt.NDArray[np.float64]:
    """Return each update's share of each model: ``(n,)``, of several ``(M, n)``."""
    if outcome.group is None:
        return outcome.weights
    shares = np.zeros((len(outcome.update), len(outcome.weights)))
    shares[outcome.group, np.arange(len(outcome.weights))] = outcome.weights
    return shares


def is_declared_sum(outcome: Outcome, updates: RoundUpdates) -> bool:
    """Return whether the update is ``scale``·Σᵢ wᵢuᵢ of its outcome's weights.

    To the rounding of sums in float32: 1e-5 of the longest coordinate of the updates, in blocks.
    """
    rows, size = updates.updates, updates.updates.shape[1]
    if outcome.row_weights is not None:
        total = weighted_rows(outcome.row_weights, rows).astype(np.float64)
        room = 1e-5 * float(np.abs(rows).max(initial=0)) * float(outcome.row_weights.scales.max())
        return bool(np.all(np.abs(outcome.update - total) <= room + 1e-30))
    shares = shares_of(outcome)
    for block in (slice(start, start + BLOCK) for start in range(0, size, BLOCK)):
        some = rows[:, block].astype(np.float64)
        total = outcome.scale * (shares @ some)
        room = 1e-5 * abs(outcome.scale) * float(np.abs(some).max(initial=0))
        if not np.all(np.abs(outcome.update[..., block] - total) <= room + 1e-30):
            return False
    return True


def _faults(outcome: Outcome, updates: RoundUpdates) -> Iterator[str]:
    """Yield the faults of an outcome; a later check relies on the earlier ones."""
    weights, update, n = outcome.weights, outcome.update, len(updates.sites)
    # NaN fails `>= 0`; an infinite weight fails the sum below.
    if weights.shape != (n,) or not np.all(weights >= 0):
        yield "weights that are not one number of at least 0 for each site"
    shape, group = updates.updates.shape[1:], outcome.group
    if group is not None:
        shape = (len(update), *shape)
        if group.shape != (n,) or not np.all((group >= 0) & (group < len(update))):
            yield "groups that are not models of the strategy"
    totals = np.bincount(np.zeros(n, np.int64) if group is None else group, weights)
    # Only groups with a client: a model without one has no weights to sum.
    sums = totals[np.unique(group)] if group is not None else totals
    if np.any(np.abs(sums - 1) > 1e-6):
        yield "weights that do not sum to 1"
    if outcome.row_weights is not None:
        yield from _faults_of_rows(outcome.row_weights, n)
    if update.shape != shape or not np.isfinite(update).all():
        yield "an update that has another shape or is not finite"
    if (past := outcome.revision) is not None and past.move.shape != shape:
        yield "a revision whose shape differs from that of its update"


def _faults_of_rows(weights: RowWeights, sites: int) -> Iterator[str]:
    blocks, shares = weights.head.classes + 1, weights.shares
    if shares.shape != (blocks, sites) or weights.scales.shape != (blocks,):
        yield "row weights that are not one number for each row"
    convex = np.all(shares >= 0) and np.all(np.abs(shares.sum(axis=1) - 1) <= 1e-6)
    if not convex or not np.all((weights.scales > 0) & np.isfinite(weights.scales)):
        yield "row weights that do not sum to 1 in every row"
