"""The table of long tests names functions that are there."""

from __future__ import annotations

import pytest

from tests.seconds import ALWAYS, LONG, TABLE, exists, listed


def test_every_function_in_the_table_is_there() -> None:
    assert [name for name in sorted(listed()) if not exists(name)] == []
    assert len(TABLE.read_text().splitlines()) == len(listed()), "a name stands twice"


def test_make_check_leaves_out_no_quick_test_of_privacy() -> None:
    quick = [name for name, seconds in listed().items() if seconds < LONG]
    assert not [name for name in quick if name.startswith(ALWAYS)]


def test_a_name_that_is_not_there_is_found() -> None:
    assert not exists("tests/test_seconds.py::test_of_nothing")
    assert not exists("tests/test_none.py::test_of_nothing")
    assert not exists(
        "tests/test_docs.py::test_the_site_builds_strictly_and_loads_nothing_from_elsewhere"
    )
    assert exists("tests/test_seconds.py::test_a_name_that_is_not_there_is_found")


def test_the_functions_in_the_table_are_marked(request: pytest.FixtureRequest) -> None:
    """Whatever was collected beside this test."""
    for item in request.session.items:
        seconds = listed().get(item.nodeid.partition("[")[0], 0.0)
        assert (item.get_closest_marker("seconds") is not None) == (seconds > 0)
        # A single long case is marked where its cases are listed.
        assert item.get_closest_marker("long") is not None or seconds < LONG
