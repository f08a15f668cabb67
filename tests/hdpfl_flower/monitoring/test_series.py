"""The list of series: their names, their places, their readings."""

from __future__ import annotations

import re

from hdpfl_flower.monitoring.series import SERIES, series_at

BUDGET = ("epsilon", "delta", "multiplier", "releases", "requests", "entries")
"""Units that tell of a site's budget: its own exporter alone may have them."""


def test_names_are_unique_and_as_prometheus_wants_them() -> None:
    names = [series.name for series in SERIES]
    assert len(set(names)) == len(names) > 40
    for series in SERIES:
        assert re.fullmatch(r"hdpfl(_[a-z]+)+", series.name), series.name
        assert series.counter == series.name.endswith("_total")
        assert series.meaning.endswith("."), series.name
        assert len(set(series.labels)) == len(series.labels)


def test_every_series_has_one_place_and_no_budget_is_the_coordinators() -> None:
    ours, sites = set(series_at("coordinator")), set(series_at("site"))
    assert ours | sites == set(SERIES)
    assert not ours & sites
    assert all(series.labels[0] in ("run", "file") for series in ours)
    assert [series.name for series in ours if series.unit in BUDGET] == []
    assert {series.unit for series in sites} >= set(BUDGET)
