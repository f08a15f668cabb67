"""The two denoising steps against their formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from strategies import make_strategy
from strategies.contract import run_contract
from strategies.noise_aware.mmse import MMSEState
from studies.denoise.steps import DECAY, DenoisedMMSE, PastDirections

NAMES = ("studies.denoise.steps:Preconditioned", "studies.denoise.steps:Filtered")


def step_of(name: str) -> DenoisedMMSE:
    found = make_strategy(RunConfig.parse({"strategy": name}))
    assert isinstance(found, DenoisedMMSE)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_contract_of_strategies(name: str) -> None:
    assert [(check, wrong) for check, wrong in run_contract(name) if wrong] == []


def test_the_preconditioner_is_the_inverse_of_the_regularised_fisher_matrix() -> None:
    generator, step = np.random.default_rng(1), step_of(NAMES[0])
    state, kept = PastDirections(MMSEState()), np.zeros(6)
    for server_round in (1, 2, 3):
        delta, rho = generator.normal(size=6), 0.5 + server_round
        state = replace(state, rounds=server_round)
        state, found = step.filtered(state, delta, rho)
        kept = DECAY * kept + (1 - DECAY) * delta
        mean = kept / (1 - DECAY**server_round)
        matrix = np.outer(mean, mean) + rho * np.eye(6)
        assert found == pytest.approx(rho * np.linalg.solve(matrix, delta))


def test_the_filter_averages_noise_and_follows_a_signal() -> None:
    generator, step, size = np.random.default_rng(2), step_of(NAMES[1]), 4_000
    signal = np.full(size, 0.5)
    state, error = PastDirections(MMSEState()), 0.0
    for _ in range(8):
        noisy = signal + generator.normal(size=size)
        state, found = step.filtered(state, noisy, float(size))
        error = float(np.mean((found - signal) ** 2))
    assert error < 0.3
    assert state.energy < 0.5 * size
    # Without noise, and after a jump that noise does not explain, it is the aggregate.
    _, exact = step.filtered(state, -signal, 0.0)
    assert exact == pytest.approx(-signal)
    _, jumped = step.filtered(state, 40 * signal, float(size))
    assert jumped == pytest.approx(40 * signal, rel=0.05)
