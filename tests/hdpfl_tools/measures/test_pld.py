"""Privacy losses by arrays, value by value against dp-accounting's own, and the search."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpfl_flower.privacy import accounting
from hdpfl_flower.privacy.accounting import (
    _TOLERANCE,
    Gaussians,
    PureSelections,
    Steps,
    _confirm,
    calibrate,
    epsilon_of,
    event_of,
    interval_for,
)
from hdpfl_tools.measures.pld import GridAccountant, GridGaussianLoss, GridPmf, gaussian

KINDS = (AdjacencyType.REMOVE, AdjacencyType.ADD)
MECHANISMS = [(0.6, 0.01), (1.0, 0.2), (4.0, 0.999), (30.0, 0.05), (2.0, 1.0)]
CASES = [
    ([Steps(0.1, 200)], 2.0, (), 1.0),
    ([Steps(0.001, 20_000)], 0.8, (), 2.0),
    ([Steps(1, 1), Steps(0.05, 100)], 1.5, (Gaussians(20.0, 3),), 3.0),
    ([Steps(0.02, 50)], 1.1, (PureSelections(0.1, 5),), 2.0),
    ([Steps(1, 7)], 9.0, (), 1.0),
]


@pytest.mark.parametrize(("z", "q"), MECHANISMS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_delta_is_the_librarys(z: float, q: float, kind: AdjacencyType) -> None:
    theirs = GaussianPrivacyLoss(z, sampling_prob=q, adjacency_type=kind)
    ours = GridGaussianLoss(z, sampling_prob=q, adjacency_type=kind)
    bounds = theirs.connect_dots_bounds()
    epsilons = np.linspace(bounds.epsilon_lower - 0.1, bounds.epsilon_upper + 0.1, 501)
    # Where no loss is as large or as small the library raises an error, or not, by its rounding.
    epsilons = epsilons[np.abs(np.abs(epsilons) + math.log1p(-q)) > 1e-9] if q < 1 else epsilons
    # log(1 + (e^ε − 1)/q) loses 1/q of the last bits; δ changes by at most φ(0)·z times that.
    rounding = 8 * np.finfo(np.float64).eps * (1 + z / q)
    np.testing.assert_allclose(
        ours.deltas(epsilons), theirs.get_delta_for_epsilon(epsilons), rtol=0, atol=rounding
    )


@pytest.mark.parametrize(("z", "q"), MECHANISMS)
@pytest.mark.parametrize("count", [1, 37])
def test_a_steps_distribution_is_the_librarys(z: float, q: float, count: int) -> None:
    interval = 1e-3 / z
    ours = gaussian(z, q, interval).self_compose(count)
    theirs = from_gaussian_mechanism(
        z, value_discretization_interval=interval, sampling_prob=q
    ).self_compose(count)
    epsilons = np.linspace(0, 3 / z, 25)
    for one, other in zip(_sides(ours), _sides(theirs), strict=True):
        np.testing.assert_allclose(
            one.get_delta_for_epsilon(epsilons), other.get_delta_for_epsilon(epsilons), atol=1e-12
        )
        # The library cuts no tail of 1e-15 where it composes a short distribution once.
        assert one._infinity_mass == pytest.approx(other._infinity_mass, rel=1e-6, abs=1.1e-15)
        assert one._infinity_mass >= (1 - 1e-6) * other._infinity_mass


@pytest.mark.parametrize(("schedule", "z", "beside", "around"), CASES)
def test_epsilon_is_the_librarys(schedule, z, beside, around) -> None:
    event = event_of(schedule, z, beside)
    steps = sum(one.count for one in schedule)
    interval = interval_for(around, steps)
    ours = GridAccountant(interval).compose(event)
    theirs = PLDAccountant(value_discretization_interval=interval).compose(event)
    for delta in (1e-9, 1e-5, 1e-2):
        # A power of so many steps of a transform loses as many last bits, here and there.
        rounding = 1e-7 + steps * np.finfo(np.float64).eps / delta
        assert ours.get_epsilon(delta) == pytest.approx(theirs.get_epsilon(delta), rel=rounding)


def test_what_any_of_many_losses_may_exceed_without_bound_adds_up() -> None:
    """1 − (1 − m)ⁿ of a mass m at infinity; the losses of a step here have one of 1e-22."""
    one = GridPmf(0.1, -1, np.array([0.4, 0.2, 0.4 - 1e-3]), 1e-3, True)
    many = one.self_compose(50)
    assert many._infinity_mass == pytest.approx(1 - (1 - 1e-3) ** 50, rel=1e-9)
    assert many._infinity_mass + many._probs.sum() == pytest.approx(1, abs=1e-12)


def test_little_noise_and_none() -> None:
    """Losses whose e^−l is 0, an infinite loss, a δ above all losses, no noise at all."""
    for z, delta in ((0.02, 1e-5), (0.02, 0.9), (5.0, 0.5)):
        event = dp_accounting.GaussianDpEvent(z)
        theirs = PLDAccountant(value_discretization_interval=0.5).compose(event)
        ours = GridAccountant(0.5).compose(event)
        assert ours.get_epsilon(delta) == pytest.approx(theirs.get_epsilon(delta), rel=1e-6)
    assert GridAccountant(0.5).compose(event_of([], 1.0)).get_epsilon(1e-5) == 0
    for event in (dp_accounting.NonPrivateDpEvent(), dp_accounting.GaussianDpEvent(0)):
        assert GridAccountant(0.5).compose(event).get_epsilon(1e-5) == math.inf


def test_an_unknown_event_is_refused_as_by_the_library() -> None:
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.ZCDpEvent(1.0))
    with pytest.raises(dp_accounting.UnsupportedEventError):
        GridAccountant(0.1).compose(event)


@pytest.mark.parametrize(("schedule", "_", "beside", "epsilon"), CASES)
def test_the_noise_found_is_enough_by_the_librarys_accountant(schedule, _, beside, epsilon) -> None:
    z = calibrate(schedule, epsilon, 1e-5, beside)
    interval = interval_for(epsilon, sum(one.count for one in schedule))
    accountant = PLDAccountant(value_discretization_interval=interval)
    spent = accountant.compose(event_of(schedule, z, beside)).get_epsilon(1e-5)
    assert 0.998 * epsilon < spent <= epsilon * (1 + 1e-7)


@pytest.mark.parametrize(("schedule", "_", "beside", "epsilon"), CASES)
def test_a_site_and_a_simulated_one_have_the_same_noise(
    schedule, _, beside, epsilon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs differ by less than their own rounding, and z is rounded up at the sixth digit."""
    schedule = tuple(accounting.merge(schedule))
    noise = set()
    for accountant in (accounting._by_library, GridAccountant):
        monkeypatch.setattr(accounting, "_accountant", accountant)
        noise.add(accounting._search(schedule, epsilon, 1e-5, beside))
    assert len(noise) == 1


