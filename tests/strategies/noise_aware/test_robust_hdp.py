"""Robust-HDP over rounds: state in, state out, as the terms say, and the journal says why."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.inverse_variance import inverse_variance_weights
from strategies.core.base import State
from strategies.core.checks import check_outcome
from strategies.noise_aware.robust_hdp import RobustHDP

N, D = 8, 4_000
GENERATOR = np.random.default_rng(1)
VARIANCES = 10 ** GENERATOR.uniform(-2, 0, N)
SIGNAL = GENERATOR.standard_normal((N, D))
"""A dense private signal each: no single round tells it from noise."""


def rounds(last: int, seed: int = 2) -> list[npt.NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    scale = np.sqrt(VARIANCES)[:, None]
    return [
        (SIGNAL + scale * generator.standard_normal((N, D))).astype(np.float32) for _ in range(last)
    ]


def run(
    updates: list[npt.NDArray[np.float32]], present: list[list[int]] | None = None, **terms: object
) -> list[tuple[State, Outcome]]:
    rule = RobustHDP(
        RunConfig.parse({f"robust-hdp.{key.replace('_', '-')}": v for key, v in terms.items()})
    )
    state, results = rule.initial_state(), []
    for number, rows in enumerate(updates, start=1):
        these = present[number - 1] if present else list(range(N))
        given = RoundUpdates(number, tuple(str(i) for i in these), rows[these])
        state, outcome = rule.combine(state, given, RandomStream(bytes(32)))
        check_outcome(outcome, given)
        results.append((state, outcome))
    return results


def excess(weights: npt.NDArray[np.float64]) -> float:
    return float((weights**2 * VARIANCES).sum() * (1 / VARIANCES).sum())


def test_private_signals_spoil_the_first_round_and_no_other() -> None:
    """q − 1 is the squared relative error of a variance, (3m − 1)/m²/d; ten times that."""
    results = run(rounds(6))
    assert excess(results[0][1].weights) > 1.5
    for pairs, (_, outcome) in enumerate(results[1:], start=1):
        assert excess(outcome.weights) < 1 + 10 * (3 * pairs - 1) / pairs**2 / D


def test_with_partial_participation_every_site_has_its_own_history() -> None:
    present = [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [3, 4, 5, 6, 7], [0, 1, 5, 6, 7]]
    state, outcome = run(rounds(5), present)[-1]
    np.testing.assert_array_equal(outcome.gauges["noise_pairs"], [2, 2, 2, 2, 2])
    true = inverse_variance_weights(VARIANCES[present[-1]])
    # 5 σ of a variance over one pair: √(2/d) = 2 %
    np.testing.assert_allclose(outcome.weights, true, rtol=0.12)
    assert state.uploads.clients.keys() == {str(i) for i in range(N)}


def test_two_sites_are_marked_as_not_identified_until_they_come_again() -> None:
    results = run(rounds(2), [[0, 1], [0, 1]])
    np.testing.assert_array_equal(results[0][1].gauges["noise_identified"], [0, 0])
    np.testing.assert_array_equal(results[1][1].gauges["noise_identified"], [1, 1])


def test_a_site_that_repeats_itself_gains_nothing() -> None:
    updates = rounds(4)
    for rows in updates[1:]:
        rows[0] = updates[0][0]
    results = run(updates)
    honest = run(rounds(4))
    assert results[-1][1].weights[0] <= 2 * honest[0][1].weights[0]
