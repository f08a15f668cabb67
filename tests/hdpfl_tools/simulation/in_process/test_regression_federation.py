"""Federated linear regression by real sites and the real rule, against FedHDP's closed forms.

Each site's features are a Hadamard matrix, FᵀF = n·I, so plain SGD on the whole batch ends at the
site's least-squares estimate, and each of the D coordinates is a draw of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import hadamard

from client_app.training.ditto import kept_personal_path, load_personal_model
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import flatten
from hdpfl_flower.privacy.accounting import Steps, calibrate
from server_app.run.rounds import run
from tests.oracles.point_estimation import (
    Federation,
    best_ratio,
    opted_out_lambda,
    personal_error,
    published_private_lambda,
    variance,
)
from tests.server_app.run.test_unit_of_run import Sites

pytestmark = pytest.mark.slow

D = 1024
"""Coordinates, the intercept counted, and records of a site."""
ALARM = 6.0
"""Standard errors that a mean over D coordinates may lie off: two in 10⁹ fail by chance."""
SITES, OPTED_OUT, CLIP_NORM, ROUNDS = 6, 2, 50.0, 2
EPSILON, DELTA = 1000.0, 1e-5  # so little noise that it does not drown what sites differ in
NOISE2 = (2 * CLIP_NORM * calibrate((Steps(1.0, 1),) * ROUNDS, EPSILON, DELTA)) ** 2
BETA2 = 1024.0
PROBLEM = Federation(
    clients=SITES,
    private=SITES - OPTED_OUT,
    alpha2=BETA2 / D,
    tau2=0.5,
    gamma2=NOISE2 / (SITES - OPTED_OUT),
)
SCHEMA = '[label]\ncolumn = "y"\nbounds = [-1e6, 1e6]\n' + "".join(
    f'[[columns]]\nname = "x{i}"\ntype = "number"\nbounds = [-1, 1]\n' for i in range(D - 1)
)
PROFILE = f"""
approval = "standing"
disclose = ["epsilon"]
[budget]
epsilon = {{epsilon}}
delta = {DELTA}
[run]
epsilon = {{epsilon}}
delta = {DELTA}
[training]
batch-size = {D}
declared-records = {D}
device = "cpu"
torch-threads = 1
[data]
format = "npz"
path = "records.npz"
[ledger]
path = "ledger.sqlite"
[state]
path = "state"
[policy]
client-noise = true
"""


@dataclass(frozen=True)
class Found:
    """What a run left: the global model, and each site's truth and personal model, rows."""

    shared: np.ndarray
    truths: np.ndarray
    personal: np.ndarray


def make_site(folder: Path, truth: np.ndarray, epsilon: float, seed: int) -> None:
    """Write a site whose targets are those of ``truth`` (intercept last) with noise β²."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    matrix = generator.permutation(hadamard(D)).astype(np.float64)
    features = np.hstack([matrix[:, 1:], matrix[:, :1]])  # column 0 is all ones: the intercept
    targets = features @ truth + generator.normal(0, math.sqrt(BETA2), D)
    np.savez(folder / "records.npz", x=features[:, :-1].astype(np.float32), y=targets)
    (folder / "profile.toml").write_text(PROFILE.format(epsilon=epsilon))
    (folder / "profile.toml").chmod(0o600)
    Ledger.create(folder / "ledger.sqlite", epsilon, DELTA).close()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Two rounds: the second one's personal models are pulled to the first one's global model."""
    folder = tmp_path_factory.mktemp("regression")
    truths = np.random.default_rng(3).normal(0, math.sqrt(PROBLEM.tau2), (SITES, D))
    for index, truth in enumerate(truths):
        epsilon = math.inf if index < OPTED_OUT else EPSILON
        make_site(folder / str(index), truth, epsilon, seed=index)
    pulls = published_private_lambda(PROBLEM), opted_out_lambda(PROBLEM)
    terms = RunConfig.parse({
        "strategy": "fedhdp", "noise": "client", "fedhdp.level-ratio": repr(best_ratio(PROBLEM)),
        "dataset": "site", "schema": SCHEMA, "evaluation": "none", "rounds": ROUNDS,
        "local-steps": 20, "learning-rate": 0.5, "clip-norm": CLIP_NORM, "run-id": "regression",
        "second": {"kind": "kept", "pull": pulls[0], "opted-out": pulls[1]},
        "runs-dir": str(folder / "runs"),
    })  # fmt: skip
    grid = Sites(folder, SITES)
    try:
        result = run(grid, terms)
    finally:
        grid.close()
    assert [event["rejected"] for event in result.rounds] == [{}] * ROUNDS
    sent = result.sent or terms
    paths = [kept_personal_path(folder / str(index) / "state", sent) for index in range(SITES)]
    models = [load_personal_model(path, D) for path in paths]
    assert all(model is not None for model in models)
    return Found(flatten(result.arrays).astype(np.float64), truths, np.array(models, np.float64))


def check(squares: np.ndarray, predicted: float) -> None:
    """Hold the mean of ``squares``, a coordinate each, against its prediction and wrong ones.

    The noise of these sites is fresh in every test; half and twice the prediction lie 11 standard
    errors off and more, so one healthy build in 10⁶ or fewer fails.
    """
    mean, error = float(squares.mean()), float(squares.std()) / math.sqrt(len(squares))
    assert abs(mean - predicted) < ALARM * error
    for wrong in (0.5, 2.0):
        assert abs(mean - wrong * predicted) > ALARM * error


def test_the_global_model_has_the_predicted_variance(found: Found) -> None:
    check(found.shared**2, variance(PROBLEM, best_ratio(PROBLEM)))


@pytest.mark.parametrize("private", [True, False])
def test_personal_models_have_the_predicted_error(found: Found, private: bool) -> None:
    """θ holds the site's own noise, for it comes from the server."""
    rows = slice(OPTED_OUT, None) if private else slice(OPTED_OUT)
    pull = (published_private_lambda if private else opted_out_lambda)(PROBLEM)
    predicted = personal_error(PROBLEM, best_ratio(PROBLEM), pull, private=private)
    squares = (found.personal[rows] - found.truths[rows]) ** 2
    check(squares.mean(0), predicted)
    assert float(squares.mean()) < PROBLEM.alpha2  # what a site has by itself
