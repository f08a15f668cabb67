"""The papers' own noise formulas, against the numbers that were published with them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.paper_noise import ROBUST_HDP_ORDERS, pfa_multiplier, robust_hdp_multiplier

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


def test_dp_accounting_gives_the_same_cost() -> None:
    """Its RDP at whole orders is Opacus': an independent path to the same ε."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    orders = [order for order in ROBUST_HDP_ORDERS if order == int(order)]
    accountant = RdpAccountant(orders)
    event = PoissonSampledDpEvent(16 / N, GaussianDpEvent(z(0.5, 16)))
    accountant.compose(SelfComposedDpEvent(event, ROUNDS * N // 16))
    rdp = np.asarray(accountant._rdp)
    cost = float(np.min(rdp + math.log(1 / DELTA) / (np.asarray(orders) - 1)))
    assert cost == pytest.approx(0.5, rel=0.002)  # z is rounded to two decimals


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


@pytest.mark.parametrize("bad", [(0, DELTA, 0.1, 1), (1, 1, 0.1, 1), (1, DELTA, 0, 1),
                                 (1, DELTA, 0.1, 0), (math.nan, DELTA, 0.1, 1)])  # fmt: skip
def test_what_is_out_of_range_is_refused(bad: tuple[float, float, float, float]) -> None:
    for formula in (robust_hdp_multiplier, pfa_multiplier):
        with pytest.raises(AccountingError):
            formula(*bad)
