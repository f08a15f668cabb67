"""Clusters of real first updates: MNIST turned or relabelled, logistic regression."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.clustering.clusters import cluster_updates
from hdpfl_flower.clustering.noise_mixture import cluster_by_noise
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.accounting import calibrate
from hdpfl_tools.simulation.sites import simulated_records
from studies.r_dpcfl.two_stages import two_stage_steps
from tests.hdpfl_flower.clustering.clustered import finds_all, finds_minority

REAL = os.environ.get("HDPFL_TEST_DATA", "")
N, CLIP, RATE = 2850, 3.0, 0.01
EPSILONS = (0.5, 1.0, 3.0, 10.0)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(REAL, "MNIST/raw").is_dir(), reason="set HDPFL_TEST_DATA"),
]


def first_update(
    records: Records, noise_multiplier: float, generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """One full-batch DP-SGD step of logistic regression from zero, in closed form.

    At zero every class has probability 1/10, and record (x, y) has the gradient (p − e_y) ⊗ (x, 1).
    """
    inputs = np.hstack([records.features[:N].reshape(N, -1), np.ones((N, 1), np.float32)])
    errors = 0.1 - np.eye(10)[records.targets[:N]]
    norms = np.linalg.norm(errors, axis=1) * np.linalg.norm(inputs, axis=1)
    total = (errors * np.minimum(1, CLIP / norms)[:, None]).T @ inputs
    noise = noise_multiplier * CLIP * generator.standard_normal(total.shape)
    return (-RATE / N * (total + noise)).ravel().astype(np.float32)


@pytest.mark.parametrize("kind", ["rotation", "label-shift"])
def test_unequal_budgets_hide_the_minority_from_the_papers_map_alone(kind: str) -> None:
    multipliers = [calibrate(two_stage_steps(N, 32, N, 200), e, 1e-4) for e in EPSILONS]
    for seed in (1, 2, 3, 4):
        terms = RunConfig().updated(
            dataset="mnist", data_dir=REAL, groups=f"{kind}:3:6:6:6", partition="iid", seed=seed
        )
        generator = np.random.default_rng(seed)
        drawn = generator.permutation(np.resize(multipliers, 21))
        updates = np.stack(
            [
                first_update(simulated_records(terms, site, 21)[0], drawn[site], generator)
                for site in range(21)
            ]
        )
        theirs, ours = cluster_updates(updates), cluster_by_noise(updates)
        assert finds_all(ours.assignment)
        assert ours.separated
        assert not finds_minority(theirs.assignment)
        assert not theirs.separated
