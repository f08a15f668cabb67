"""A table of noise multipliers: its values against the search, and never a plan above its ε."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import DpEvent

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy import accounting, plan_table
from hdpfl_flower.privacy.accounting import (
    _TOLERANCE,
    Gaussians,
    PureSelections,
    Steps,
    calibrate,
    epsilon_of,
    event_of,
    interval_for,
)
from hdpfl_flower.privacy.plan_table import calibrate_among_many, calibrate_simulated

FEW, SUBSAMPLED = (Steps(0.5, 6),), (Steps(1, 1), Steps(0.1, 40))
DELTA = 1e-5


@pytest.fixture(autouse=True)
def nothing_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HDPFL_HOME", str(tmp_path))
    memory = (plan_table._by_table, plan_table._knot, accounting._calibrate)
    for known in memory:
        known.cache_clear()
    yield
    for known in memory:
        known.cache_clear()


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every z whose cost was computed."""
    made: list[float] = []
    real = accounting._cost_on

    def counted(*at: object) -> accounting._Cost:
        cost = real(*at)  # type: ignore[arg-type]

        def of(z: float) -> float:
            made.append(z)
            return cost(z)

        return of

    monkeypatch.setattr(accounting, "_cost_on", counted)
    return made


def fine_cost(schedule: tuple[Steps, ...], z: float, epsilon: float) -> float:
    interval = interval_for(epsilon, sum(one.count for one in schedule))
    return epsilon_of(event_of(schedule, z), DELTA, interval)


@pytest.mark.parametrize(("schedule", "clients"), [(FEW, 24), (SUBSAMPLED, 6)])
def test_a_client_of_the_table_has_the_noise_of_the_search_for_one_cost(
    schedule: tuple[Steps, ...], clients: int, costs: list[float]
) -> None:
    epsilons = np.random.default_rng(1).uniform(0.3, 8, clients).tolist()
    knots = {math.floor(2 * math.log2(one)) + near for one in epsilons for near in range(-1, 3)}
    for number in sorted(knots):
        plan_table._knot(schedule, number, DELTA)
    assert len(knots) <= 13
    costs.clear()
    found = [calibrate_among_many(schedule, one, DELTA) for one in epsilons]
    assert len(costs) == clients
    for z, epsilon in zip(found, epsilons, strict=True):
        assert fine_cost(schedule, z, epsilon) <= epsilon
        # Both lie within the tolerance above the least; the slope's error is of second order.
        assert z == pytest.approx(calibrate(schedule, epsilon, DELTA), rel=1.1 * _TOLERANCE)
        assert z == accounting._round_up(z)


