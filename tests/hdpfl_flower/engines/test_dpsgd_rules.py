"""The numbers around DP-SGD's loop, each by its closed form: shares, granules, fillings, sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from hdpfl_flower.engines import dpsgd
from hdpfl_flower.engines.dpsgd import (
    block_of,
    filled_up,
    granule_of,
    pull_share,
    rehearsal_size,
    settle,
)
from hdpfl_flower.errors import TermsError
from tests.hdpfl_flower.engines.oracle import make_engine, one_thread  # noqa: F401
from tests.hdpfl_flower.engines.updates import RATE, TABLE, plan_of, records_of, start_of, streams

HERE = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("strength", "rate", "share"),
    [(0.0, 0.1, 0.0), (0.5, 0.25, 0.125), (1.5, 0.5, 0.75), (4.0, 0.25, 1.0), (0.25, 4.0, 1.0)],
)
def test_a_steps_share_is_lambda_times_rate(strength: float, rate: float, share: float) -> None:
    assert pull_share((strength, HERE), rate) == share
    assert pull_share(None, rate) == 0.0


@pytest.mark.parametrize(
    ("strength", "rate"),
    [(math.nextafter(4, 5), 0.25), (0.25, math.nextafter(4, 5)), (-1e-300, 0.1), (-1.0, 0.1),
     (6.0, 0.25), (math.nan, 0.1), (math.inf, 0.1), (1.0, math.nan)],
)  # fmt: skip
def test_a_share_below_0_or_above_1_is_refused(strength: float, rate: float) -> None:
    with pytest.raises(TermsError, match="beyond the model"):
        pull_share((strength, HERE), rate)


def test_an_anchor_of_another_size_is_refused_and_one_without_a_pull_not_looked_at() -> None:
    """0 · ∞ is no number: what is not pulled is not touched by the anchor."""
    start = start_of("logreg", TABLE)

    def train(pull: dpsgd.Pull | None) -> np.ndarray:
        engine, records = make_engine("linear", "logreg", TABLE), records_of(TABLE, 20)
        return dpsgd.train(engine, start, records, plan_of(), RATE, streams(), 100, pull=pull)

    free = train(None)
    far = np.full(len(start), np.inf, np.float32)
    np.testing.assert_array_equal(train((0.0, far)), free)
    for size in (len(start) - 1, len(start) + 1, 1):
        for strength in (0.0, 1.0):
            with pytest.raises(TermsError, match="another size"):
                train((strength, np.zeros(size, np.float32)))


def test_a_round_starts_at_the_model_that_came_whatever_the_engine_was_left_at() -> None:
    updates = []
    for left_at in (None, 7.0):
        engine = make_engine("linear", "logreg", TABLE)
        if left_at is not None:
            engine.theta.fill_(left_at)
        start, release = start_of("logreg", TABLE) + 1, streams()
        records = records_of(TABLE, 20)
        updates.append(dpsgd.train(engine, start, records, plan_of(), RATE, release, 100))
        assert release.sampling.position == 7 + plan_of().steps.count * 4 * 20
        np.testing.assert_array_equal(engine.theta.numpy() - start, updates[-1])
    np.testing.assert_array_equal(*updates)
    assert np.abs(updates[0]).max() > 0


@pytest.mark.parametrize(
    ("divisor", "granule"),
    [(0.3, 1), (1, 1), (1.99, 1), (2, 2), (3.99, 2), (4, 4), (5, 4), (8, 4), (16, 4), (63.9, 4),
     (64, 8), (127, 8), (128, 16), (255, 16), (1000, 64), (1024, 128)],
)  # fmt: skip
def test_a_granule_is_a_power_of_two_and_at_least_4(divisor: float, granule: int) -> None:
    assert granule_of(divisor) == granule


class Settling:
    """An engine on a device that says what it was asked for."""

    def __init__(self, device: str) -> None:
        self.theta = torch.zeros(1, device=device)

    def settle(self, *asked: int) -> tuple[int, ...]:
        return asked


def test_an_engine_is_asked_for_the_granule_of_what_memory_holds() -> None:
    engine: Any = Settling("cpu")
    assert settle(engine, 64.0, 1000) == (8, 1000)
    assert settle(engine, 1000.0, 100) == (8, 100)
    assert settle(engine, 1000.0, 3) == (2, 3)


def test_another_device_takes_nearly_each_batch_as_one_block() -> None:
    engine: Any = Settling("meta")
    assert settle(engine, 64.0, 1000) == (80, 1000)
    assert settle(engine, 64.0, 70) == (70, 70)
    assert stats.poisson.sf(block_of(64.0), 64) < 0.025


def test_batches_are_filled_up_with_their_first_row_to_the_next_multiple() -> None:
    rows = np.array([7, 9, 11, 2, 5])
    for count in range(1, 6):
        for granule in (1, 2, 3, 4, 8):
            filled = filled_up(rows[:count], granule)
            size = math.ceil(count / granule) * granule
            assert filled.tolist() == [*rows[:count], *[7] * (size - count)]
            assert filled.dtype == np.int64
    assert filled_up(rows[:0], 4).tolist() == []
    assert filled_up(rows, 5) is rows


L = math.log(1e14)


def test_the_rehearsed_batch_is_bernsteins_bound_with_its_numbers_rounded_up() -> None:
    """P(X ≥ b + t) ≤ exp(−t²/2/(b + t/3)) = 1e-14 of a sum of trials with mean b."""
    terms = math.ceil(L / 3), math.ceil(L**2 / 9), math.ceil(2 * L)
    wrong = []
    for divisor in (*np.linspace(1, 1.999, 60), *range(2, 70), 500, 1e4, 1e6):
        largest = math.ceil(divisor + terms[0] + math.sqrt(terms[1] + terms[2] * divisor))
        over = largest - divisor
        granule = granule_of(divisor)
        rounded = math.ceil(largest / granule) * granule
        bounded = -(over**2) / 2 / (divisor + over / 3) <= -L
        if not bounded or rehearsal_size(divisor, 10**9) != rounded:
            wrong.append(divisor)
    assert wrong == []


def test_no_more_than_memory_holds_is_rehearsed_but_for_the_filling() -> None:
    assert rehearsal_size(64, 10) == 12
    assert rehearsal_size(64, 8) == 8
    assert rehearsal_size(1, 1000) == 26
    assert rehearsal_size(1, 20) == 20
    assert rehearsal_size(1000, 100) == 104


def test_dropout_is_seeded_by_the_release() -> None:
    state = torch.get_rng_state()
    for seed in (0, 5, 2**56 - 1):
        with dpsgd._exact_arithmetic(seed):
            found = torch.rand(3)
        generator = torch.Generator().manual_seed(seed)
        assert torch.equal(found, torch.rand(3, generator=generator))
    assert torch.equal(torch.get_rng_state(), state)
