"""Public terms: unknown keys and wrong types are refused by name; nothing else gets through."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.config import RunTerms
from hdpfl_flower.errors import TermsError


def test_the_defaults_survive_the_wire() -> None:
    terms = RunTerms()
    assert RunTerms.from_json(terms.to_json()) == terms
    assert RunTerms.parse(terms.as_config()) == terms
    assert set(terms.as_config()) == set(RunTerms.keys())


def test_the_same_terms_give_the_same_bytes() -> None:
    one = RunTerms.parse({"rounds": 3, "clip-norm": 2.0})
    other = RunTerms.parse({"clip-norm": 2, "rounds": 3})
    assert one.to_json() == other.to_json()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"clipnorm": 1.0}, ["'clipnorm' is not a known key", "did you mean 'clip-norm'?"]),
        ({"clip_norm": 1.0}, ["'clip_norm'"]),
        ({"rounds": "3"}, ["'rounds' must be a whole number"]),
        ({"rounds": 2.5}, ["'rounds' must be a whole number"]),
        ({"rounds": True}, ["'rounds'"]),
        ({"rounds": 0}, ["'rounds'", "greater than or equal to 1"]),
        ({"clip-norm": 0.0}, ["'clip-norm'", "greater than 0"]),
        ({"clip-norm": float("inf")}, ["'clip-norm'", "finite"]),
        ({"learning-rate": float("nan")}, ["'learning-rate'"]),
        ({"fraction": 1.5}, ["'fraction'"]),
        ({"evaluation": "everywhere"}, ["'evaluation'", "'none', 'server' or 'sites'"]),
        ({"strategy": 3}, ["'strategy' must be a text in quotes"]),
        ({"seed": -1}, ["'seed'"]),
        ({"seed": 2**63}, ["'seed'"]),
        ({"rounds": "x", "fraction": "y"}, ["'rounds'", "'fraction'"]),
    ],
)
def test_each_mistake_is_named_on_one_line(config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(TermsError) as error:
        RunTerms.parse(config)
    text = str(error.value)
    assert "\n" not in text
    assert all(word in text for word in words)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"rounds": NaN}', '{"x": 1}', "\x00"])
def test_hostile_json_is_refused(text: str) -> None:
    with pytest.raises(TermsError):
        RunTerms.from_json(text)


@given(
    st.dictionaries(
        st.text(), st.none() | st.integers() | st.text() | st.floats() | st.lists(st.integers())
    )
)
def test_whatever_a_server_sends_either_parses_or_is_refused(config: dict[str, Any]) -> None:
    try:
        terms = RunTerms.from_json(json.dumps(config))
    except TermsError:
        return
    assert isinstance(terms, RunTerms)


def test_changes_are_validated_again() -> None:
    assert RunTerms().updated(clip_norm=2.0).clip_norm == 2
    with pytest.raises(TermsError, match="'rounds'"):
        RunTerms().updated(rounds=0)


def test_every_term_is_described() -> None:
    assert all(field.description for field in RunTerms.model_fields.values())
