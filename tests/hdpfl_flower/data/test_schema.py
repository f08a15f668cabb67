"""The schema of a table is strict: every mistake is named on one line."""

from __future__ import annotations

import itertools
import sys
import timeit
import tracemalloc
from collections.abc import Callable
from string import ascii_lowercase

import numpy as np
import pytest

from hdpfl_flower.config.terms import MOST_SCHEMA
from hdpfl_flower.data import schema
from hdpfl_flower.data.schema import MAX_FEATURES, NumberColumn, Schema, schema_text
from hdpfl_flower.data.values import value_key
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task
from tests.hdpfl_flower.data.schema_text import TEXT

SCHEMA = Schema.parse(TEXT)
REGRESSION = Schema.parse(
    '[label]\ncolumn = "y"\nbounds = [0, 70]\n'
    '[[columns]]\nname = "a"\ntype = "number"\nbounds = [0, 10]\n'
)


def typical(bounds: str, values: str) -> Schema:
    return Schema.parse(
        '[label]\ncolumn = "y"\nbounds = [0, 70]\n[[columns]]\nname = "a"\ntype = "number"\n'
        f"bounds = {bounds}\ntypical = {values}\n"
    )


def test_typical_values_become_the_unit_of_a_feature() -> None:
    schema = typical("[0, 1000]", "[100, 10]")
    (column,) = schema.columns
    assert isinstance(column, NumberColumn)
    assert schema.gain == 2.5  # of one feature
    scaled = column.scale(np.array([100.0, 110.0, 90.0, 135.0, 1000.0, -5.0]), schema.gain)
    assert scaled.tolist() == [0.0, 2.5, -2.5, 8.75, 10.0, -10.0]
    assert column.fill_value == 100  # a missing value adds nothing