@pytest.mark.parametrize("error", [0.5, 0.97, 0.9995, 1.002, 1.5])
def test_a_wrong_table_costs_time_and_no_privacy(
    error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = plan_table._guess

    def wrong(*at: object) -> tuple[float, float]:
        guess, slope = real(*at)  # type: ignore[arg-type]
        return error * guess, slope

    monkeypatch.setattr(plan_table, "_guess", wrong)
    for epsilon in (0.7, 3.3):
        z = calibrate_among_many(FEW, epsilon, DELTA)
        assert fine_cost(FEW, z, epsilon) <= epsilon
        assert z == pytest.approx(calibrate(FEW, epsilon, DELTA), rel=1.1 * _TOLERANCE)


@pytest.mark.parametrize("slope", [math.nan, -1.0, 0.0, 0.01])
def test_a_table_whose_slope_is_none_is_searched(
    slope: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    guess = calibrate(FEW, 2.0, DELTA) * 0.9
    monkeypatch.setattr(plan_table, "_guess", lambda *_: (guess, slope))
    assert calibrate_among_many(FEW, 2.0, DELTA) == calibrate(FEW, 2.0, DELTA)


def test_a_clients_noise_does_not_depend_on_who_else_is_there(tmp_path: Path) -> None:
    alone = calibrate_among_many(FEW, 1.234, DELTA)
    plan_table._by_table.cache_clear()
    plan_table._knot.cache_clear()
    for file in (tmp_path / "cache" / "noise-multipliers").iterdir():
        file.unlink()
    for other in (0.4, 5.0, 1.3):
        calibrate_among_many(FEW, other, DELTA)
    assert calibrate_among_many(FEW, 1.234, DELTA) == alone


def test_the_order_of_the_steps_and_their_parts_share_one_table(costs: list[float]) -> None:
    z = calibrate_among_many((*SUBSAMPLED, Steps(0.5, 0)), 2.0, DELTA)
    costs.clear()
    parts = (Steps(0.1, 15), Steps(1.0, 1), Steps(0.1, 25))
    assert calibrate_among_many(parts, 2.0, DELTA) == z
    assert not costs


def test_a_plan_with_other_releases_is_searched_for_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_table, "_by_table", lambda *_: pytest.fail("a table was read"))
    beside = [Gaussians(20.0, 1)]
    z = calibrate_among_many(FEW, 2.0, DELTA, beside)
    assert z == calibrate(FEW, 2.0, DELTA, beside)
    assert calibrate_among_many(FEW, math.inf, DELTA) == calibrate_among_many([], 1.0, DELTA) == 0.0


def test_what_no_noise_pays_for_is_refused_as_by_the_search() -> None:
    with pytest.raises(AccountingError, match="delta must lie in"):
        calibrate_among_many(FEW, 1.0, 2.0)
    with pytest.raises(AccountingError, match="epsilon must be positive"):
        calibrate_among_many(FEW, -1.0, DELTA)
    with pytest.raises(AccountingError, match="no noise multiplier between"):
        calibrate_among_many(FEW, 1e-7, DELTA)


def test_an_epsilon_whose_lower_knots_no_noise_pays_for_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def knot(*_: object) -> None:
        raise AccountingError("no noise")

    monkeypatch.setattr(plan_table, "_knot", knot)
    assert calibrate_among_many(FEW, 2.0, DELTA) == calibrate(FEW, 2.0, DELTA)


def test_what_is_confirmed_is_confirmed_on_the_grid_of_its_epsilon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intervals: list[float] = []
    real = accounting.epsilon_of

    def seen(event: DpEvent, delta: float, interval: float) -> float:
        intervals.append(interval)
        return real(event, delta, interval)

    least = calibrate(FEW, 2.0, DELTA)
    monkeypatch.setattr(accounting, "epsilon_of", seen)
    monkeypatch.setattr(plan_table, "_guess", lambda *_: (least, 1.0))
    assert calibrate_among_many(FEW, 2.0, DELTA) > 0
    assert set(intervals) == {interval_for(2.0, 6)}


def test_every_delta_has_a_table_of_its_own() -> None:
    loose = calibrate_among_many(FEW, 2.0, 1e-3)
    assert calibrate_among_many(FEW, 2.0, 1e-6) > 1.2 * loose


def test_a_simulated_site_has_the_noise_of_the_search_and_reads_it_once_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [
        (schedule, epsilon, delta, beside)
        for schedule in (FEW, SUBSAMPLED, ())
        for epsilon in (2.0, 3.0, math.inf)
        for delta in (DELTA, 1e-4)
        for beside in ((), (Gaussians(20.0, 1),), (PureSelections(0.05, 1),))
    ]
    found = [calibrate_simulated(*one) for one in asked]
    assert found == [calibrate(*one) for one in asked]
    monkeypatch.setattr(plan_table, "calibrate", lambda *_: pytest.fail("searched again"))
    assert [calibrate_simulated(*one) for one in asked] == found
    parts = (Steps(0.5, 2), Steps(0.25, 0), Steps(0.5, 4))
    assert (
        calibrate_simulated(parts, 2.0, DELTA, [Gaussians(20.0, 1), Gaussians(1.0, 0)]) == found[1]
    )


def test_another_accountant_or_another_search_computes_again(
    costs: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def again() -> bool:
        plan_table._by_table.cache_clear()
        costs.clear()
        calibrate_among_many(FEW, 2.0, DELTA)
        return bool(costs)

    assert again() and not again()
    monkeypatch.setattr(plan_table, "version", lambda _: "another")
    assert again() and not again()
    monkeypatch.setattr(plan_table, "_CACHE_VERSION", plan_table._CACHE_VERSION + 1)
    assert again() and not again()
