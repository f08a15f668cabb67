"""Members of a run and sets of a round: texts that a server, or anybody, may send."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.shared_noise.keys import MOST_MEMBERS, check_members
from hdpfl_flower.shared_noise.members import (
    check_sharing,
    default_colluders,
    fingerprint_of,
    members_of,
    read_set,
    write_set,
)
from hdpfl_flower.shared_noise.rules import colluders_of, contradictions
from hdpfl_flower.system.fingerprints import spoken

KEYS = [f"{number:032x}" for number in range(MOST_MEMBERS + 1)]
SHORT = 0.5
"""Seconds that no refusal of a text may take; each takes milliseconds."""


def listed(*names: str) -> str:
    return ",".join(f"{name}={key}" for name, key in zip(names, KEYS, strict=False))


@given(st.sets(st.integers(0, MOST_MEMBERS - 1), min_size=1, max_size=50))
def test_a_set_is_read_as_it_was_written(numbers: set[int]) -> None:
    assert read_set(write_set(numbers)) == tuple(sorted(numbers))
    assert read_set(write_set([*numbers][::-1])) == tuple(sorted(numbers))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "0,",
        ",0",
        "0,,1",
        "0;1",
        "0, 1",
        "0,1 ",
        "0,1\n",
        "0,0",
        "1,0",
        "01",
        "0,01",
        "-1",
        "+1",
        "1e3",
        "0x1",
        "١",
        "0,²",
        "1_0",
        "99999",
        str(MOST_MEMBERS),
        "a",
        "0,1\x00",
        "0\u200b",
    ],
)
def test_a_set_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no set of members"):
        read_set(text)


def test_the_largest_set_is_read_and_a_longer_text_is_not() -> None:
    every = range(MOST_MEMBERS)
    assert read_set(write_set(every)) == tuple(every)
    before = time.perf_counter()
    for text in ("1," * 10**7, "9" * 10**7, write_set(every) + ",0" * 10**6):
        with pytest.raises(ValueError, match="no set of members"):
            read_set(text)
    assert time.perf_counter() - before < SHORT


def test_members_are_read_in_their_order() -> None:
    text = f"b = {spoken(KEYS[1])},\n a={KEYS[0]} ,"
    assert check_members(text) == f"b={KEYS[1]},a={KEYS[0]}"
    assert list(members_of(check_members(text)).items()) == [("b", KEYS[1]), ("a", KEYS[0])]
    assert check_members("") == check_members(" , ") == ""
    assert members_of("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a=",
        f"={KEYS[0]}",
        f"a={KEYS[0][:-1]}",
        f"a={KEYS[0]}0",
        f"a==={KEYS[0]}",
        f"a={'g' * 32}",
        f"a={'A' * 32}",
        f"a={'٣' * 32}",
        f"a={'１' * 32}",
        f"{'n' * 201}={KEYS[0]}",
        f"a\x1b[31m={KEYS[0]}",
        f"a\u202e={KEYS[0]}",
        f"a\x00={KEYS[0]}",
        f"a\ud800={KEYS[0]}",
        f"a={KEYS[0]};b={KEYS[1]}",
    ],
)
def test_an_entry_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"NAME=KEY.*hdpfl-site peers show"):
        check_members(text)
    with pytest.raises(TermsError, match="'members'"):
        RunTerms.parse({"members": text})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"a={KEYS[0]},a={KEYS[1]}", "a name twice"),
        (f"a={KEYS[0]},b={KEYS[0]}", "a key twice"),
        (f"a={KEYS[0]},b={spoken(KEYS[0])}", "a key twice"),
        (listed(*map(str, range(MOST_MEMBERS + 1))), f"more than {MOST_MEMBERS}"),
    ],
)
def test_a_name_or_a_key_stands_there_once(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        check_members(text)


def test_a_long_text_of_members_is_refused_unread() -> None:
    before = time.perf_counter()
    for text in ("=" * 10**7, "a" * 10**7, f"a={KEYS[0]}," * 10**6, "," * 10**7):
        with pytest.raises(TermsError, match="'members' is longer than"):
            RunTerms.parse({"members": text})
    assert time.perf_counter() - before < 20 * SHORT


@given(st.binary(min_size=32, max_size=32))
def test_a_fingerprint_can_be_read_aloud(key: bytes) -> None:
    fingerprint = fingerprint_of(key)
    assert len(fingerprint) == 32
    groups = spoken(fingerprint).split(" ")
    assert [len(group) for group in groups] == [4] * 8
    assert "".join(groups) == fingerprint
    assert check_members(f"a={spoken(fingerprint)}") == f"a={fingerprint}"


def test_colluders_are_a_third_of_the_others_and_one_at_least() -> None:
    counts = [default_colluders(members) for members in range(3, 40)]
    assert counts[:5] == [1, 1, 1, 1, 2]
    assert all(0 <= after - before <= 1 for before, after in pairwise(counts))
    assert all(3 * t <= n - 1 or t == 1 for n, t in enumerate(counts, start=3))
    assert colluders_of(RunTerms.parse({"colluders": 5}), 9) == 5
    assert colluders_of(RunTerms.parse({}), 9) == 2


@pytest.mark.parametrize(
    ("numbers", "own", "colluders", "least", "words"),
    [
        ((0, 1, 2), 0, 1, 3, ""),
        ((0, 1, 2), 3, 1, 3, "does not hold this site"),
        ((), 0, 1, 3, "does not hold this site"),
        ((0, 1), 0, 1, 0, "fewer sites"),
        ((0, 1, 2, 3), 0, 3, 3, "fewer sites"),
        ((0, 1, 2, 3, 4), 0, 3, 3, ""),
        ((0, 1, 2, 3), 0, 1, 5, "fewer sites"),
    ],
)
def test_a_set_holds_the_site_and_two_honest_ones(
    numbers: tuple[int, ...], own: int, colluders: int, least: int, words: str
) -> None:
    fault = check_sharing(numbers, own, colluders, least)
    assert words in fault
    assert bool(words) == bool(fault)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"local-steps": 2}, "local-steps"),
        ({"local-epochs": 2}, "local-epochs"),
        ({"work": {"kind": "plain", "first-batch": "full"}}, "work"),
        ({"choice": {"kind": "gumbel", "times": 1, "share": 0.1}}, "choice"),
        ({"calibration": "pfa"}, "calibration"),
    ],
)
def test_terms_that_one_sum_cannot_follow_are_named(changed: dict[str, object], key: str) -> None:
    assert list(contradictions(RunTerms.parse({"noise": "shared"}))) == []
    (fault,) = contradictions(RunTerms.parse({"noise": "shared", **changed}))
    assert f"'{key}'" in fault
    assert "noise = 'records'" in fault
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("count", "colluders", "fits"), [(3, 0, 1), (2, 0, 0), (4, 3, 0), (5, 3, 1)]
)
def test_members_are_two_more_than_colluders(count: int, colluders: int, fits: int) -> None:
    terms = RunTerms.parse(
        {"noise": "shared", "members": listed(*"abcde"[:count]), "colluders": colluders}
    )
    faults = list(contradictions(terms))
    assert [("'colluders' + 2" in fault) for fault in faults] == [True] * (1 - fits)
