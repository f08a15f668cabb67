"""The clip norm finds the quantile, and the bits that move it are paid for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.supercore.differential_privacy import adaptive_clip_inputs_inplace

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.accounting import Steps, calibrate, epsilon_of, event_of
from hdpfl_flower.privacy.adaptive_clipping import (
    enough_bit_noise,
    joint_multiplier,
    next_clip_norm,
    share_within,
    update_multiplier,
)

NORMS = np.random.default_rng(1).lognormal(0, 0.5, 100)
WIDE = (1e-6, 1e6)


def run(start: float, quantile: float = 0.5, rounds: int = 200) -> float:
    norm = start
    for _ in range(rounds):
        share = share_within(int((norm >= NORMS).sum()), len(NORMS), float(len(NORMS)), 0.0)
        norm = next_clip_norm(norm, share, quantile, 0.2, WIDE)
    return norm


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("start", [0.01, 1.0, 100.0])
def test_the_clip_norm_finds_the_quantile(start: float, quantile: float) -> None:
    assert run(start, quantile) == pytest.approx(np.quantile(NORMS, quantile), rel=0.05)


def test_flowers_own_bit_moves_away_from_it() -> None:
    """Flower 1.42 counts the clipped and keeps the sign: S = 1 goes to 0 or to infinity."""

    def flower(start: float) -> float:
        norm = start
        for _ in range(200):
            clipped = sum(adaptive_clip_inputs_inplace([np.array([x])], norm) for x in NORMS)
            norm *= math.exp(-0.2 * (clipped / len(NORMS) - 0.5))
        return norm

    median = float(np.median(NORMS))
    assert flower(0.9 * median) < 1e-3 * median
    assert flower(1.1 * median) > 1e3 * median
    assert run(0.9 * median) == pytest.approx(run(1.1 * median), rel=0.05)


def test_floor_and_ceiling_hold() -> None:
    assert next_clip_norm(1.0, 1.0, 0.0, 5.0, (0.5, 2.0)) == 0.5
    assert next_clip_norm(1.0, 0.0, 1.0, 5.0, (0.5, 2.0)) == 2.0


def test_a_share_of_noise_alone_stays_a_share() -> None:
    assert share_within(0, 0, 100.0, 0.0) == 0.5  # nobody came: no opinion but the noise's
    assert share_within(0, 0, 1.0, -40.0) == 0.0


def test_one_client_more_moves_the_share_by_half_a_bit() -> None:
    """The sensitivity that is accounted: ½ over a constant, whatever the bit."""
    before = share_within(30, 60, 100.0, 0.0)
    for bit in (0, 1):
        assert abs(share_within(30 + bit, 61, 100.0, 0.0) - before) == pytest.approx(0.5 / 100)


def test_update_and_bit_cost_what_one_gaussian_of_both_costs() -> None:
    """Independent of the formula: the sensitivity vector in units of the noise has length 1/z."""
    z, s = 1.3, 4.0
    length = math.hypot(1 / z, 0.5 / s)
    assert joint_multiplier(z, s) == pytest.approx(1 / length)
    joint = calibrate((Steps(1.0, 1),), 1.0, 1e-5)
    again = joint_multiplier(update_multiplier(joint, s), s)
    assert joint <= again < joint * 1.000001
    epsilon = epsilon_of(event_of((Steps(1.0, 1),), again), 1e-5, 1e-4)
    assert 0.99 < epsilon <= 1.0
    unpaid = epsilon_of(event_of((Steps(1.0, 1),), joint_multiplier(joint, s)), 1e-5, 1e-4)
    assert unpaid > 1.0  # the bit left out of the account


def test_the_strictest_level_has_enough_noise_on_the_bits() -> None:
    for joint in (0.5, 3.0, 40.0):
        s = enough_bit_noise(5.0, joint)
        assert update_multiplier(joint, s) <= 1.02 * joint
    with pytest.raises(AccountingError, match="noise on the clipping bits is too little"):
        update_multiplier(10.0, 5.0)
    assert update_multiplier(0.0, 5.0) == 0.0
