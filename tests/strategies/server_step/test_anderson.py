"""Anderson acceleration at the server: its step, its gate, its journal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies import make_strategy
from strategies.server_step.anderson import LARGEST, Anderson
from strategies.server_step.step import ServerStep

SITES = tuple("abcdefgh")
N, D = len(SITES), 400
GENERATOR = np.random.default_rng(2)
RATES = np.geomspace(0.02, 0.5, D)
GOALS = GENERATOR.standard_normal((N, D))


def step_of(kind: type[ServerStep] = Anderson, **keys: Any) -> ServerStep:
    return kind(RunConfig.parse({"strategy": "fedavg", "rounds": 99, **keys}))


def updates_of(model: np.ndarray, server_round: int, noise: float = 0.0) -> RoundUpdates:
    """Return what the sites send of a map that draws each to a goal of its own."""
    generator = np.random.default_rng([7, server_round])
    rows = RATES * (GOALS - model) + noise * generator.standard_normal((N, D))
    return RoundUpdates(server_round, SITES, rows.astype(np.float32))


def mean_of(updates: RoundUpdates) -> Outcome:
    n = len(updates.sites)
    weights = np.full(n, 1 / n)
    return Outcome(weighted_sum(weights, updates.updates), weights)


def run(step: ServerStep, rounds: int, noise: float = 0.0) -> tuple[list[np.ndarray], list[Any]]:
    """Return the models, rounds + 1 of them, and the outcomes."""
    models, outcomes, state = [np.zeros(D)], [], step.initial_state()
    for server_round in range(1, rounds + 1):
        updates = updates_of(models[-1], server_round, noise)
        state, moved = step.move(state, mean_of(updates), updates)
        outcomes.append(moved)
        models.append(models[-1] + moved.update)
    return models, outcomes


def distance(model: np.ndarray) -> float:
    return float(np.linalg.norm(model - GOALS.mean(axis=0)))


# --- the step -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_step_is_the_mixing_of_the_last_models(rate: float) -> None:
    keys = {"anderson.memory": 2, "anderson.gate": "none", "server-learning-rate": rate}
    models, outcomes = run(step_of(**keys), 6)
    for t in range(1, 6):
        known = models[max(t - 2, 0) : t + 1]
        residuals = np.array([RATES * (GOALS - x).mean(axis=0) for x in known])
        gamma = np.linalg.lstsq(np.diff(residuals, axis=0).T, residuals[-1], rcond=None)[0]
        images = np.array([x + rate * r for x, r in zip(known, residuals, strict=True)])
        expected = images[-1] - gamma @ np.diff(images, axis=0)
        np.testing.assert_allclose(models[t + 1], expected, atol=2e-3)
        assert outcomes[t].gauges["anderson_gate"] == 1


def test_without_noise_a_fifth_of_the_rounds_come_as_close() -> None:
    plain, _ = run(step_of(ServerStep), 100)
    mixed, outcomes = run(step_of(**{"anderson.memory": 5}), 20)
    assert distance(mixed[-1]) < distance(plain[-1])
    assert sum(o.gauges["anderson_gate"] for o in outcomes) >= 10


def test_a_schedule_does_not_pass_for_convergence() -> None:
    """Of a constant Δ all weights are as good: the least of them are equal, whatever the rates."""
    step = step_of(**{"server-schedule": "inverse", "anderson.gate": "none"})
    state, delta = step.initial_state(), np.ones(D, np.float32)
    for server_round in range(1, 5):
        updates = RoundUpdates(server_round, SITES, np.tile(delta, (N, 1)))
        state, moved = step.move(state, mean_of(updates), updates)
        assert moved.gauges["anderson_weight"] == pytest.approx(1)


def test_the_state_holds_the_memory_and_no_more() -> None:
    step = step_of(**{"anderson.memory": 2})
    state: Any = step.initial_state()
    for server_round in range(1, 6):
        updates = updates_of(np.zeros(D), server_round, 0.1)
        before = state
        state, moved = step.move(state, mean_of(updates), updates)
        again, repeated = step.move(before, mean_of(updates), updates)
        np.testing.assert_array_equal(moved.update, repeated.update)
        np.testing.assert_array_equal(state.moves, again.moves)
        assert len(state.residuals) == len(state.moves) == len(state.noise) == min(server_round, 2)


def test_a_reported_model_stays_as_far_ahead() -> None:
    step = step_of(**{"anderson.gate": "none", "server-learning-rate": 0.5})
    state = step.initial_state()
    for server_round in (1, 2, 3):
        updates = updates_of(np.full(D, 1.0 / server_round), server_round)
        outcome = mean_of(updates)
        state, moved = step.move(
            state, replace(outcome, reported=outcome.update + np.float32(0.25)), updates
        )
        assert moved.reported is not None
        np.testing.assert_allclose(moved.reported - moved.update, 0.125, atol=1e-4)


def test_a_step_beyond_float32_is_the_plain_one() -> None:
    """Residuals that differ in the last digits are extrapolated by millions."""
    step = step_of(**{"anderson.gate": "none"})
    state = step.initial_state()
    for server_round in (1, 2):
        updates = RoundUpdates(
            server_round, SITES, np.full((N, 1), 1e36 * (1 - 1e-4 * server_round), np.float32)
        )
        state, moved = step.move(state, mean_of(updates), updates)
    assert moved.gauges["anderson_gate"] == 0
    np.testing.assert_array_equal(moved.update, mean_of(updates).update)


# --- the gate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_under_noise_the_step_is_the_plain_one_to_the_bit(rate: float) -> None:
    keys = {"server-learning-rate": rate}
    plain, expected = run(step_of(ServerStep, **keys), 40, noise=30.0)
    models, outcomes = run(step_of(**keys), 40, noise=30.0)
    assert sum(o.gauges["anderson_gate"] for o in outcomes) == 0
    np.testing.assert_array_equal(models, plain)
    for found, one in zip(outcomes, expected, strict=True):
        assert found.gauges["anderson_weight"] == 1
        assert found.gauges.get("server_rate") == one.gauges.get("server_rate")


def test_a_constant_signal_is_not_extrapolated_by_chance() -> None:
    """Noise of a hundredth of Δ, which does not change: no combination is less but by chance."""
    step, generator = step_of(), np.random.default_rng(12)
    state = step.initial_state()
    for server_round in range(1, 40):
        rows = 1 + 0.01 * np.sqrt(N) * generator.standard_normal((N, D))
        updates = RoundUpdates(server_round, SITES, rows.astype(np.float32))
        state, moved = step.move(state, mean_of(updates), updates)
        assert moved.gauges["anderson_gate"] == 0


def test_under_noise_mixing_without_the_gate_stays_behind() -> None:
    """What the gate is for: the distance to the fixed point, as a share of plain steps'."""
    plain, _ = run(step_of(ServerStep), 60, noise=0.03)

    def share(**keys: Any) -> float:
        models, _ = run(step_of(**keys), 60, noise=0.03)
        return float(np.mean([distance(models[t]) / distance(plain[t]) for t in range(20, 61)]))

    assert share(**{"anderson.gate": "none"}) > 1.2
    assert share() < 1


