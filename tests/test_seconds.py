"""The table of long tests names functions that are there, and none of privacy."""

from __future__ import annotations

import pytest

from tests.seconds import ALWAYS, TABLE, exists, listed


def test_every_function_in_the_table_is_there() -> None:
    assert [name for name in sorted(listed()) if not exists(name)] == []
    assert len(TABLE.read_text().split()) == len(listed()), "a name stands twice"


def test_the_table_leaves_the_tests_of_privacy_alone() -> None:
    assert not [name for name in listed() if name.startswith(ALWAYS)]


def test_a_name_that_is_not_there_is_found() -> None:
    assert not exists("tests/test_seconds.py::test_of_nothing")
    assert not exists("tests/test_none.py::test_of_nothing")
    assert not exists(
        "tests/test_docs.py::test_the_site_builds_strictly_and_loads_nothing_from_elsewhere"
    )
    assert exists("tests/test_seconds.py::test_a_name_that_is_not_there_is_found")


def test_the_functions_in_the_table_are_marked(request: pytest.FixtureRequest) -> None:
    """Whatever was collected beside this test."""
    long = set(TABLE.read_text().split())
    for item in request.session.items:
        marked = item.get_closest_marker("seconds") is not None
        assert marked == (item.nodeid.partition("[")[0] in long)
