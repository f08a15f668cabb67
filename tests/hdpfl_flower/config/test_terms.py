"""Public terms: unknown keys and wrong types are refused by name; nothing else gets through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.config.run_config import GROUPS, RunConfig
from hdpfl_flower.config.tables import flat_rows
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.config.validation import kebab
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
        ({"strategy": True}, ["'strategy' must be a text in quotes"]),
        ({"personal-lambda": True}, ["'personal-lambda' must be a text in quotes"]),
        ({"epsilons": [1, 2]}, ["'epsilons' must be a text in quotes"]),
        ({"prox-lambda": -0.1}, ["'prox-lambda' must be a number of at least 0, or 'auto'"]),
        ({"prox-lambda": "0.1"}, ["'prox-lambda' must be a number of at least 0, or 'auto'"]),
        ({"prox-lambda": True}, ["'prox-lambda' must be a number of at least 0, or 'auto'"]),
        ({"prox-lambda": float("inf")}, ["'prox-lambda' must be a number of at least 0"]),
        ({"seed": -1}, ["'seed'"]),
        ({"seed": 2**63}, ["'seed'"]),
        ({"rounds": "x", "fraction": "y"}, ["'rounds'", "'fraction'"]),
    ],
)
def test_each_mistake_is_named_on_one_line(config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(TermsError) as error:
        RunConfig.parse(config)
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


@pytest.mark.parametrize("value", [0.1, 50, 0, 1e-05, 20260101, float("inf")])
def test_a_number_is_a_text_where_a_text_is_asked_for(value: float) -> None:
    """As in TOML, in --run-config and in --set: 'must be a text' before."""
    fields = [field for group in GROUPS.values() for field in group.model_fields.items()]
    texts = {f.alias or kebab(n) for n, f in fields if f.annotation is str}
    assert {"personal-lambda", "epsilons", "batch-sizes"} <= texts
    try:
        config = RunConfig.parse(dict.fromkeys(texts, value))
    except TermsError as error:
        pytest.fail(str(error))
    assert {config.as_config()[key] for key in texts} == {repr(value)}
    assert RunTerms.from_json(config.terms.to_json()) == config.terms


def test_an_explicit_zero_is_not_what_is_left_open() -> None:
    assert (RunTerms().prox_lambda, RunTerms().pull) == ("auto", 0)
    terms = RunTerms.parse({"prox-lambda": 0, "personal-lambda": 0})
    assert (terms.prox_lambda, terms.pull, terms.personal_lambda) == (0, 0, "0")
    assert RunTerms.from_json(terms.to_json()) == terms


def test_blanks_are_no_pull_that_a_site_would_pay_for() -> None:
    assert RunTerms.parse({"personal-lambda": "  "}).personal_lambda == ""


def test_a_file_whose_number_python_does_not_read_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("rounds = " + "1" * 5_000)
    with pytest.raises(TermsError, match=r"run\.toml are not valid TOML"):
        RunConfig.load(path)


def test_changes_are_validated_again() -> None:
    assert RunTerms().updated(clip_norm=2.0).clip_norm == 2
    with pytest.raises(TermsError, match="'rounds'"):
        RunTerms().updated(rounds=0)


def test_every_term_is_described() -> None:
    assert all(row.description for row in flat_rows())
