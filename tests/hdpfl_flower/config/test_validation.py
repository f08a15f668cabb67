"""Every finding is in our words, names its key and shows no value: terms, profile, schema."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.config.validation import _OTHER
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError, HDPFLError

LABEL = '[label]\ncolumn = "y"\nclasses = [["0"], ["1"]]\n'
AGE = '[[columns]]\nname = "age"\n'
PYDANTIC = ("Input", "should", "Tuple", "tag", "discriminator", "valid", "instance", _OTHER)


def check_words(text: str) -> None:
    assert "\n" not in text
    assert [word for word in PYDANTIC if word in text] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LABEL + AGE + 'type = "secret"\n',
         "'columns.age.type' must be one of 'number', 'category'"),
        (LABEL + AGE + "type = 3\n", "'columns.age.type' must be one of 'number', 'category'"),
        (LABEL + AGE, "'columns.age.type' is missing; give 'number' or 'category'"),
        ("columns = [1]\n" + LABEL, "'columns.0' must be a table"),
        ("columns = []\n" + LABEL, "'columns' has too few entries: 1 at least"),
        (LABEL + AGE + 'type = "number"\nbounds = [0, 1, 2]\n',
         "'columns.age.bounds' has too many entries: 2 at most"),
        (LABEL + AGE + 'type = "number"\nbounds = [0, inf]\n',
         "'columns.age.bounds.1' must be a finite number"),
        (LABEL + AGE + 'type = "category"\ncategories = []\n',
         "'columns.age.categories' has too few entries: 1 at least"),
        (LABEL + '[[columns]]\nname = "a\\u001b[2J"\ntype = "number"\nbounds = [0, 1]\n',
         "'columns.0.name' is empty, or holds a control character"),
        (LABEL + '[[columns]]\nname = ""\ntype = "number"\nbounds = [0, 1]\n',
         "'columns.0.name' is empty, or holds a control character"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_schema_names_the_column_and_what_is_allowed(text: str, words: str) -> None:
    """Before: "Input tag 'int' found using 'type' does not match any of the expected tags"."""
    with pytest.raises(DataError) as error:
        Schema.parse(text)
    assert str(error.value) == f"schema: {words}"
    check_words(str(error.value))
    assert "secret" not in str(error.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
COLUMN = st.fixed_dictionaries(
    {},
    optional={
        "name": VALUES, "type": st.sampled_from(["number", "category", "x"]) | VALUES,
        "bounds": VALUES, "categories": VALUES, "fill": VALUES, "missing": VALUES,
    },
)  # fmt: skip
SCHEMA = st.fixed_dictionaries(
    {},
    optional={
        "label": st.fixed_dictionaries(
            {}, optional={"column": VALUES, "classes": VALUES, "bounds": VALUES}
        )
        | VALUES,
        "columns": st.lists(COLUMN | VALUES, max_size=3) | VALUES,
        "id": VALUES,
        "missing": VALUES,
    },
)
BUDGET = st.fixed_dictionaries({}, optional={"epsilon": VALUES, "delta": VALUES})
PROFILE = st.fixed_dictionaries(
    {},
    optional={
        "budget": BUDGET | VALUES, "run": BUDGET | VALUES,
        "training": st.fixed_dictionaries(
            {}, optional={"batch-size": VALUES, "declared-records": VALUES, "engine": VALUES}
        ),
        "data": st.fixed_dictionaries(
            {}, optional={"format": VALUES, "path": VALUES, "holdout": VALUES}
        ),
        "policy": st.fixed_dictionaries({}, optional={"strategies": VALUES, "runs": VALUES}),
        "ledger": st.fixed_dictionaries({}, optional={"path": VALUES, "anchor": VALUES}),
        "disclose": VALUES, "trust-server": VALUES, "reply-after": VALUES,
    },
)  # fmt: skip
TERMS = st.dictionaries(st.sampled_from(RunTerms.keys()), VALUES, max_size=5)


@settings(max_examples=200)
@given(TERMS)
def test_no_text_of_pydantics_reaches_who_writes_terms(data: dict[str, Any]) -> None:
    try:
        RunTerms.parse(data)
    except HDPFLError as error:
        check_words(str(error))


@settings(max_examples=200)
@given(PROFILE)
def test_no_text_of_pydantics_reaches_who_writes_a_profile(data: dict[str, Any]) -> None:
    try:
        Profile.parse(data)
    except HDPFLError as error:
        check_words(str(error))


@settings(max_examples=200)
@given(SCHEMA)
def test_no_text_of_pydantics_reaches_who_writes_a_schema(data: dict[str, Any]) -> None:
    """The parsed TOML, so that values are not bound to what TOML can hold."""
    from pydantic import ValidationError

    from hdpfl_flower.data.schema import _in_words

    try:
        Schema.model_validate(data)
    except ValidationError as error:
        text = _in_words(error, data)
        for column in data["columns"] if isinstance(data.get("columns"), list) else []:
            name = column.get("name") if isinstance(column, dict) else None
            text = text.replace(f"columns.{name}", "columns.NAME")
        assert [
            word for word in PYDANTIC[:-1] if word in text and word not in ("Value", "tag")
        ] == []
        assert _OTHER not in text
