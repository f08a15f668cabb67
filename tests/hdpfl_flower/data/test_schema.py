"""The schema of a table is strict: every mistake is named on one line."""

from __future__ import annotations

import numpy as np
import pytest

from hdpfl_flower.data.schema import MAX_FEATURES, Schema, schema_text
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task
from tests.hdpfl_flower.data.schema_text import TEXT

SCHEMA = Schema.parse(TEXT)
REGRESSION = Schema.parse(
    '[label]\ncolumn = "y"\nbounds = [0, 70]\n'
    '[[columns]]\nname = "a"\ntype = "number"\nbounds = [0, 10]\n'
)


def test_schema_gives_task_and_names() -> None:
    assert SCHEMA.task == Task.classification((5,), 2)
    assert SCHEMA.feature_names == ("a", "c=1", "c=2", "c=rot, grün", "d")
    assert REGRESSION.task == Task.regression((1,))
    assert Schema.load(TEXT) == SCHEMA
    heart = Schema.load("heart")
    assert heart.task.loss == "logistic"
    assert len(heart.columns) == 13
    assert Schema.parse(schema_text("heart")) == heart


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "fill = 2.5",
            "fil = 2.5",
            "'columns.a.fil' is not a known key; did you mean 'columns.a.fill'",
        ),
        ("fill = 2.5", 'fill = "x"', "'columns.a.fill' must be a number"),
        ("fill = 2.5", "fill = nan", "fill"),
        ("fill = 2.5", "fill = 11", "'fill' lies outside 'bounds'"),
        ("bounds = [0, 10]", "bounds = [3, 3]", "low below high"),
        ("bounds = [0, 10]", "bounds = [0, inf]", "bounds"),
        ("bounds = [0, 10]", "bounds = [0, 5e-324]", "low below high"),
        ("bounds = [0, 10]", "bounds = 3", "bounds"),
        ("bounds = [0, 10]\n", "", "bounds' is missing"),
        ('name = "d"', 'name = "a"', "column 'a' is named twice"),
        ('name = "d"', 'name = "y"', "column 'y' is named twice"),
        ('name = "d"', 'name = "d "', "blank at an end"),
        ('name = "d"', 'name = "d\\n"', "name"),
        ('name = "d"', 'name = ""', "name"),
        ('type = "category"', 'type = "word"', "type"),
        ('fill = "2"', 'fill = "3"', "none of 'categories'"),
        ('["1", "2", "rot, grün"]', "[]", "categories"),
        ('["1", "2", "rot, grün"]', '["1", "2", " 1.0"]', "same value"),
        ('["1", "2", "rot, grün"]', '["2", "?"]', "also a mark in 'missing'"),
        ('["1", "2", "rot, grün"]', '["2", ["3", "?"]]', "also a mark in 'missing'"),
        ('["1", "2", "rot, grün"]', '["2", ["3", "2.0"]]', "same value"),
        ('["1", "2", "rot, grün"]', '["2", []]', "a list of synonyms is empty"),
        ('["1", "2", "rot, grün"]', '["2", 3]', "'columns.c.categories.1' must be a list"),
        ('["1", "2", "rot, grün"]', '["2", [3]]', "'columns.c.categories.1.0' must be a text"),
        ('name = "d"', 'name = "d"\naliases = ["y"]', "column 'y' is named twice"),
        ('name = "d"', 'name = "d"\naliases = ["d"]', "column 'd' is named twice"),
        ('name = "d"', 'name = "d"\naliases = [""]', "'columns.d.aliases.0' is empty"),
        ('column = "y"', 'column = "y"\naliases = ["a"]', "column 'a' is named twice"),
        ('name = "d"', 'name = "<choose>"', "still to be chosen: 'columns.2.name'"),
        ("fill = 2.5", 'fill = "<choose>"', "still to be chosen: 'columns.a.fill'"),
        ("[0, 10]", '["<choose>", 10]', "still to be chosen: 'columns.a.bounds'"),
        ('["1", "2", "rot, grün"]', '["<choose>"]', "still to be chosen: 'columns.c.categories'"),
        (
            '["1", "2", "rot, grün"]',
            '["1", ["<choose>"]]',
            "still to be chosen: 'columns.c.categories'",
        ),
        (
            '[["no", "0"], ["yes", "1", "2"]]',
            '[["<choose>"], ["x"]]',
            "still to be chosen: 'label.classes'",
        ),
        ('["1", "2", "rot, grün"]', '["2", " "]', "empty"),
        ('[["no", "0"], ["yes", "1", "2"]]', '[["no", "0"]]', "at least two classes"),
        ('[["no", "0"], ["yes", "1", "2"]]', '[["no"], []]', "each with a value"),
        ('[["no", "0"], ["yes", "1", "2"]]', '[["0"], ["1", "+0e5"]]', "same value"),
        ('classes = [["no", "0"], ["yes", "1", "2"]]', "", "either 'classes'"),
        ("[label]", "[label]\nbounds = [0, 1]", "either 'classes'"),
        ("[label]", 'id = "a"\n[label]', "column 'a' is named twice"),
        ("[label]", "rubbish", "not valid TOML"),
        ("[label]", "columns = 3\n[label]", "not valid TOML"),
        ("[label]", "clas = 3\n[label]", "'clas' is not a known key"),
        ("[label]", "[label]\ncolum = 3", "did you mean 'label.column'"),
        ("[label]", "mising = []\n[label]", "did you mean 'missing'"),
    ],
)
def test_schema_mistakes_are_named_on_one_line(old: str, new: str, words: str) -> None:
    assert old in TEXT
    with pytest.raises(DataError) as caught:
        Schema.parse(TEXT.replace(old, new, 1))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_category_has_synonyms_and_one_feature() -> None:
    text = TEXT.replace('["1", "2", "rot, grün"]', '["1", ["2", "two", "zwei"], ["rot", "grün"]]')
    schema = Schema.parse(text.replace('fill = "2"', 'fill = "zwei"'))
    assert schema.feature_names == ("a", "c=1", "c=2", "c=rot", "d")
    column = schema.columns[1]
    assert column.type == "category"
    assert column.fill_index == 1
    assert Schema.parse(TEXT.replace('"1", "2", "rot', '["1"], "2", "rot')) == SCHEMA


