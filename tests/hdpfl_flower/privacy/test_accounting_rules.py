"""The rules of accounting one by one: events, bounds, and the search for noise.

The search is tested on costs that are formulas, so that every test here takes milliseconds.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Sequence

import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from dp_accounting.pld import PLDAccountant

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy import accounting
from hdpfl_flower.privacy.accounting import (
    ExtraRelease,
    Gaussians,
    PureSelections,
    Steps,
    calibrate,
    epsilon_of,
    event_of,
    interval_for,
)


@pytest.fixture(autouse=True)
def an_end() -> Iterator[None]:
    """Fail a search that does not end, after twenty seconds of processor time."""

    def endless(*_: object) -> None:
        raise AssertionError("the search does not end")

    before = signal.signal(signal.SIGVTALRM, endless)
    signal.setitimer(signal.ITIMER_VIRTUAL, 20)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


# Events.


def test_an_event_says_what_happens_and_leaves_out_what_does_not() -> None:
    schedule = [Steps(0.5, 2), Steps(1, 3), Steps(0.25, 0), Steps(0.5, 4)]
    beside: list[ExtraRelease] = [Gaussians(3.0, 1), Gaussians(4.0, 0), PureSelections(0.5, 2)]
    step = GaussianDpEvent(1.5)
    assert event_of(schedule, 1.5, beside) == ComposedDpEvent(
        [
            SelfComposedDpEvent(PoissonSampledDpEvent(0.5, step), 6),
            SelfComposedDpEvent(step, 3),
            SelfComposedDpEvent(GaussianDpEvent(3.0), 1),
            SelfComposedDpEvent(DiscreteLaplaceDpEvent(0.5, sensitivity=1), 2),
        ]
    )


@pytest.mark.parametrize("beside", [[], [Gaussians(1.0, 0)], [PureSelections(1.0, 0)]])
def test_nothing_happens_in_no_step_and_no_release(beside: list[ExtraRelease]) -> None:
    assert event_of([Steps(0.5, 0)], 1.0, beside) == NoOpDpEvent()


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan])
def test_noise_and_the_epsilon_of_pure_releases_are_positive(noise: float) -> None:
    for z, beside in ((noise, []), (1.0, [Gaussians(noise, 1)]), (1.0, [PureSelections(noise, 1)])):
        with pytest.raises(AccountingError, match="must be positive"):
            event_of([Steps(0.5, 1)], z, beside)


def test_a_pure_release_has_a_finite_epsilon_and_any_release_a_count() -> None:
    with pytest.raises(AccountingError, match="must be positive"):
        event_of([], 1.0, [PureSelections(math.inf, 1)])
    for wrong in (Gaussians(1.0, -1), PureSelections(1.0, -1)):
        with pytest.raises(AccountingError, match="a count must be >= 0"):
            event_of([], 1.0, [Gaussians(1.0, 1), wrong])


def test_half_an_epsilon_varies_like_noise_of_two() -> None:
    """The loss of a Gaussian has the variance 1/z², that of randomized response about ε²."""
    assert accounting._noise_of(PureSelections(0.5, 3)) == 2
    assert accounting._noise_of(Gaussians(0.5, 3)) == 0.5


# ε of an event.


def test_delta_has_two_bounds_and_the_smaller_belongs_to_it() -> None:
    """One Gaussian with z = 1: its δ at ε = 6.76 is 1e-10 (Balle and Wang's formula)."""
    at_the_bound = epsilon_of(event_of([Steps(1, 1)], 1.0), 1e-10, 1e-2)
    assert delta_of_a_gaussian(at_the_bound) == pytest.approx(1e-10, rel=0.1)
    for delta in (0.99e-10, 1.0, 1.5, math.nan):
        with pytest.raises(AccountingError, match="delta must lie in"):
            epsilon_of(NoOpDpEvent(), delta, 1e-2)
        with pytest.raises(AccountingError, match="delta must lie in"):
            calibrate([], 1, delta)
    assert calibrate([], 1, 1e-10) == 0


def delta_of_a_gaussian(eps: float) -> float:
    def above(x: float) -> float:
        return math.erfc(x / math.sqrt(2)) / 2

    return above(eps - 0.5) - math.exp(eps) * above(eps + 0.5)


def test_an_accountant_without_a_number_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_accountant", accounting._by_library)
    monkeypatch.setattr(PLDAccountant, "get_epsilon", lambda *_: math.nan)
    with pytest.raises(AccountingError, match="returns no epsilon"):
        epsilon_of(NoOpDpEvent(), 1e-5, 1e-2)


def test_a_loss_beyond_floating_point_has_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def overflows(*_: object) -> float:
        raise OverflowError

    monkeypatch.setattr(accounting, "_accountant", accounting._by_library)
    monkeypatch.setattr(PLDAccountant, "get_epsilon", overflows)
    assert epsilon_of(NoOpDpEvent(), 1e-5, 1e-2) == math.inf


@pytest.mark.parametrize(
    ("steps", "share"),
    [(0, 1), (1, 1), (39_000, 1), (40_000, 1), (160_000, 1 / 2), (4_000_000, 1 / 10)],
)
def test_the_interval_follows_epsilon_and_the_root_of_many_steps(steps: int, share: float) -> None:
    for epsilon in (0.1, 8.0):
        assert interval_for(epsilon, steps) == pytest.approx(1e-4 * epsilon * share, rel=1e-12)


# Calibration: what beside the steps takes, and what a number in memory is known by.


@pytest.mark.parametrize(("alone", "enough"), [(0.99, True), (1.0, False), (1.01, False)])
def test_epsilon_remains(monkeypatch: pytest.MonkeyPatch, alone: float, enough: bool) -> None:
    monkeypatch.setattr(accounting, "epsilon_of", lambda *_: alone)
    if enough:
        assert calibrate([], 1.0, 1e-5, [Gaussians(9.0, 1)]) == 0
        return
    with pytest.raises(AccountingError, match="takes all of this epsilon"):
        calibrate([], 1.0, 1e-5, [Gaussians(9.0, 1)])


def test_the_releases_are_charged_at_the_grid_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def fake(*at: object) -> float:
        asked.append(at)
        return 0.5

    monkeypatch.setattr(accounting, "epsilon_of", fake)
    calibrate([], 2.0, 1e-5, [Gaussians(9.0, 3)])
    event = ComposedDpEvent([SelfComposedDpEvent(GaussianDpEvent(9.0), 3)])
    assert asked == [(event, 1e-5, 2e-4)]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[object, ...]]]:
    """What was searched for; each search finds another number, and nothing is in memory."""
    made: list[tuple[object, ...]] = []

    def search(*at: object) -> float:
        made.append(at)
        return float(len(made))

    monkeypatch.setattr(accounting, "_search", search)
    monkeypatch.setattr(accounting, "epsilon_of", lambda *_: 0.0)
    accounting._calibrate.cache_clear()
    yield made
    accounting._calibrate.cache_clear()


