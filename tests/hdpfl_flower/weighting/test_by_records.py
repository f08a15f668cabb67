"""Weights that differ by class row: their sum, their means, and what guards do with them."""

from dataclasses import replace

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.updates import Outcome, RoundUpdates, RowWeights
from hdpfl_flower.weighting.by_records import by_rows, part_of, weighted_rows
from strategies.core.checks import check_outcome
from strategies.guards.cap import Cap

HEAD = Head(start=4, classes=3, inputs=5)
SIZE = 4 + 3 * 6
GENERATOR = np.random.default_rng(5)
UPDATES = GENERATOR.standard_normal((6, SIZE)).astype(np.float32)
ROUND = RoundUpdates(1, tuple("abcdef"), UPDATES, head=HEAD)


def weights_of(shares):
    return RowWeights(HEAD, shares, np.array([1.0, 2.0, 0.5, 3.0]))


def outcome_of(weights):
    return by_rows(weights, weighted_rows(weights, UPDATES), {})


def uneven():
    shares = GENERATOR.dirichlet(np.ones(6), 4)
    return weights_of(shares)


def test_equal_rows_are_the_weighted_sum_to_the_bit():
    """Of one scale and the same shares everywhere."""
    one = GENERATOR.dirichlet(np.ones(6))
    weights = RowWeights(HEAD, np.tile(one, (4, 1)), np.full(4, 2.0))
    assert np.array_equal(weighted_rows(weights, UPDATES), weighted_sum(2 * one, UPDATES))
    outcome = outcome_of(weights)
    np.testing.assert_allclose(outcome.weights, one, rtol=1e-14)
    assert outcome.scale == pytest.approx(2)


def test_each_block_has_its_own_weights():
    """The body, the weights into a class, and its bias; the means count coordinates."""
    outcome = outcome_of(uneven())
    weights = outcome.row_weights
    factors = weights.scales[:, None] * weights.shares
    for block, columns in {3: range(4), 0: (4, 8, 19), 2: (14, 18, 21)}.items():
        for column in columns:
            expected = factors[block] @ UPDATES[:, column]
            assert outcome.update[column] == pytest.approx(expected, rel=1e-5)
    mean = (4 * factors[3] + 6 * factors[:3].sum(axis=0)) / SIZE
    np.testing.assert_allclose(outcome.scale * outcome.weights, mean, rtol=1e-12)
    check_outcome(outcome, ROUND)


def test_the_parts_of_the_sites_add_up_to_the_update():
    """What a guard takes out of the model is what a site put in."""
    plain = Outcome(weighted_sum(np.full(6, 1 / 3), UPDATES), np.full(6, 1 / 6), scale=2.0)
    for outcome in (outcome_of(uneven()), plain):
        parts = [part_of(outcome, i, UPDATES[i]) for i in range(6)]
        np.testing.assert_allclose(sum(parts), outcome.update, atol=1e-5)


def test_the_cap_holds_in_every_row():
    """A site may not have one class for itself, whatever its mean share."""
    shares = np.full((4, 6), 1 / 6)
    shares[1] = [0.95, 0.01, 0.01, 0.01, 0.01, 0.01]
    guard = Cap(RunConfig.parse({"guard": "cap"}), sums=True)
    bounded = guard.reweigh(outcome_of(weights_of(shares)), ROUND)
    rows = bounded.row_weights
    assert rows is not None and rows.shares.max() == pytest.approx(3 / 6)
    np.testing.assert_array_equal(bounded.update, weighted_rows(rows, UPDATES))
    check_outcome(bounded, ROUND)


@pytest.mark.parametrize(
    "change",
    [
        {"shares": np.full((4, 6), 0.2)},
        {"shares": np.full((3, 6), 1 / 6)},
        {"shares": np.tile([1.5, -0.5, 0, 0, 0, 0], (4, 1))},
        {"scales": np.zeros(4)},
        {"scales": np.full(4, np.nan)},
    ],
)
def test_rows_that_are_not_convex_are_refused(change):
    """A guard would bound and take back something else than what moved the model."""
    outcome = outcome_of(uneven())
    wrong = replace(outcome, row_weights=replace(outcome.row_weights, **change))
    with pytest.raises(StrategyError, match="row weights"):
        check_outcome(wrong, ROUND)
