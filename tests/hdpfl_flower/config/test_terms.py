"""Public terms: unknown keys and wrong types are refused by name; nothing else gets through."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.config.run_config import GROUPS, RunConfig
from hdpfl_flower.config.tables import KINDS, flat_rows, table_rows
from hdpfl_flower.config.tables_of_terms import TABLES
from hdpfl_flower.config.terms import MOST_TERMS, RunTerms
from hdpfl_flower.config.validation import kebab
from hdpfl_flower.errors import TermsError


def test_the_defaults_survive_the_wire() -> None:
    terms = RunTerms()
    assert RunTerms.from_json(terms.to_json()) == terms
    assert RunTerms.parse(terms.as_config()) == terms
    assert set(terms.as_config()) == set(RunTerms.keys()) - {*TABLES} | {"spend.kind"}
    terms = RunTerms.parse({"after": {"new-kind": {"share": 0.5, "column": "age"}}})
    assert terms.as_config()["after.new-kind.column"] == "age"
    assert RunTerms.from_json(terms.to_json()) == terms == RunTerms.parse(terms.as_config())
    assert terms.updated(rounds=3).after == terms.after
    assert terms.updated(after={}) == RunTerms()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"clipnorm": 1.0}, ["'clipnorm' is not a known key", "did you mean 'clip-norm'?"]),
        ({"rounds": "3"}, ["'rounds' must be a whole number"]),
        ({"rounds": True}, ["'rounds'"]),
        ({"rounds": 0}, ["'rounds'", "greater than or equal to 1"]),
        ({"clip-norm": 0.0}, ["'clip-norm'", "greater than 0"]),
        ({"clip-norm": float("inf")}, ["'clip-norm'", "finite"]),
        ({"learning-rate": float("nan")}, ["'learning-rate'"]),
        ({"fraction": 1.5}, ["'fraction'"]),
        ({"evaluation": "everywhere"}, ["'evaluation'", "'none', 'server' or 'sites'"]),
        ({"strategy": True}, ["'strategy' must be a text in quotes"]),
        ({"epsilons": [1, 2]}, ["'epsilons' must be a text in quotes"]),
        (
            {"work": {"kind": "plain", "pull": -0.1}},
            ["'work'", "'work.pull'", "greater than or equal to 0"],
        ),
        ({"work": {"kind": "plain", "pull": True}}, ["'work'", "'work.pull'"]),
        ({"work": {"kind": "plain", "pull": math.inf}}, ["'work'", "'work.pull'", "finite number"]),
        (
            {"work": {"kind": "plain", "first-batch": "all"}},
            ["'work.first-batch' must be 'auto', 'full' or 'same'"],
        ),
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


FORMED = {"start", "class-weights", "sites", "members", "scales"}
"""Texts of a form of their own: a digest, numbers, fingerprints, names with keys."""


@pytest.mark.parametrize("value", [0.1, 50, 0, 1e-05, 20260101, float("inf")])
def test_a_number_is_a_text_where_a_text_is_asked_for(value: float) -> None:
    """As in TOML, in --run-config and in --set: 'must be a text' before."""
    fields = [field for group in GROUPS.values() for field in group.model_fields.items()]
    texts = {f.alias or kebab(n) for n, f in fields if f.annotation is str} - FORMED
    assert {"simulated-epsilon", "epsilons", "batch-sizes"} <= texts
    try:
        config = RunConfig.parse(dict.fromkeys(texts, value))
    except TermsError as error:
        pytest.fail(str(error))
    assert {config.as_config()[key] for key in texts} == {repr(value)}
    assert RunTerms.from_json(config.terms.to_json()) == config.terms


def test_an_explicit_zero_is_not_what_is_left_open() -> None:
    assert (RunTerms().work.pull, RunTerms().work.pull_factor) == ("auto", 0)
    terms = RunTerms.parse({"work": {"kind": "plain", "pull": 0}})
    assert (terms.work.pull, terms.work.pull_factor) == (0, 0)
    assert RunTerms.from_json(terms.to_json()) == terms


def test_a_table_that_is_left_open_is_none_that_a_site_would_pay_for() -> None:
    for table in ({}, {"kind": "auto", "pull": "auto"}, None):
        assert RunTerms.parse({"second": table}).second is None
    assert RunTerms.parse({"work.kind": "auto", "work.pull": "auto"}) == RunTerms()


def test_flowers_run_config_reads_as_the_tables_do() -> None:
    """It holds every setting of every kind: one that is left open is of no kind."""
    declared = {row.key: row.default for row in table_rows()}
    for table, kinds in KINDS.items():
        for name, kind in kinds.items():
            try:
                flat = RunConfig.parse({**declared, f"{table}.kind": name}).terms
            except TermsError as error:
                pytest.fail(str(error))
            assert flat == RunTerms.parse({table: {"kind": name}})
            assert type(getattr(flat, table)) is kind
    assert {*KINDS, "first", "after"} == {*TABLES}


def test_a_file_whose_number_python_does_not_read_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("rounds = " + "1" * 5_000)
    with pytest.raises(TermsError, match=r"run\.toml are not valid TOML"):
        RunConfig.load(path)


def test_every_term_is_described() -> None:
    assert all(row.description for row in (*flat_rows(), *table_rows()))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400)
    | st.sampled_from(["\ud800", "\x1b[2J", "x" * 501, "0.1,0.01", "auto"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@pytest.mark.parametrize("value", ["x" * 501, "he\x1bad", "head\nstays", "\u202ehead", [], None])
def test_a_setting_is_one_short_printable_value(value: object) -> None:
    words = r"^run config: .work. 'work.stays' must be a finite number, true, false or a line"
    for kind in ({}, {"work.kind": "joint"}):
        with pytest.raises(TermsError, match=words):
            RunTerms.from_json(json.dumps({**kind, "work": {"stays": value}}))


@pytest.mark.parametrize("table", ["work", "after.tuning"])
@pytest.mark.parametrize("key", ["x" * 60, "st\x1bays", "st\nays", "\u202estays", "a.b.c", ""])
def test_no_key_of_a_table_is_shown_unless_it_has_the_form_of_one(table: str, key: str) -> None:
    words = (
        r"^run config: '(work|after)' has a key in another form than a setting of \[[a-zK.ND]+\]$"
    )
    with pytest.raises(TermsError, match=words.replace("K.ND", ".KIND")):
        RunTerms.from_json(json.dumps({f"{table}.{key}": 1}))


def test_a_table_has_a_bounded_number_of_settings() -> None:
    for table in ("work", "second", "after"):
        settings = {f"{table}.a{number}.b" if table == "after" else f"{table}.a{number}": 1
                    for number in range(101)}  # fmt: skip
        with pytest.raises(TermsError, match=f"^run config: '{table}' has more than 100 settings$"):
            RunTerms.from_json(json.dumps(settings))


def test_every_text_of_the_terms_is_bounded_and_refused_by_its_key() -> None:
    texts = {
        field.alias or kebab(name)
        for name, field in RunTerms.model_fields.items()
        if field.annotation is str
    } - FORMED
    limits = {**dict.fromkeys(texts, 500), "run-id": 64, "schema": 65_536}
    assert limits.keys() >= {"run-id", "schema", "model", "dataset", "purpose"}
    for key, limit in limits.items():
        assert RunTerms.parse({key: "x" * limit}).as_config()[key] == "x" * limit
        with pytest.raises(TermsError, match=f"'{key}' is longer than {limit} .*; "):
            RunTerms.parse({key: "x" * (limit + 1)})
        with pytest.raises(TermsError, match=f"'{key}' (must be|holds)"):
            RunTerms.parse({key: "x\ud800"})
        with pytest.raises(TermsError, match=f"'{key}' (must be|holds)"):
            RunTerms.parse({key: "x\x1b"})


def test_all_texts_at_their_limits_fit_into_a_message() -> None:
    """The longest texts in JSON: a letter of two bytes has six characters there, another twelve."""
    keys = set(RunTerms.keys()) - {"run-id", "schema", *FORMED}
    texts = [k for k in keys if RunTerms.model_fields[RunTerms.names()[k]].annotation is str]
    sites = [f"SHA256:{number:043}" for number in range(322)]
    terms = RunTerms.parse({
        **dict.fromkeys(texts, "\U00020000" * 500), "run-id": "\U00020000" * 64,
        "schema": "ä" * 32_768, "sites": ",".join(sites[:-1]),
    })  # fmt: skip
    with pytest.raises(TermsError, match="'sites' is longer than 16384"):
        RunTerms.parse({"sites": ",".join(sites)})
    assert RunTerms.from_json(terms.to_json()) == terms
    long = terms.to_json().ljust(MOST_TERMS)
    assert RunTerms.from_json(long) == terms
    with pytest.raises(TermsError, match="longer than 256000 characters"):
        RunTerms.from_json(long + " ")


def test_deep_json_and_long_numbers_are_no_other_error() -> None:
    for text in (
        '{"rounds":' + "[" * 100_000, '{"rounds":' + "1" * 5_000 + "}",
        '{"run-id":' + "1" * 4_000 + "}", '{"clip-norm":' + "1" * 400 + "}",
    ):  # fmt: skip
        try:
            RunTerms.from_json(text)
        except (TermsError, ValueError, OverflowError, RecursionError) as error:
            assert isinstance(error, TermsError), type(error)
        else:
            pytest.fail("these are no terms")
    with pytest.raises(TermsError, match="'run-id' must be a text in quotes"):
        RunTerms.parse({"run-id": 10**5_000})


def test_five_mistakes_are_named_and_one_gets_a_spelling() -> None:
    with pytest.raises(TermsError) as error:
        RunTerms.parse({**{f"rounds{i}": 1 for i in range(40)}, "clip-norm" * 9: 1})
    assert str(error.value) == (
        "run config: 'rounds0' is not a known key; did you mean 'rounds'?; "
        + "; ".join(f"'rounds{i}' is not a known key" for i in range(1, 5))
        + "; and 36 more mistakes"
    )
