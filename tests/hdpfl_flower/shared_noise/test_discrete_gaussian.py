"""Discrete Gaussians: their distribution, and the two facts on which their privacy rests."""

from __future__ import annotations

import math
from bisect import bisect_right
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.shared_noise.discrete_gaussian import (
    LEAST_SCALE,
    SMOOTHING,
    _digits,
    _table,
    digits_of,
    sample,
)

FALSE_ALARM = 1e-6
"""Of each statistical test; the streams have fixed keys, so that a test passes always or never."""


def stream(number: int) -> RandomStream:
    return RandomStream(bytes([number]) * 32)


def chi_square(draws: npt.NDArray[np.int64], std: float, width: int) -> tuple[float, int]:
    """Return χ² of draws against the exact probabilities in bins of a width, and its freedom."""
    reach = math.ceil(4 * std / width) * width
    values = np.arange(-12 * reach, 12 * reach + 1)
    weights = np.exp(-(values.astype(np.float64) ** 2) / (2 * std**2))
    edges = np.arange(-reach, reach + 1, width)
    place = np.searchsorted(edges, values, side="right")
    expected = len(draws) * np.bincount(place, weights / weights.sum())
    counts = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=len(expected))
    return float(((counts - expected) ** 2 / expected).sum()), len(expected) - 1


@pytest.mark.parametrize(("std", "width"), [(40.0, 5), (100.0, 10), (321.0, 32), (1000.0, 100)])
def test_the_draws_have_the_exact_probabilities(std: float, width: int) -> None:
    draws = sample(1_000_000, std, stream(1))
    found, freedom = chi_square(draws, std, width)
    assert found < float(stats.chi2.isf(FALSE_ALARM, freedom))
    for wrong in (1 / 1.02, 1.02):
        found, freedom = chi_square(draws, std * wrong, width)
        assert found > float(stats.chi2.isf(FALSE_ALARM, freedom)), "no test of the scale"


@pytest.mark.parametrize("std", [1000.0, 2.0**30])
def test_no_last_digit_is_likelier_than_another(std: float) -> None:
    """Sums of digits have residues modulo 8 and 64 that are uniform but for 10⁻²¹⁰."""
    draws = sample(1_000_000, std, stream(2))
    for base in (8, 64):
        counts = np.bincount(draws % base, minlength=base)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize("std", [2.0**30, 2.0**30 / math.sqrt(2), 2.0**56])
def test_the_variance_of_large_scales(std: float) -> None:
    count = 1_000_000
    low, high = (float(stats.chi2.ppf(p, count)) for p in (FALSE_ALARM / 2, 1 - FALSE_ALARM / 2))
    squares = float(((sample(count, std, stream(3)) / std) ** 2).sum())
    assert low < squares < high
    assert squares * 1.01**2 > high


def test_draws_are_independent_and_symmetric() -> None:
    draws = sample(1_000_000, 2.0**30, stream(4)) / 2.0**30
    bound = float(stats.norm.isf(FALSE_ALARM / 2)) / math.sqrt(len(draws))
    assert abs(draws.mean()) < bound
    for lag in (1, 2, 7):
        assert abs(float((draws[:-lag] * draws[lag:]).mean())) < 1.01 * bound


def test_parts_that_fit_a_cache_are_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdpfl_flower.shared_noise.discrete_gaussian._AT_ONCE", 100)
    draws = sample(1001, 2.0**30, stream(5))
    assert draws.shape == (1001,)
    assert len({*draws.tolist()}) == 1001, "numbers came twice"


@given(st.floats(LEAST_SCALE, 2.0**56))
def test_the_digits_have_the_variance_that_was_asked_for(std: float) -> None:
    digits, scale = digits_of(std)
    places = sum(Fraction(64) ** place for place in range(digits))
    assert Fraction(std) ** 2 <= places * Fraction(scale) ** 2 <= Fraction(std) ** 2 * (1 + 2**-40)
    more = places + Fraction(64) ** digits
    assert Fraction(std) ** 2 / more < Fraction(LEAST_SCALE) ** 2 * (1 + 2**-40)


@given(st.floats(LEAST_SCALE, 2.0**56))
def test_each_digit_is_wide_enough_for_the_second_fact(std: float) -> None:
    assert digits_of(std)[1] >= LEAST_SCALE


@pytest.mark.parametrize("std", [0.0, -50.0, 39.99, 2.0**56 * 1.001, math.inf, math.nan])
def test_a_scale_out_of_range_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="out of range"):
        sample(3, std, stream(6))


@pytest.mark.parametrize("scale", [40.0, 77.7])
def test_the_table_is_exact_to_its_last_bit(scale: float) -> None:
    """Against sums of exponentials that are computed one by one."""
    table = _table(scale)
    sums = [(int(u) << 64) | int(v) for u, v in zip(table.upper, table.lower, strict=True)]
    with localcontext() as context:
        context.prec = 70
        of = [
            (Decimal(-(value**2)) / (2 * Decimal(scale) ** 2)).exp()
            for value in range(table.least, -table.least + 1)
        ]
        total, so_far = sum(of), Decimal(0)
        for place, number in enumerate(sums):
            so_far += of[place]
            assert abs(so_far / total * 2**128 - number) <= 2
        assert of[0] < Decimal(2) ** -130, "the tails end too early"
    assert len(sums) == len(of) - 1
    assert sums == sorted(sums)