def test_typical_values_of_the_widest_bounds_stay_finite() -> None:
    (column,) = typical("[-1e308, 1e308]", "[9e307, 1e305]").columns
    assert isinstance(column, NumberColumn)
    assert column.scale(np.array([-1e308, 1e308]), 1.0).tolist() == [-4.0, 4.0]


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
        ("fill = 2.5", "fil = 2.5", "'columns.a.fil' is not a known key; did you mean"),
        ("fill = 2.5", 'fill = "x"', "'columns.a.fill' must be a number"),
        ("fill = 2.5", "fill = nan", "fill"),
        ("fill = 2.5", "fill = 11", "'fill' lies outside 'bounds'"),
        ("bounds = [0, 10]", "bounds = [3, 3]", "low below high"),
        ("bounds = [0, 10]", "bounds = [0, inf]", "bounds"),
        ("bounds = [0, 10]", "bounds = [0, 5e-324]", "low below high"),
        ("bounds = [0, 10]", "bounds = 3", "bounds"),
        ("bounds = [0, 10]\n", "", "bounds' is missing"),
        ("bounds = [0, 10]", "bounds = [0, 10]\ntypical = [5, 0]", "'typical' must be"),
        ("bounds = [0, 10]", "bounds = [0, 10]\ntypical = [11, 1]", "'typical' must be"),
        ("bounds = [0, 10]", "bounds = [0, 10]\ntypical = [5, 6]", "'typical' must be"),
        ("bounds = [0, 10]", "bounds = [0, 10]\ntypical = [5, -1]", "'typical' must be"),
        ("bounds = [0, 10]", "bounds = [0, 10]\ntypical = [5, nan]", "typical"),
        ("bounds = [0, 10]", "bounds = [0, 10]\ntypical = 5", "typical"),
        ('type = "category"', 'type = "category"\ntypical = [5, 1]', "not a known key"),
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
        ('["1", "2", "rot, grün"]', '["1", ["<choose>"]]', "to be chosen: 'columns.c.categories'"),
        ('[["no", "0"], ["yes", "1", "2"]]', '[["<choose>"], ["x"]]', "chosen: 'label.classes'"),
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
    words = map("".join, itertools.product(ascii_lowercase, repeat=3))
    listed = ",".join(f'"{word}"' for word in itertools.islice(words, MAX_FEATURES))
    most = f'{LABELLED}[[columns]]\nname = "c"\ntype = "category"\ncategories = [{listed}]\n'
    assert Schema.parse(most).width == MAX_FEATURES
    for text, words_of in (
        ("a = " + "[" * 50_000, "brackets"), (most + NUMBER, "more than 10000 features"),
        ("a = \ud800", "half of a character"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=words_of):
            Schema.parse(text)
    for name in ("", "../heart", "heart.toml", "/etc/passwd", "hearts"):
        with pytest.raises(DataError, match="no built-in schema"):
            Schema.load(name)


def test_extreme_bounds_stay_finite() -> None:
    for low, high in ((-1.7e308, 1.7e308), (1e15, 1e15 + 2), (0.0, 1e-300), (1e308, 1.1e308)):
        text = TEXT.replace("bounds = [0, 10]\nfill = 2.5", f"bounds = [{low!r}, {high!r}]")
        column = Schema.parse(text).columns[0]
        assert column.type == "number"
        scaled = column.scale(
            np.array([low, high, -1.79e308, 1.79e308, 0.0, column.fill_value]), 1.0
        )
        assert np.isfinite(scaled).all()
        np.testing.assert_allclose(scaled[:2], [-1, 1])
        assert abs(scaled[-1]) < 1e-9


LABELLED = '[label]\ncolumn = "y"\nclasses = [["a"], ["b"]]\n'
NUMBER = '[[columns]]\nname = "x"\ntype = "number"\nbounds = [0, 1]\n'


def many(form: str, size: int) -> str:
    """Return about ``size`` characters of ``form``, a number in each."""
    return "".join(form.format(number) for number in range(size // (len(form) + 2)))


SHAPES: dict[str, Callable[[int], str]] = {
    "a key of many parts": lambda size: "a." * (size // 2) + "a = 1",
    "a quoted key of many parts": lambda size: '"a" . ' * (size // 6) + "a = 1",
    "a table's name of many parts": lambda size: f"[{'a.' * (size // 4)}a]\n" + many(
        "k{} = 1\n", size // 2),
    "arrays in arrays": lambda size: f"a = {'[' * size}",
    "tables in tables": lambda size: f"a = {'{a = ' * (size // 5)}",
    "unknown keys": lambda size: LABELLED + NUMBER + many("k{} = 1\n", size),
    "columns with unknown keys": lambda size: LABELLED + many(
        '[[columns]]\ntype = "number"\nnaem = {}\n', size),
    "columns without a type": lambda size: LABELLED + "[[columns]]\n" * (size // 12),
    "a long unknown key": lambda size: LABELLED + NUMBER + "k" * size + " = 1\n",
    "marks and columns": lambda size: (
        "missing = [" + many('"m{}",', size // 2) + "]\n" + LABELLED
        + many('[[columns]]\nname = "x{}"\ntype = "number"\nbounds = [0, 1]\n', size // 2)),
    "values still to be chosen": lambda size: (
        f"[{'k' * (size // 2)}]\n" + many('k{} = "<choose>"\n', size // 2)),
    "categories": lambda size: (
        f'{LABELLED}[[columns]]\nname = "{"c" * 400}"\ntype = "category"\ncategories = ['
        + many('"{}",', size) + "]\n"),
    "digits": lambda size: LABELLED + NUMBER + f"fill = 0x{'f' * size}\n",
    "texts that do not end": lambda size: 'a = """' + '""\\\n' * (size // 4),
}  # fmt: skip
"""Texts of any size that made a reader's work grow faster than they do, or might."""


def work(text: str) -> tuple[int, int]:
    """Return the calls and the peak of memory of reading a schema, whatever becomes of it."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    tracemalloc.start()
    read(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sys.setprofile(count)
    read(text)
    sys.setprofile(None)
    return calls, peak


def read(text: str) -> None:
    """Read a schema anew; an error is short, and is one of data."""
    schema._parsed.cache_clear()
    try:
        Schema.parse(text)
    except (DataError, RecursionError) as error:
        assert isinstance(error, DataError) and len(str(error)) < 1000


@pytest.mark.parametrize("shape", SHAPES)
def test_a_text_of_twice_the_size_takes_twice_the_work(shape: str) -> None:
    """Before: 61 KB of ``a.a.a… = 1`` took 1.9 GB, and a site reads it before any consent."""
    work(SHAPES[shape](100))  # what is made once
    (calls, peak), (more, higher) = (work(SHAPES[shape](size)) for size in (8_000, 16_000))
    assert more < 2.5 * calls + 1000
    assert higher < 2.5 * peak + 50_000


def test_no_digit_of_a_value_is_read_twice() -> None:
    """Before: the pattern of a number went back over all of them where a letter followed."""

    def seconds(end: str) -> float:
        value = "1" * 20_000 + end
        return min(timeit.repeat(lambda: value_key(value), number=1, repeat=3))

    assert seconds("x") < 100 * seconds("e-19999") + 0.05


def test_what_a_schema_may_have_is_read_and_what_is_beyond_is_refused() -> None:
    inline = '{{name="x{}",type="number",bounds=[0,1]}},'
    listed = "".join(map(inline.format, range(1_000)))
    full = f"{LABELLED}".replace("[label]", f"columns=[{listed}]\n[label]") + "#"
    good = full + " " * (MOST_SCHEMA - len(full))
    assert Schema.parse(good).width == 1_000
    deepest = '[{name="x",type="category",categories=[["1","2"]]}]'
    assert Schema.parse(f"columns={deepest}\n{LABELLED}").width == 1
    event = '[label]\ncolumn="y"\nedges=[1.5]\nevent . "column"="e"\nevent.occurred=["1"]\n'
    assert Schema.parse(event + 'event.censored=["0"]\n' + NUMBER).label.event is not None
    texts = 'aliases = [\'[[[[[\', "{{{{{", """[[[a.b.c.d.e"]""""]  # [[[[[ a.b.c.d.e.f\n'
    assert Schema.parse(LABELLED + NUMBER + texts).columns[0].aliases[2] == '[[[a.b.c.d.e"]"'
    assert Schema.parse(LABELLED + NUMBER.replace('"x"', f'"{"x" * 500}"')).width == 1
    for text, words in (
        (good + " ", "longer than 65536 bytes"),
        ("# ä" + good[:-3], "longer than 65536 bytes"),
        (f"columns={deepest}\n{LABELLED}".replace('"1"', '["1"]'), "more than 4 brackets"),
        (LABELLED + NUMBER + "a.b.c.d=1", "more than 3 parts"),
        (LABELLED + NUMBER.replace('"x"', f'"{"x" * 501}"'), "longer than 500 characters"),
        ('"columns.9" = 1\n' + LABELLED + NUMBER, "'columns.9' is not a known key"),
        (f"# \ud800\n{LABELLED}{NUMBER}", "half of a character"),
        (f"# \x1b\n{LABELLED}{NUMBER}", "control character"),
    ):
        with pytest.raises(DataError, match=words) as error:
            Schema.parse(text)
        assert "\n" not in str(error.value)
    try:
        Schema.parse(LABELLED + NUMBER + "fill = " + "1" * 5000)
    except (DataError, ValueError) as found:
        assert str(found).startswith("schema: not valid TOML")