def noise(schedule: Sequence[Steps], epsilon: float, delta: float, *beside: ExtraRelease) -> float:
    return calibrate(schedule, epsilon, delta, beside)


def test_all_inputs_of_noise_tell_cached_apart(computed: list[tuple[object, ...]]) -> None:
    q = Steps(0.5, 2)
    asked: list[tuple[object, ...]] = [
        ([q], 1.0, 1e-5),
        ([Steps(0.25, 2)], 1.0, 1e-5),
        ([Steps(0.5, 3)], 1.0, 1e-5),
        ([q, Steps(0.25, 1)], 1.0, 1e-5),
        ([q], 2.0, 1e-5),
        ([q], 1.0, 1e-6),
        ([q], 1.0, 1e-5, Gaussians(4.0, 1)),
        ([q], 1.0, 1e-5, Gaussians(5.0, 1)),
        ([q], 1.0, 1e-5, Gaussians(4.0, 2)),
        ([q], 1.0, 1e-5, PureSelections(4.0, 1)),
        ([q], 1.0, 1e-5, PureSelections(4.0, 1), Gaussians(4.0, 1)),
    ]
    found = [noise(*at) for at in asked]  # type: ignore[arg-type]
    assert found == [1.0 + i for i in range(len(asked))]
    assert [noise(*at) for at in asked] == found  # type: ignore[arg-type]
    assert len(computed) == len(asked)
    assert computed[8] == ((q,), 1.0, 1e-5, (Gaussians(4.0, 2),))


