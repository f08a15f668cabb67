"""FedHDP's closed forms against draws, and against the Bayes rule they stand for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.oracles.point_estimation import (
    Federation,
    best_ratio,
    opted_out_lambda,
    personal_error,
    published_private_lambda,
    variance,
)

FEDERATION = Federation(clients=12, private=9, alpha2=1.0, tau2=0.5, gamma2=0.3)
DRAWS = 20_000
ALARM = 6.0
"""Standard errors that a mean may lie off: two in 10⁹ tests fail by chance."""


def bound(predicted: float) -> float:
    """The variance of a mean square of DRAWS normals is 2σ⁴/DRAWS."""
    return ALARM * math.sqrt(2 / DRAWS) * predicted


def draw(federation: Federation, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw the problem DRAWS times with φ = 0; opted-out clients come first."""
    shape = (DRAWS, federation.clients)
    truth = generator.normal(0, math.sqrt(federation.tau2), shape)
    own = truth + generator.normal(0, math.sqrt(federation.alpha2), shape)
    noise = generator.normal(0, math.sqrt(federation.noise), shape)
    noise[:, : federation.clients - federation.private] = 0
    return {"truth": truth, "own": own, "sent": own + noise, "noise": noise}


def weights(federation: Federation, ratio: float) -> np.ndarray:
    counted = np.full(federation.clients, ratio)
    counted[: federation.clients - federation.private] = 1
    return counted / counted.sum()


@pytest.mark.parametrize("ratio", ["best", 1.0, 0.1])
def test_the_global_estimate_has_the_predicted_variance(ratio: float | str) -> None:
    r = best_ratio(FEDERATION) if ratio == "best" else float(ratio)
    drawn = draw(FEDERATION, np.random.default_rng(1))
    found = float(np.mean((drawn["sent"] @ weights(FEDERATION, r)) ** 2))
    predicted = variance(FEDERATION, r)
    assert abs(found - predicted) < bound(predicted)
    assert abs(found - 1.2 * predicted) > bound(1.2 * predicted)  # the test can tell


def mean_square(estimate: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean((estimate - truth) ** 2))


def personal(own: np.ndarray, shared: np.ndarray, lam: float) -> np.ndarray:
    return (own + lam * shared) / (1 + lam)


def test_the_published_lambda_is_best_where_the_own_update_has_no_noise_and_only_there() -> None:
    """Exact in the variances: the derivative of the mean square error at λ* is 0, or is not."""

    lam = published_private_lambda(FEDERATION)
    step = 1e-4

    def slope(noisy: bool) -> float:
        f, r = FEDERATION, best_ratio(FEDERATION)
        high, low = (
            personal_error(f, r, lam + move, private=True, noisy=noisy) for move in (step, -step)
        )
        return (high - low) / (2 * step)

    assert abs(slope(noisy=False)) < 1e-7
    assert slope(noisy=True) > 1e-4


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("noisy", [True, False])
def test_the_personal_error_is_that_of_draws(private: bool, noisy: bool) -> None:
    """Each of DRAWS problems is a draw of its own; without noise 'noisy' changes nothing."""
    f, r, lam = FEDERATION, best_ratio(FEDERATION), 0.8
    drawn = draw(f, np.random.default_rng(5))
    j, w = (f.clients - 1 if private else 0), weights(FEDERATION, r)
    shared = drawn["sent"] @ w - (0 if noisy else w[j] * drawn["noise"][:, j])
    found = mean_square(personal(drawn["own"][:, j], shared, lam), drawn["truth"][:, j])
    predicted = personal_error(f, r, lam, private=private, noisy=noisy)
    assert abs(found - predicted) < bound(predicted)
    assert abs(found - 1.2 * predicted) > bound(1.2 * predicted)


def test_the_opted_out_lambda_is_that_of_the_bayes_rule() -> None:
    """θ holds its own φ̂ⱼ at full weight, so λ* = α²/τ² needs no more."""
    f = FEDERATION
    drawn = draw(f, np.random.default_rng(3))
    shared = drawn["sent"] @ weights(f, best_ratio(f))
    errors = {
        factor: mean_square(
            personal(drawn["own"][:, 0], shared, factor * opted_out_lambda(f)), drawn["truth"][:, 0]
        )
        for factor in (0.5, 1.0, 2.0)
    }
    assert errors[1.0] < min(errors[0.5], errors[2.0])


def test_the_corners() -> None:
    alike = Federation(clients=10, private=4, alpha2=2.0, tau2=0.0, gamma2=0.5)
    g = alike.noise / alike.alpha2
    assert opted_out_lambda(alike) == math.inf
    assert published_private_lambda(alike) == pytest.approx((10 + g * 6) / g)
    everyone = Federation(clients=10, private=10, alpha2=1.0, tau2=0.3, gamma2=0.2)
    assert published_private_lambda(everyone) == pytest.approx(10 / (10 * 0.3 + 2.0))
