"""Robust-HDP with drift: its formula from the coordinates, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.averaging.fedavg import FedAvg
from strategies.core.base import HDPStrategy, State
from strategies.noise_aware.oracle import inverse_variance_weights
from strategies.noise_aware.robust_hdp import RobustHDP
from strategies.noise_aware.robust_hdp_drift import RobustHDPDrift, RobustHDPDriftState

H = 40
D = 4_000
NOISE = np.array([0.3, 0.5, 0.5, 0.7, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0])


def federation(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What all sites want, (d,), and how each differs, (n, d): mixes of three directions.

    The mixes sum to zero, as sites that share out the labels between them do.
    """
    generator = np.random.default_rng(seed)
    mixes = generator.standard_normal((len(NOISE), 3))
    apart = (mixes - mixes.mean(axis=0)) @ generator.standard_normal((3, D))
    return generator.standard_normal(D), apart


def drawn(server_round: int, skew: float, seed: int = 0) -> np.ndarray:
    """The updates of a round, float32, (n, d)."""
    wanted, apart = federation(seed)
    noise = np.random.default_rng([seed, server_round]).standard_normal(apart.shape)
    rows: np.ndarray = wanted + skew * apart + NOISE[:, None] * noise
    return rows.astype(np.float32)


def combine(
    rule: HDPStrategy, state: State, rows: np.ndarray, server_round: int = 1
) -> tuple[State, Outcome]:
    updates = RoundUpdates(server_round, tuple(map(str, range(len(rows)))), rows)
    return rule.combine(state, updates, RandomStream(bytes(32)))


def drift_rule() -> RobustHDPDrift:
    return RobustHDPDrift(RunConfig.parse({"strategy": "robust-hdp-drift", "rounds": H}))


def cochran(rows: np.ndarray, variances: np.ndarray) -> float:
    """τ̂² of DerSimonian and Laird, from every coordinate's Q."""
    rows, a = rows.astype(np.float64), 1 / variances
    q = float((a[:, None] * (rows - a @ rows / a.sum()) ** 2).sum(axis=0).mean())
    return (q - (len(a) - 1)) / float(a.sum() - (a**2).sum() / a.sum())


def check_weights(outcome: Outcome, drift: float, rounds: int) -> None:
    """Both sides sum squares in float64: 1e-9 is far above their rounding."""
    variances = np.square(outcome.gauges["noise_std"])
    expected = inverse_variance_weights(variances + rounds * drift)
    np.testing.assert_allclose(outcome.weights, expected, rtol=1e-9)


def test_weights_are_those_of_noise_and_drift_over_the_rounds() -> None:
    rule, plain = drift_rule(), RobustHDP(RunConfig.parse({"rounds": H}))
    state, plain_state, found = rule.initial_state(), plain.initial_state(), []
    for server_round in range(1, 4):
        rows = drawn(server_round, 0.3)
        state, outcome = combine(rule, state, rows, server_round)
        plain_state, by_noise = combine(plain, plain_state, rows, server_round)
        noise_std = np.asarray(outcome.gauges["noise_std"])
        np.testing.assert_array_equal(noise_std, by_noise.gauges["noise_std"])
        found.append(cochran(rows, noise_std**2))
        drift = float(np.mean(found))
        check_weights(outcome, drift, H)
        assert outcome.gauges["drift_std"] == pytest.approx(np.sqrt(drift), rel=1e-9)
        for wrong in ((2 / 3) ** 2, 1.5**2):
            with pytest.raises(AssertionError):
                check_weights(outcome, wrong * drift, H)
    with pytest.raises(AssertionError):
        check_weights(outcome, drift, 1)


def test_a_round_below_zero_counts_as_it_is_and_the_mean_is_cut_at_zero() -> None:
    rule = drift_rule()
    low = RobustHDPDriftState(drift_sum=-1e3, drift_rounds=1)
    state, outcome = combine(rule, low, drawn(1, 0.3))
    assert state.drift_sum == pytest.approx(-1e3, rel=0.01)
    assert state.drift_rounds == 2
    assert outcome.gauges["drift_std"] == 0
    check_weights(outcome, 0.0, H)
    assert low.drift_sum == -1e3  # not written to


def error_over_rounds(rule: HDPStrategy, skew: float, seed: int = 0) -> float:
    """‖Σ over H rounds of (aggregate − what all sites want)‖, per coordinate."""
    state, total, wanted = rule.initial_state(), np.zeros(D), federation(seed)[0]
    for server_round in range(1, H + 1):
        state, outcome = combine(rule, state, drawn(server_round, skew, seed), server_round)
        total += outcome.update - wanted
    return float(np.sqrt(np.mean(total**2)))