def test_zero_events_need_no_noise(computed: list[tuple[object, ...]]) -> None:
    assert noise([Steps(1, 1)], 1.0, 1e-5, Gaussians(0.0, 0), PureSelections(0.0, 0)) == 1
    assert noise([Steps(1, 1), Steps(0.5, 0)], 1.0, 1e-5) == 1
    assert computed == [((Steps(1, 1),), 1.0, 1e-5, ())]


# The first guess: Σ count·q²·(e^{1/z²} − 1) and the releases beside it make up μ².


@pytest.mark.parametrize(
    ("schedule", "beside"),
    [
        ([Steps(1, 1)], []),
        ([Steps(0.1, 50), Steps(0.02, 900)], []),
        ([Steps(0.1, 50)], [Gaussians(20.0, 4), PureSelections(0.05, 2)]),
    ],
)
def test_the_guess_solves_the_clt(schedule: list[Steps], beside: list[ExtraRelease]) -> None:
    z = accounting._gaussian_guess(schedule, 2.0, math.exp(-8), beside)
    spent = (4 / 400 + 2 / 400) if beside else 0
    mass = sum(s.count * s.sampling_prob * s.sampling_prob for s in schedule)
    mu = 2 / (4 + math.sqrt(2))  # √(2·log(1/δ)) = 4
    assert mass * math.expm1(1 / z**2) + spent == pytest.approx(mu**2, rel=1e-12)


def test_a_guess_beside_costly_releases_keeps_a_hundredth() -> None:
    z = accounting._gaussian_guess([Steps(1, 1)], 2.0, math.exp(-8), [Gaussians(0.1, 1)])
    mu = 2 / (4 + math.sqrt(2))
    assert math.expm1(1 / z**2) == pytest.approx(mu**2 / 100, rel=1e-12)


# Rounding.


@pytest.mark.parametrize(
    ("z", "rounded"),
    [
        (1.23456, 1.23456),
        (1.234560001, 1.23457),
        (1.234569999, 1.23457),
        (9.999991, 10.0),
        (123456.1, 123457.0),
        (0.001234561, 0.00123457),
        (999999.5, 1e6),
        (1.0, 1.0),
        (0.1, 0.1),
        (1.1, 1.1),
    ],
)
def test_noise_is_rounded_up_at_the_sixth_digit(z: float, rounded: float) -> None:
    assert accounting._round_up(z) == rounded


def test_what_is_rounded_stays() -> None:
    for digits in range(100_000, 1_000_000, 997):
        for exponent in (-8, -5, -2):
            z = float(f"{digits}e{exponent}")
            assert accounting._round_up(z) == z


# The bracket.


class Cost:
    """A cost that is a formula, and what it was asked."""

    def __init__(self, formula: Callable[[float], float]) -> None:
        self._formula = formula
        self.asked: list[float] = []

    def __call__(self, z: float) -> float:
        self.asked.append(z)
        return self._formula(z)


def needs(least: float, epsilon: float = 1.0) -> Cost:
    """A cost that is ε with the least sufficient noise and with more, and more than ε below it."""
    return Cost(lambda z: epsilon if z >= least else 1.1 * epsilon)


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        (1.0, (0.666667, 1.0)),
        (1.1, (1.0, 1.5)),
        (100.0, (17.086, 437.898)),  # 1.5, then its square, and that one's square, …
        (0.01, (0.00228367, 0.05852770)),
    ],
)
def test_a_bracket_holds_the_least_noise(least: float, expected: tuple[float, float]) -> None:
    assert accounting._bracket(needs(least), 1.0, 1.0) == pytest.approx(expected, rel=1e-5)


def test_a_bracket_grows_by_the_factor_it_is_given() -> None:
    assert accounting._bracket(needs(1.005), 1.0, 1.0, factor=1.01) == (1.0, 1.01)


@pytest.mark.parametrize(
    ("start", "least", "found"),
    [
        (1.00001e-3, 0.8e-3, True),
        (1e-3, 0.8e-3, False),
        (999_999, 1_100_000, True),
        (1e6, 1_100_000, False),
        (1.0, 1e13, False),
        (1.0, 0, False),
    ],
)
def test_noise_lies_within_the_stated_bounds(start: float, least: float, found: bool) -> None:
    if found:
        low, high = accounting._bracket(needs(least), 1.0, start)
        assert low < least <= high
        return
    with pytest.raises(AccountingError, match="between 1e-3 and 1e6"):
        accounting._bracket(needs(least), 1.0, start)