def test_the_noise_of_the_aggregate_is_estimated_where_the_strategy_does_not() -> None:
    step = step_of()
    _, outcomes = run(step, 12, noise=0.5)
    found = np.mean([o.gauges["anderson_noise"] for o in outcomes[1:]])
    assert found == pytest.approx(D * 0.5**2 / N, rel=0.1)


def test_the_strategys_own_levels_and_scale_are_used() -> None:
    updates = updates_of(np.zeros(D), 1, 1.0)
    levels = np.linspace(0.1, 1, N)
    outcome = replace(mean_of(updates), gauges={"noise_std": levels}, scale=2.0)
    state, moved = step_of().move(step_of().initial_state(), outcome, updates)
    expected = 4 * D * float(np.sum(np.square(levels / N)))
    assert moved.gauges["anderson_noise"] == pytest.approx(expected)
    assert not state.uploads.clients


def test_rounds_of_other_sites_are_forgotten() -> None:
    """Without noise: open from the second round on with the same sites, and never else."""
    step, model, found = step_of(), np.zeros(D), []
    state: Any = step.initial_state()
    halves = [(0, 4)] * 3 + [(4, 8)] * 3 + [(0, 4), (4, 8), (0, 4), (4, 8)]
    for server_round, (first, last) in enumerate(halves, start=1):
        rows = updates_of(model, server_round).updates[first:last]
        updates = RoundUpdates(server_round, SITES[first:last], rows)
        state, moved = step.move(state, mean_of(updates), updates)
        found.append(moved.gauges["anderson_gate"])
        model += moved.update
    assert found == [0, 1, 1, 0, 1, 1, 0, 0, 0, 0]
    assert len(state.residuals) == 1


def test_a_saddle_that_is_left_behind_is_not_returned_to() -> None:
    """Δ grows from round to round: its least combination lies back at the saddle."""
    step, model = step_of(), np.full(D, 1e-3)
    state = step.initial_state()
    for server_round in range(1, 20):
        updates = RoundUpdates(
            server_round, SITES, np.tile(0.2 * RATES * model, (N, 1)).astype(np.float32)
        )
        state, moved = step.move(state, mean_of(updates), updates)
        assert moved.gauges["anderson_gate"] == 0
        model += moved.update


def test_rows_of_one_number_close_it() -> None:
    step, model = step_of(), np.zeros(D)
    state = step.initial_state()
    for server_round in range(1, 5):
        updates = replace(updates_of(model, server_round), projected=np.ones(N, np.bool_))
        state, moved = step.move(state, mean_of(updates), updates)
        assert moved.gauges["anderson_gate"] == 0
        assert "anderson_noise" not in moved.gauges
        model += moved.update


@pytest.mark.parametrize("name", ["fedavg+pfa", "trimmed-mean", "weiavg", "robust-hdp+random"])
def test_of_updates_that_are_no_sum_it_is_closed_under_noise(name: str) -> None:
    strategy = make_strategy(
        RunConfig.parse({"strategy": f"{name}+anderson", "rounds": 40, "public-split": "auto"})
    )
    state, past = strategy.initial_state(), strategy.step.initial_state()
    for server_round in range(1, 13):
        updates = replace(
            updates_of(np.zeros(D), server_round, 10.0),
            disclosed={"epsilon": np.linspace(0.5, 8, N), "declared-records": np.full(N, 9.0)},
        )
        state, outcome = strategy.combine(state, updates, strategy.streams.noise)
        past, moved = strategy.step.move(past, outcome, updates)
        assert moved.gauges["anderson_gate"] == 0


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"anderson.memory": 0}, r"'anderson\.memory'"),
        ({"anderson.memory": LARGEST + 1}, r"'anderson\.memory'"),
        ({"anderson.gate": "open"}, r"'anderson\.gate'"),
    ],
    ids=str,
)
def test_a_wrong_key_is_refused_by_name(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(TermsError, match=words):
        make_strategy(RunConfig.parse({"strategy": "fedavg+anderson", **keys}))
