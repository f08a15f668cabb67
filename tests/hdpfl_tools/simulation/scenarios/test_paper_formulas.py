"""The papers' own noise formulas, against the numbers that were published with them."""

from __future__ import annotations

import math

import pytest

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.plan import Plan
from hdpfl_tools.simulation.scenarios.paper_formulas import (
    pfa_multiplier,
    r_dpcfl_multiplier,
    robust_hdp_multiplier,
)

N, ROUNDS, DELTA = 2400, 200, 1e-4


def z(epsilon: float, batch: int) -> float:
    return robust_hdp_multiplier(epsilon, DELTA, batch / N, ROUNDS * N / batch)


@pytest.mark.parametrize(
    ("epsilon", "batch", "expected"),
    [(2.81, 32, 2.78), (0.15, 64, 211.82), (1.12, 32, 6.5), (0.2, 64, 56.34), (0.97, 64, 10.53)],
)
def test_the_noise_of_the_papers_clients(epsilon: float, batch: int, expected: float) -> None:
    """Computed apart from this code, with the authors' orders and conversion."""
    assert z(epsilon, batch) == pytest.approx(expected, abs=0.0101)


def test_the_formula_has_a_floor() -> None:
    with pytest.raises(AccountingError, match="ln\\(1/delta\\)/63"):
        z(0.14, 16)


def test_no_privacy_is_no_noise_and_little_privacy_little() -> None:
    assert robust_hdp_multiplier(math.inf, DELTA, 0.1, 10) == 0
    assert pfa_multiplier(math.inf, DELTA, 0.1, 10) == 0
    assert robust_hdp_multiplier(1e6, DELTA, 0.1, 10) == 0.1


def test_pfas_formula() -> None:
    """z = 10·q·√(T·log₁₀(1/δ))/ε: 10 · (8/1200) · √(8000 · 5) / 0.1."""
    assert pfa_multiplier(0.1, 1e-5, 8 / 1200, 8000) == pytest.approx(133.3333, abs=1e-4)


def two_stages(records: int, batch: int, first: int) -> tuple[tuple[float, float], ...]:
    """R-DPCFL's E = 200 rounds of one epoch, steps not rounded."""
    return (first / records, records / first), (batch / records, 199 * records / batch)


@pytest.mark.parametrize(
    ("epsilon", "batch", "first", "expected", "variance"),
    [
        (5, 16, 16, 0.932, 35.2),
        (5, 16, 6600, 1.249, 9.0e-7),
        (5, 32, 32, 1.165, 6.88),
        (5, 32, 6600, 1.444, 1.21e-6),
        (5, 128, 128, 2.034, 0.328),
        (5, 128, 6600, 2.224, 2.86e-6),
        (10, 32, 32, 0.811, 3.33),
        (10, 32, 6600, 0.903, 4.7e-7),
    ],
)
def test_r_dpcfls_noise_and_the_variance_of_its_first_updates(
    epsilon: float, batch: int, first: int, expected: float, variance: float
) -> None:
    """ResNet-18's 11,181,642 parameters, η 5e-4, c 3; its Lemma 4."""
    found = r_dpcfl_multiplier(epsilon, DELTA, two_stages(6600, batch, first))
    assert found == pytest.approx(expected, abs=6e-4)
    steps = (Steps(first / 6600, math.ceil(6600 / first)), Steps(batch / 6600, 1))
    plan = Plan(epsilon, DELTA, found, first, steps, 0.1, 10)
    assert 11_181_642 * plan.update_noise_std(1, 3, 5e-4) ** 2 == pytest.approx(
        variance,
        rel=1e-2,  # whole steps
    )
