"""Steps of R-DPCFL's two stages, and their noise beside private choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.accounting import ExtraRelease, Steps, calibrate
from hdpfl_flower.privacy.noisy_max import selections_of


def two_stage_steps(
    records: int, batch_size: int, first_batch: int, rounds: int, local_epochs: int = 1
) -> tuple[Steps, ...]:
    """Return each round's steps; the first has large batches.

    Round 1 takes ⌈K·N/b¹⌉ steps with q = b¹/N, each later one ⌈K·N/b⌉ with q = b/N (R-DPCFL,
    Algorithm 1; a client takes whole steps, so they are rounded up).

    Args:
        records: N, declared.
        batch_size: b, expected.
        first_batch: b¹, expected; N for the full batch.
        rounds: E ≥ 1, the first one included.
        local_epochs: K.

    Raises:
        AccountingError: a batch that is not within 1 … N, or no round.

    >>> [(each.sampling_prob, each.count) for each in two_stage_steps(100, 30, 100, 3)[:2]]
    [(1.0, 1), (0.3, 4)]
    """
    if not (1 <= batch_size <= records and 1 <= first_batch <= records) or rounds < 1:
        raise AccountingError(
            "batches must be from 1 to the number of records, and there must be at least 1 round"
        )
    first, later = (
        Steps(batch / records, math.ceil(local_epochs * records / batch))
        for batch in (first_batch, batch_size)
    )
    return (first, *(later,) * (rounds - 1))


def calibrate_with_selections(
    steps: Sequence[Steps],
    epsilon: float,
    delta: float,
    selections: int,
    share: float,
    *,
    mechanism: Literal["gaussian", "gumbel"] = "gaussian",
) -> tuple[float, ExtraRelease]:
    """Return the steps' noise multiplier, and the charged selections.

    The selections alone would cost ``share``·ε at δ. All of it composes in one privacy-loss
    distribution with one δ, so that together they cost far less than their sum.

    Args:
        steps: of every round, :func:`two_stage_steps`.
        epsilon: the run's ε; ``inf``: no noise.
        delta: the run's δ.
        selections: rounds in which the client chooses, all that may be executed.
        share: of ε, within (0, 1).
        mechanism: the noise of the choices, as of :func:`selections_of`.

    Guarantees:
        Steps and selections together are (ε, δ)-DP; both multipliers are rounded up, and the ε of
        a Gumbel choice down.

    Raises:
        AccountingError: a number or a mechanism out of range, or no noise fits.
    """
    beside = selections_of(selections, share, epsilon, delta, mechanism=mechanism)
    if math.isinf(epsilon) or not selections:
        return calibrate(steps, epsilon, delta), beside
    # The choices are fixed first; the steps get the noise with which both fit (ε, δ) together.
    return calibrate(steps, epsilon, delta, [beside]), beside
