"""Shrinkage: what is left of a site's own deviation once its noise is taken out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.after_run.personal_model import read_personal_model
from client_app.releases.shrink import shrunk_deviation
from client_app.site.personal_state import PersonalState, load_state
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.networks import flatten
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.simulation.sites import simulated_model_path
from server_app.run.rounds import ready_kernel
from tests.client_app.messages import config_of, simulated_state_path

FALSE_ALARM = 1e-6
"""Chance that a statistical test below fails on right code (its seed is fixed)."""
DIGITS = {"dataset": "digits", "schema": "", "rounds": 3, "local-steps": 2, "model": "mlp:4"}


def state_of(summed: np.ndarray, variance: float, **more: Any) -> PersonalState:
    size = len(summed)
    facts = {"server_round": 4, "rounds": 4, "first_round": 1, **more}
    return PersonalState(
        **facts, summed=summed.astype(np.float32), first=np.zeros(size, np.float32),
        variance=variance,
    )  # fmt: skip


def test_by_hand() -> None:
    """Two tensors; the site took part in 2 of 4 rounds, and the model moved by 2 in each number."""
    summed = np.array([5.0, 1.0, 1.5])
    state = state_of(summed, 2.0, rounds=2)
    own = summed - 0.5 * 2
    found = shrunk_deviation(state, np.full(3, 2, np.float32), [2, 1], 4)
    np.testing.assert_allclose(found, [own[0] * (1 - 4 / 16), own[1] * (1 - 4 / 16), 0], atol=1e-6)
    later = shrunk_deviation(state, np.full(3, 2, np.float32), [2, 1], 8)
    assert later[0] > found[0]  # half of the path is later than the site's rounds


def test_without_noise_all_of_it_is_left_and_without_a_round_none() -> None:
    summed, shared = np.array([1.0, 2.0]), np.zeros(2, np.float32)
    np.testing.assert_array_equal(shrunk_deviation(state_of(summed, 0.0), shared, [2], 4), summed)
    np.testing.assert_array_equal(shrunk_deviation(PersonalState(), shared, [2], 4), [0, 0])


def test_noise_alone_leaves_next_to_nothing_and_a_smaller_variance_much_of_it() -> None:
    size = 4000
    noise = 3 * np.random.default_rng(1).standard_normal(size)
    shared = np.zeros(size, np.float32)
    # ‖S‖²/(d·v) is within 1 ± 4.9·√(2/d) but for a chance of FALSE_ALARM.
    left = np.linalg.norm(shrunk_deviation(state_of(noise, 9.0), shared, [size], 4))
    assert left < 4.9 * np.sqrt(2 / size) * np.linalg.norm(noise) * 1.1
    wrong = np.linalg.norm(shrunk_deviation(state_of(noise, 9.0 / 2), shared, [size], 4))
    assert wrong > 0.4 * np.linalg.norm(noise)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"strategy": "robust-hdp"},
        {"strategy": "pfa-plus"},
        {"strategy": "fedper"},
        {"strategy": "fedavg", "after.tuning.steps": 2},
    ],
    ids=str,
)
def test_a_run_adds_it_to_each_sites_model(tmp_path: Path, more: dict[str, Any]) -> None:
    config = config_of(**{
        **DIGITS, "epsilons": "inf", "partition": "pathological:3", "runs-dir": str(tmp_path),
        "after.shrink.scale": 0.5, **more,
    })  # fmt: skip
    result = run_in_process(config, 2)
    shared = flatten(result.arrays)
    for site in range(2):
        state = load_state(simulated_state_path(config, site))
        model = read_personal_model(simulated_model_path(config, site))
        assert model is not None
        assert state.variance == 0
        assert state.summed is not None and state.first is not None
        # The plain sum of the site's updates less the global path, in what is sent.
        expected = shared + 0.5 * (state.summed - state.rounds / 3 * (shared - state.first))
        if "after.tuning.steps" not in more:
            head = flatten(model.arrays)[: len(shared)]
            np.testing.assert_allclose(head, expected, atol=1e-5)
        assert np.abs(flatten(model.arrays)[: len(shared)] - shared).max() > 0


@pytest.mark.usefixtures("guessed_noise")
@pytest.mark.slow
def test_the_noise_is_that_of_the_updates_that_were_sent(tmp_path: Path) -> None:
    """Batches of about one record: all but 3 % of the sum is noise, of the state's variance.

    That is at most 6 records, each of length C, beside 6 steps of noise in 1,210 numbers.
    """
    config = config_of(**{
        **DIGITS, "strategy": "fedavg", "epsilons": "2", "runs-dir": str(tmp_path),
        "after.shrink.scale": 0.5, "batch-sizes": "1", "clip-norm": 1.0, "model": "mlp:16",
    })  # fmt: skip
    run_in_process(config, 2)
    state = load_state(simulated_state_path(config, 0))
    assert state.summed is not None
    energy = float(state.summed.astype(np.float64) @ state.summed.astype(np.float64))
    ratio = energy / (state.summed.size * state.variance)
    slack = 4.9 * np.sqrt(2 / state.summed.size)
    assert abs(ratio - 1) < slack + 0.05
    assert slack + 0.05 < 0.25


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"strategy": "local"}, "needs one model, and 'local'"),
        ({"strategy": "mr-mtl"}, "needs one model, and 'mr-mtl'"),
        ({"strategy": "ppsgd"}, "'work.kind' = 'offset'"),
        ({"strategy": "dp-fedavg", "noise": "server"}, "'after.shrink' needs the noise"),
    ],
)
def test_work_without_global_path_or_noise_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(TermsError, match=words):
        ready_kernel(config_of(**{**DIGITS, "epsilons": "3", "after.shrink.scale": 0.05, **more}))