@pytest.mark.parametrize("seed", range(3))
def test_under_skew_it_beats_both_noise_alone_and_uniform_weights(seed: int) -> None:
    """Noise alone trusts a few quiet sites, whose skew adds up over the rounds."""
    uniform = error_over_rounds(FedAvg(RunConfig()), 0.4, seed)
    by_noise = error_over_rounds(RobustHDP(RunConfig()), 0.4, seed)
    assert uniform == pytest.approx(np.sqrt(H * float((NOISE**2).sum())) / len(NOISE), rel=0.05)
    assert by_noise > uniform
    assert error_over_rounds(drift_rule(), 0.4, seed) < uniform


def test_without_skew_it_costs_little() -> None:
    """τ̂² is nearly 0: no more than 5 % above the error of the best weights."""
    best = np.sqrt(H / float((1 / NOISE**2).sum()))
    assert error_over_rounds(drift_rule(), 0.0) < 1.05 * best


def test_an_update_of_zeros_gets_no_weight_and_alone_changes_nothing() -> None:
    rows = drawn(1, 0.3)
    rows[0] = 0
    rule = drift_rule()
    _, outcome = combine(rule, rule.initial_state(), rows)
    assert outcome.weights[0] == 0
    variances = np.square(np.asarray(outcome.gauges["noise_std"])[1:])
    expected = inverse_variance_weights(variances + H * cochran(rows[1:], variances))
    np.testing.assert_allclose(outcome.weights[1:], expected, rtol=1e-9)
    state, outcome = combine(rule, rule.initial_state(), np.zeros((3, 9), np.float32))
    assert state.drift_rounds == 0
    assert not outcome.update.any()


STEPS = np.array([19.0, 19.0, 38.0, 38.0, 75.0, 75.0, 75.0, 75.0, 150.0, 150.0, 150.0, 150.0])


def test_sites_of_unlike_steps_are_compared_step_by_step() -> None:
    """Σ wu is κ·Σ pv with v = u/k, p ∝ 1/(σ²/k² + Hτ²), κ the harmonic mean of k under p."""
    rows = (drawn(1, 0.3) * STEPS[:, None] / 50).astype(np.float32)
    told = {"declared-records": 16 * STEPS, "batch-size": np.full(len(STEPS), 16.0)}
    updates = RoundUpdates(1, tuple(map(str, range(len(rows)))), rows, told)
    rule = drift_rule()
    state, outcome = rule.combine(rule.initial_state(), updates, RandomStream(bytes(32)))
    of_steps = np.square(np.asarray(outcome.gauges["noise_std"])) / STEPS**2
    drift = cochran(rows / STEPS[:, None], of_steps)
    assert state.drift_sum == pytest.approx(drift, rel=1e-6)
    shares = inverse_variance_weights(of_steps + H * drift)
    weights = shares / STEPS / (shares / STEPS).sum()
    np.testing.assert_allclose(outcome.weights, weights, rtol=1e-6)
    moved = STEPS.mean() * (shares @ (rows / STEPS[:, None]).astype(np.float64))
    np.testing.assert_allclose(outcome.update, moved, rtol=1e-4, atol=1e-5)
    wrong = inverse_variance_weights(np.square(np.asarray(outcome.gauges["noise_std"])) + H * drift)
    assert not np.allclose(outcome.weights, wrong, rtol=0.1)


def test_unlike_steps_alone_are_no_drift() -> None:
    """All want the same, a step; taken as they are, the updates would seem to differ."""
    generator = np.random.default_rng(5)
    rows = STEPS[:, None] / 50 * generator.standard_normal(D)
    noisy = (rows + 0.1 * NOISE[:, None] * generator.standard_normal(rows.shape)).astype(np.float32)
    names = tuple(map(str, range(len(rows))))
    told = {"declared-records": 16 * STEPS, "batch-size": np.full(len(STEPS), 16.0)}
    found = {}
    for name, facts in (("told", told), ("not told", {})):
        rule = drift_rule()
        updates = RoundUpdates(1, names, noisy, facts)
        _, outcome = rule.combine(rule.initial_state(), updates, RandomStream(bytes(32)))
        found[name] = float(outcome.gauges["drift_std"])
    assert found["told"] < 0.001
    assert found["not told"] > 0.1