# The narrowing of a bracket.


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("power", [0.7, 1.0, 2.0])
def test_a_power_of_the_noise_is_narrowed_at_once(epsilon: float, power: float) -> None:
    """The line through both ends meets ε where the cost does: two ends and two guesses."""
    least = 2.34567
    cost = Cost(lambda z: epsilon * (least / z) ** power)
    low, high = accounting._narrow(cost, epsilon, 1.0, 9.0, 5e-4)
    assert low < least <= high <= low * (1 + 5e-4)
    assert len(cost.asked) == 4


@pytest.mark.parametrize(
    "formula",
    [
        lambda z: math.inf if z < 2 else (3 / z) ** 2,
        lambda z: (3 / z) ** 2 if z < 5 else 0.0,
        lambda z: 1.0 if z >= 3 else 1.1,
        lambda z: 1 + 1e-9 if z < 3 else 1e-9,
        lambda z: 1e9 if z < 3 else 1 - 1e-9,
    ],
)
def test_falling_costs_are_narrowed_from_above(formula: Callable[[float], float]) -> None:
    cost = Cost(formula)
    low, high = accounting._narrow(cost, 1.0, 1.0, 9.0, 5e-4)
    assert low < 3 <= high <= low * (1 + 5e-4)
    assert len(cost.asked) < 330


def test_a_bracket_that_is_narrow_enough_stays() -> None:
    cost = needs(1.2)
    assert accounting._narrow(cost, 1.0, 1.0, 1.5, 0.5) == (1.0, 1.5)
    assert len(cost.asked) == 2


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        (2.0002, (2.0, 2.00054)),  # the lower guess lies below the bracket
        (2.00033, (2.0, 2.00067)),  # it is the lower end
        (2.00086, (2.00053, 2.0012)),  # the upper guess is the upper end
        (2.001, (2.00067, 2.0012)),  # it lies above
    ],
)
def test_costs_are_computed_once_in_bracket(least: float, expected: tuple[float, float]) -> None:
    cost = Cost(lambda z: least / z)
    assert accounting._narrow(cost, 1.0, 2.0, 2.0012, 5e-4) == expected
    assert len(cost.asked) == 3
    assert len({*cost.asked}) == 3


# The search.


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.3, 8.0])
def test_the_search_ends_at_least_noise(monkeypatch: pytest.MonkeyPatch, epsilon: float) -> None:
    """On a cost of its own: a coarser grid gives a larger ε, as pessimistic rounding does."""
    schedule, beside = (Steps(0.5, 40_000), Steps(1, 120_000)), (Gaussians(3.0, 1),)
    right = 1e-4 * epsilon / 2
    asked: list[tuple[float, float]] = []

    def fake(event: DpEvent, delta: float, interval: float) -> float:
        assert event.events[-1] == SelfComposedDpEvent(GaussianDpEvent(3.0), 1)
        assert delta == 1e-6
        z = float(event.events[1].event.noise_multiplier)
        asked.append((interval, z))
        return float(epsilon * (epsilon * 77 / z) ** 1.1 * (1 + 2 * interval / epsilon))

    monkeypatch.setattr(accounting, "epsilon_of", fake)
    z = accounting._search(schedule, epsilon, 1e-6, beside)
    least = epsilon * 77 * (1 + 2 * right / epsilon) ** (1 / 1.1)
    assert least <= z <= least * (1 + 5e-4)
    grids = [interval for interval, _ in asked]
    assert grids == sorted(grids, reverse=True)
    assert sorted({*grids}) == pytest.approx([right, 10 * right], rel=1e-12)
    assert len(asked) == len({*asked})
    assert grids.count(min(grids)) <= 5


def test_noise_within_the_tolerance_that_costs_more_than_its_epsilon_is_not_taken() -> None:
    z = accounting._confirm(lambda z: 1.0002 / z, 1.0, 1.0, 1.0)
    assert 0 < 1.0002 / z <= 1.0
