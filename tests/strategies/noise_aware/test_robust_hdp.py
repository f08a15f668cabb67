"""Robust-HDP over rounds: state in, state out, as the terms say, and the journal says why."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.inverse_variance import inverse_variance_weights
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from strategies import STRATEGIES
from strategies.core.base import State
from strategies.core.checks import check_outcome
from strategies.noise_aware.oracle import Oracle
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


# Updates of real training, whose noise is known because the sites are simulated.

DATA = os.environ.get("HDPFL_TEST_DATA", "")
MNIST = {
    "dataset": "mnist", "delta": 1e-4, "clip-norm": 3.0, "learning-rate": 0.01,
    "epsilons": "uniform:0.2:10",
}  # fmt: skip
RUNS = {
    "digits": ({}, 13),
    "heart": ({"dataset": "heart", "partition": "natural"}, 4),
    "mnist-iid": ({**MNIST, "partition": "iid"}, 20),
    "mnist-two-labels": ({**MNIST, "partition": "pathological:2"}, 20),
}

RECORDER = "record"


def record(config: dict[str, Any], num_sites: int) -> list[RoundUpdates]:
    """Return each round's updates, with ``noise-std`` disclosed.

    The model follows the oracle's weights, so that no estimator shapes its own test data.
    """
    with _recording() as rounds, tempfile.TemporaryDirectory() as folder:
        run_in_process(
            RunConfig.parse(
                {"evaluation": "none", **config, "strategy": RECORDER, "runs-dir": folder}
            ),
            num_sites,
        )
    return rounds


@contextmanager
def _recording() -> Iterator[list[RoundUpdates]]:
    rounds: list[RoundUpdates] = []

    class Recorder(Oracle):
        name = RECORDER

        def combine(
            self, state: State, updates: RoundUpdates, noise: RandomStream
        ) -> tuple[State, Outcome]:
            rounds.append(updates)
            return super().combine(state, updates, noise)

    STRATEGIES[RECORDER] = Recorder
    try:
        yield rounds
    finally:
        del STRATEGIES[RECORDER]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_recorded_updates_are_weighed_as_well_as_told(name: str) -> None:
    """Two clients' worth of chance, 2/(p·m), over 1.002; Heart has p = 29: 1.1 from 5 pairs."""
    if name != "digits" and not DATA:
        pytest.skip("set HDPFL_TEST_DATA to a folder that holds heart/ and MNIST/raw")
    config, sites = RUNS[name]
    rule = RobustHDP(RunConfig())
    state = rule.initial_state()
    for updates in record({"rounds": 10, "data-dir": DATA, **config}, sites):
        state, outcome = rule.combine(state, updates, RandomStream(bytes(32)))
        true = updates.disclosed["noise-std"] ** 2
        q = float((outcome.weights**2 * true).sum() * (1 / true).sum())
        pairs, p = updates.server_round - 1, updates.updates.shape[1]
        if pairs == 0:
            assert q <= 1.05 or p < 7_000
        elif name == "heart":
            assert q <= 1.1 or pairs < 5
        else:
            assert q <= 1.002 + 2 / (p * pairs)
