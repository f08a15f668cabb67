"""Spent ε of FLamby's procedure: its noise and true cost.

The noise is Opacus' result for 15 passes of Poisson-sampled batches: 750, 645, 120 and 330 steps
at the four hospitals. Each takes 1,500 steps on batches of shuffled passes, so that a record is in
one batch of each pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hdpfl_flower.privacy.accounting import (
    Steps,
    calibrate,
    epsilon_of,
    event_of,
    interval_for,
)
from studies.flamby.procedure import ROUNDS, STEPS, batches_of

DELTA = 1e-4
SIGMAS: Mapping[str, tuple[float, ...]] = {
    "0.1": (15.0, 17.5, 40.0, 22.5),
    "1": (1.953125, 2.080078125, 4.5703125, 2.83203125),
    "5": (0.7818603515625, 0.809326171875, 1.35009765625, 0.9661865234375),
    "10": (0.608062744140625, 0.62408447265625, 0.9100341796875, 0.71044921875),
}
"""Nominal ε → Opacus 1.6's ``get_noise_multiplier`` (PRV, 15 epochs, δ = 1e-4).

Its search ends within 0.01 of ε, far from exact at 0.1; a test asks Opacus again.
"""


@dataclass(frozen=True)
class Spent:
    """Cost of a hospital's noise.

    Attributes:
        records: number of training records.
        accounted: Poisson-sampled steps for which the noise was found.
        taken: steps actually taken.
        passes: maximum number of steps that include a record.
        sigma: noise multiplier.
        poisson: ε of the steps taken, had they been Poisson-sampled; rounded up.
        bound: ε of the steps taken, a Gaussian release for each pass; rounded up.
    """

    records: int
    accounted: int
    taken: int
    passes: int
    sigma: float
    poisson: float
    bound: float


def spent(records: int, sigma: float, nominal: float) -> Spent:
    """Return the cost of ``sigma`` for a hospital at δ = 1e-4.

    Both ε compare one record's gradient with zero, with the order of the others fixed; as
    far as noise is secret and means and deviations are public.

    Args:
        records: number of training records.
        sigma: noise multiplier.
        nominal: ε for which it was found; it sets the accountant's grid.
    """
    batches = batches_of(records)
    passes = math.ceil(STEPS / batches)
    poisson = epsilon_of(
        event_of([Steps(1 / batches, STEPS)], sigma), DELTA, interval_for(nominal, STEPS)
    )
    # A record is in one batch of a pass: a Gaussian release of sensitivity C, like a full batch.
    bound = epsilon_of(event_of([Steps(1.0, passes)], sigma), DELTA, interval_for(nominal, passes))
    return Spent(records, ROUNDS * batches, STEPS, passes, sigma, poisson, bound)


def honest_sigma(records: int, epsilon: float) -> float:
    """Return the noise multiplier of 1,500 Poisson-sampled steps at (ε, 1e-4)."""
    return calibrate([Steps(1 / batches_of(records), STEPS)], epsilon, DELTA)


def unamplified_sigma(records: int, epsilon: float) -> float:
    """Return the noise multiplier of shuffled passes, each a release, at (ε, 1e-4)."""
    return calibrate([Steps(1.0, math.ceil(STEPS / batches_of(records)))], epsilon, DELTA)
