"""Calibration over the grid it promises: ε .1–8, q .001–1, up to 200,000 steps, mixed schedules.

At a grid of privacy losses three times finer than calibration's own, the noise found is enough, and
0.3 % less would not be: neither too little nor a waste.
"""

from __future__ import annotations

import pytest

from hdpfl_flower.privacy.accounting import Steps, calibrate, epsilon_of, event_of, interval_for

STEPS = [
    (0.001, 200_000),
    (0.001, 2_000),
    (1 / 150, 30_000),
    (0.01, 200_000),  # at ε = 8 on a grid of 1e-4·ε: 0.35 % too much noise
    (0.04, 2_250),
    (0.1, 1_000),
    (0.5, 100),
    (1, 1),
    (1, 200),
]
GRID = [
    ([Steps(q, count)], epsilon)
    for index, (q, count) in enumerate(STEPS)
    for epsilon in (0.1, 2 if index % 2 else 0.5, 8)
]
"""Both ends of ε with all steps, and between them a value for each, in turn."""
MIXED = [
    ([Steps(1, 1), Steps(0.001, 200_000)], 1, 1e-5),
    ([Steps(1, 1), Steps(0.01, 3_000)], 0.3, 1e-6),
    ([Steps(0.5, 10), Steps(0.02, 5_000), Steps(0.001, 100_000)], 4, 1e-4),
    ([Steps(1, 20), Steps(0.1, 500)], 8, 1e-5),
    ([Steps(0.9999, 1), Steps(0.3, 3)], 0.1, 1e-9),
    ([Steps(0.04, 1_000), Steps(0.08, 1_000)], 2, 1e-5),
]


def check_tight(schedule: list[Steps], epsilon: float, delta: float, factor: float = 1) -> None:
    """Check the noise that calibration finds, times ``factor``: a mutant's where that is not 1."""
    z = factor * calibrate(schedule, epsilon, delta)
    finer = interval_for(epsilon, sum(steps.count for steps in schedule)) / 3
    assert epsilon_of(event_of(schedule, z), delta, finer) <= epsilon
    assert epsilon_of(event_of(schedule, z / 1.003), delta, finer) > epsilon


@pytest.mark.parametrize(
    ("schedule", "epsilon", "delta"),
    [
        ([Steps(1 / 150, 30_000)], 0.1, 1e-5),
        ([Steps(0.04, 2_250)], 2, 1e-5),
        ([Steps(1, 200)], 0.5, 1e-10),
        ([Steps(0.5, 100)], 8, 1e-3),
        MIXED[1],
    ],
)
def test_noise_is_enough_and_no_waste(schedule: list[Steps], epsilon: float, delta: float) -> None:
    check_tight(schedule, epsilon, delta)


@pytest.mark.parametrize("factor", [0.995, 1.005])
def test_the_check_rejects_noise_that_is_off_by_half_a_percent(factor: float) -> None:
    with pytest.raises(AssertionError):
        check_tight([Steps(0.04, 2_250)], 2, 1e-5, factor)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "epsilon", "delta"), [*((*point, 1e-5) for point in GRID), *MIXED]
)
def test_noise_is_tight_on_the_grid(schedule: list[Steps], epsilon: float, delta: float) -> None:
    check_tight(schedule, epsilon, delta)