@given(
    power=st.floats(0.3, 3),
    slope=st.floats(0.3, 3),
    start=st.floats(0.98, 1.02),
    step=st.sampled_from([0.0, 0.001, 0.1]),
)
@settings(max_examples=200, deadline=None)
def test_confirmed_noise_is_bounded(power: float, slope: float, start: float, step: float) -> None:
    """Whatever the slope that is taken for granted, and where the cost falls in steps."""

    def cost(z: float) -> float:
        value = 2 * z**-power
        return value if not step else step * math.ceil(value / step)

    found = _confirm(cost, 2.0, start, slope)
    assert not found or cost(found) <= 2
    if not step and abs(power - slope) < 0.1 * slope:
        assert 1 <= found <= 1 + 2 * _TOLERANCE


def test_a_slope_that_is_not_known_confirms_nothing() -> None:
    for slope in (math.nan, 0.0, -1.0):
        assert _confirm(lambda z: 1 / z, 1.0, 2.0, slope) == 0
    assert _confirm(lambda _: math.inf, 1.0, 2.0, 1.0) == 0


def test_without_a_confirmation_the_noise_is_bracketed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_confirm", lambda *_: 0.0)
    schedule = (Steps(0.05, 300),)
    z = accounting._search(schedule, 1.0, 1e-5)
    interval = interval_for(1.0, 300)
    assert 0.998 < epsilon_of(event_of(schedule, z), 1e-5, interval) <= 1.0


def _sides(losses: PrivacyLossDistribution) -> list:
    return [losses._pmf_remove.to_dense_pmf(), losses._pmf_add.to_dense_pmf()]
