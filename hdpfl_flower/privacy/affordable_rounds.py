"""Affordable rounds of a budget at a given noise (early exit).

Liu et al., Projected Federated Averaging with Heterogeneous Differential Privacy (VLDB 2021), §4.2:
every site trains with the same noise multiplier, and a site leaves when its own ε is used up.
"""

from __future__ import annotations

import math
from functools import lru_cache

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.accounting import Steps, calibrate, epsilon_of, event_of, interval_for

_DIGITS = 4
"""Significant digits of a charge; the last one is rounded up."""
_LEAST = 1e-3
"""Share of ε that is charged at least: a smaller charge needs a finer grid to be computed again."""


@lru_cache(maxsize=1024)
def affordable_rounds(
    steps: Steps, noise_multiplier: float, epsilon: float, delta: float, most: int
) -> int:
    """Return the rounds that (ε, δ) pays for, 0 to ``most``.

    Rounded down, and searched from below: no trial costs much more than ε, so no noise multiplier,
    however small, makes the accountant's grid large.

    Raises:
        AccountingError: ε or δ out of range, or no noise at all pays for a round.
    """
    if math.isinf(epsilon):
        return most
    # One round is decided by the noise that it needs: the cost of a tiny multiplier is never
    # computed, for its grid would be huge.
    if noise_multiplier < calibrate((steps,), epsilon, delta):
        return 0
    low, high = 1, most + 1  # so many fit; so many do not, or are not asked for
    while high - low > 1:
        # Doubled until a number does not fit, then bisected.
        guess = min(2 * low, most) if high > most else (low + high) // 2
        if _cost(steps, guess, noise_multiplier, delta, epsilon) <= epsilon:
            low = guess
        else:
            high = guess
    return low


@lru_cache(maxsize=1024)
def charge_for(
    steps: Steps, rounds: int, noise_multiplier: float, epsilon: float, delta: float
) -> float:
    """Return the ε to charge for ``rounds`` rounds, rounded up.

    Guarantees:
        Not below the cost of the rounds, also when that is computed again on the grid that belongs
        to the charge, and not above ``epsilon``.

    Raises:
        AccountingError: the rounds cost more than ``epsilon``.
    """
    if math.isinf(epsilon):
        return epsilon
    cost = _cost(steps, rounds, noise_multiplier, delta, epsilon)
    if not cost <= epsilon:
        raise AccountingError("the rounds cost more than this epsilon; plan for fewer of them")
    charge = min(_round_up(max(cost, _LEAST * epsilon)), epsilon)
    # recompute.py computes the cost on the grid of the charge, not of ε. Where that grid finds more
    # than the charge, all of ε is charged.
    again = _cost(steps, rounds, noise_multiplier, delta, charge)
    return charge if again <= charge else epsilon


def _cost(
    steps: Steps, rounds: int, noise_multiplier: float, delta: float, epsilon: float
) -> float:
    """Return ε of so many rounds, an upper bound, on the grid that belongs to ``epsilon``."""
    total = Steps(steps.sampling_prob, rounds * steps.count)
    event = event_of((total,), noise_multiplier)
    return epsilon_of(event, delta, interval_for(epsilon, total.count))


def _round_up(value: float) -> float:
    """Return ``value`` with four significant digits, rounded up."""
    digits = _DIGITS - 1 - math.floor(math.log10(value))
    return math.ceil(value * 10.0**digits) / 10.0**digits
