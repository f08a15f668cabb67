"""Anderson acceleration at the server: its step, its gate, its journal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.server_step.anderson import Anderson
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
