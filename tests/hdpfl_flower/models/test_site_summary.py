"""Which end of the sites is the worst, and how many of them a tenth is."""

from __future__ import annotations

import math

import pytest

from hdpfl_flower.models.site_summary import worst_tenth


@pytest.mark.parametrize(
    ("metric", "worst"), [("accuracy", 0.5), ("loss", 18.5), ("mse", 18.5), ("mae", 18.5)]
)
def test_the_worst_tenth_is_the_low_end_but_of_an_error(metric: str, worst: float) -> None:
    values = list(range(20))
    assert worst_tenth(metric, values[::-1]) == worst


def test_a_tenth_is_rounded_up_and_what_is_not_known_is_not_the_worst() -> None:
    """Of eleven sites two, of one site that one; with a NaN there is no worst."""
    assert worst_tenth("accuracy", range(11)) == 0.5
    assert worst_tenth("loss", [3.0]) == 3.0
    assert math.isnan(worst_tenth("accuracy", [0.5, math.nan]))