def test_every_value_that_is_still_to_be_chosen_is_named() -> None:
    text = "".join(
        f'[[columns]]\nname = "k{i}"\ntype = "number"\nbounds = ["<choose>", "<choose>"]\n'
        for i in range(7)
    )
    with pytest.raises(DataError) as caught:
        Schema.parse(f'[label]\ncolumn = "y"\nclasses = [["no"], ["yes"]]\n{text}')
    assert "'columns.k4.bounds' and 2 more; write" in str(caught.value)
    assert "public knowledge" in str(caught.value)


def test_hostile_schemas_are_refused() -> None:
    many = ", ".join(f'"{i}"' for i in range(MAX_FEATURES))
    for text in ("a = " + "[" * 100_000, TEXT.replace('"1", "2", "rot, grün"', many), "a = \ud800"):
        with pytest.raises(DataError):
            Schema.parse(text)
    for name in ("", "../heart", "heart.toml", "/etc/passwd", "hearts"):
        with pytest.raises(DataError, match="no built-in one"):
            Schema.load(name)


def test_extreme_bounds_stay_finite() -> None:
    for low, high in ((-1.7e308, 1.7e308), (1e15, 1e15 + 2), (0.0, 1e-300), (1e308, 1.1e308)):
        text = TEXT.replace("bounds = [0, 10]\nfill = 2.5", f"bounds = [{low!r}, {high!r}]")
        column = Schema.parse(text).columns[0]
        assert column.type == "number"
        scaled = column.scale(np.array([low, high, -1.79e308, 1.79e308, 0.0, column.fill_value]))
        assert np.isfinite(scaled).all()
        np.testing.assert_allclose(scaled[:2], [-1, 1])
        assert abs(scaled[-1]) < 1e-9