class Words(RandomStream):
    """Stream of given words, then of further ones."""

    def __init__(self, words: list[int], more: list[int]) -> None:
        self.given = [np.array(words, np.uint64).tobytes()]
        self.given += [number.to_bytes(8, "little") for number in more]

    def bytes(self, count: int) -> bytes:
        """Return what is given, in order."""
        taken = self.given.pop(0)
        assert len(taken) == count
        return taken


@pytest.mark.parametrize("scale", [40.0, 100.0])
def test_the_guide_and_the_second_word_find_what_plain_search_finds(scale: float) -> None:
    """Each boundary's first word, its neighbours, and every edge of a cell of the guide."""
    table = _table(scale)
    first = set(table.upper.tolist())
    sums = [(int(u) << 64) | int(v) for u, v in zip(table.upper, table.lower, strict=True)]
    draws = [number + move for number in sums for move in (-(2**64), -1, 0, 1, 2**64)]
    draws += [(cell << 112) + move for cell in range(2**16) for move in (-1, 0)]
    draws = [draw for draw in draws if 0 <= draw < 2**128]
    words = [draw >> 64 for draw in draws]
    more = [draw % 2**64 for draw, word in zip(draws, words, strict=True) if word in first]
    plain = [bisect_right(sums, draw) + table.least for draw in draws]
    np.testing.assert_array_equal(_digits(table, len(words), Words(words, more)), plain)


# The two facts, with numbers for which their bounds can be seen.


def rho(tau: float) -> float:
    return 3 * math.exp(-2 * math.pi**2 * tau**2)


def within(ratio: npt.NDArray[np.float64], tau: float) -> bool:
    """Return whether factors are within ρ(τ), but for the rounding of floats."""
    most = math.log((1 + rho(tau)) / (1 - rho(tau))) + 1e-12
    return bool(np.abs(np.log(ratio)).max() <= most)


@pytest.mark.parametrize("tau", [0.25, 0.3, 0.4, 0.6, 1.0, 1.5, 2.0])
def test_sums_over_the_integers_depart_by_rho_at_most(tau: float) -> None:
    """In 60 digits; the first term of Poisson's sum alone, 2·exp(−2π²τ²), is passed at x = 0."""
    with localcontext() as context:
        context.prec = 60
        half = 2 * Decimal(tau) ** 2
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
        whole = Decimal(tau) * (2 * pi).sqrt()
        first = (-(pi**2) * half).exp()
        worst = Decimal(0)
        for step in range(20):
            x = Decimal(step) / 20
            total = sum((-((x + j) ** 2) / half).exp() for j in range(-60, 61))
            worst = max(worst, abs(total / whole - 1))
        assert worst <= 3 * first
        assert worst > 2 * first if tau <= 1 else worst > Decimal("1.999999") * first


def normal(x: npt.NDArray[np.float64], variance: float) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.exp(-(x**2) / (2 * variance)) / math.sqrt(
        2 * math.pi * variance
    )
    return found


@pytest.mark.parametrize("tau", [0.4, 0.6, 0.8])
@pytest.mark.parametrize("std", [1.0, 3.0])
def test_a_discrete_gaussian_is_a_rounded_continuous_one(tau: float, std: float) -> None:
    """First fact, by quadrature."""
    values = np.arange(-6, 7).astype(np.float64)
    y = np.linspace(-40, 40, 80_001)
    weights = np.exp(-((y[:, None] - np.arange(-45, 46)) ** 2) / (2 * tau**2))
    share = np.exp(-((y[:, None] - values) ** 2) / (2 * tau**2)) / weights.sum(1, keepdims=True)
    rounded = (share * normal(y, std**2 - tau**2)[:, None]).sum(0) * (y[1] - y[0])
    exact = normal(values, std**2) / normal(np.arange(-400.0, 401), std**2).sum()
    assert within(rounded / exact, tau)
    assert not within(rounded / exact, 2 * tau), "a bound that nothing reaches shows nothing"


@pytest.mark.parametrize(
    ("base", "scale", "upper"), [(8, 2.5, 2.5), (8, 3.0, 24.0), (2, 1.0, 1.0), (1, 0.6, 0.6)]
)
def test_digits_add_up_to_a_discrete_gaussian(base: int, scale: float, upper: float) -> None:
    """Second fact: B·D₁ + D₀, whose last digit is the narrower one."""
    reach = np.arange(-400, 401)
    low, high = (normal(reach.astype(np.float64), s**2) for s in (scale, upper))
    wide = np.zeros(base * 800 + 1)
    wide[::base] = high / high.sum()
    found = np.convolve(wide, low / low.sum())
    middle = len(found) // 2
    std = math.sqrt(base**2 * upper**2 + scale**2)
    values = np.arange(-math.floor(4 * std), math.floor(4 * std) + 1)
    exact = normal(values.astype(np.float64), std**2)
    exact /= normal(np.arange(-4000.0, 4001), std**2).sum()
    assert within(found[middle + values] / exact, scale / math.sqrt(base**2 + 1))


def test_the_bounds_of_the_docstring() -> None:
    assert 2 * math.log10(rho(SMOOTHING)) < -272
    assert math.log10(2 * rho(SMOOTHING)) < -136
    assert math.log10(rho(LEAST_SCALE / math.sqrt(65)) + 1e-300) < -210
