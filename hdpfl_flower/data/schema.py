"""The public schema of the sites' tables: which columns are features, and how a cell becomes one.

A schema is part of a run's terms, so every site and the server read the same text. Bounds, fills
and categories are constants written in it, never statistics of a site's records: scaling by a
private mean would be an un-noised release.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from hdpfl_flower.config.validation import FROZEN, describe, kebab
from hdpfl_flower.data.columns import BLANK, value_key
from hdpfl_flower.data.placeholders import refuse_placeholders
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task

MAX_FEATURES = 10_000
"""A schema comes from the server: it must not make a site allocate without end."""

_PLAIN = re.compile(r"^[^\x00-\x1f\x7f]+$")
Name = Annotated[str, Field(pattern=_PLAIN.pattern)]
AList = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
Finite = Annotated[float, Field(allow_inf_nan=False)]
Bounds = Annotated[tuple[Finite, Finite], AList]
Texts = Annotated[tuple[str, ...], AList]
Names = Annotated[tuple[Name, ...], AList]


def _as_lists(value: Any) -> Any:
    """Return a list whose texts stand in lists of their own: ``"m"`` means ``["m"]``."""
    if not isinstance(value, (list, tuple)):
        return value
    return tuple((each,) if isinstance(each, str) else each for each in value)


Synonyms = Annotated[tuple[Texts, ...], BeforeValidator(_as_lists)]
"""A list of values, each of them a text, or a list of the texts that mean it."""

_ALIASES = Field((), description="Other names of the column; a table must have one of them alone.")


def _refuse_repeats(where: str, values: Iterable[str]) -> None:
    """Refuse an empty value, and two values that no reader of a table could distinguish."""
    seen: dict[float | bytes, str] = {}
    for value in values:
        key = value_key(value)
        if key == b"":
            raise ValueError(f"{where}: a value is empty; an empty cell is a missing one")
        if key in seen:
            raise ValueError(f"{where}: '{seen[key]}' and '{value}' are the same value; keep one")
        seen[key] = value


def _middle(bounds: tuple[float, float]) -> float:
    return bounds[0] / 2 + bounds[1] / 2


def _half_width(bounds: tuple[float, float]) -> float:
    """Return half the width; halves first, so that bounds near 1e308 do not overflow."""
    return bounds[1] / 2 - bounds[0] / 2


def _refuse_empty(where: str, bounds: tuple[float, float]) -> None:
    if _half_width(bounds) < np.finfo(np.float64).tiny:
        raise ValueError(f"{where}: 'bounds' must be [low, high] with low below high")


class NumberColumn(BaseModel):
    """A number, clipped to public bounds and scaled to [-1, 1].

    The middle of the bounds becomes 0, so that an ordinary or a missing value adds nothing to the
    length of a record's gradient, which the run clips. (On the heart data DP-SGD learned as well
    as with [0, 1] or slightly better.)
    """

    model_config = FROZEN

    name: Name = Field(description="Name of the column in the table's header.")
    type: Literal["number"] = Field(description="`number`.")
    bounds: Bounds = Field(description="[low, high]: what lies outside is clipped to them.")
    fill: Finite | None = Field(
        None, description="What a missing value becomes; none: the middle of the bounds."
    )
    missing: Texts = Field((), description="Marks of a missing value in this column alone.")
    aliases: Names = _ALIASES

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _refuse_empty(f"column '{self.name}'", self.bounds)
        if not self.bounds[0] <= self.fill_value <= self.bounds[1]:
            raise ValueError(f"column '{self.name}': 'fill' lies outside 'bounds'")
        return self

    @property
    def fill_value(self) -> float:
        """The number that stands for a missing one."""
        return _middle(self.bounds) if self.fill is None else self.fill

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The column's own name."""
        return (self.name,)

    def scale(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return ``values`` (n,), clipped to the bounds, scaled to [-1, 1]; finite for finite."""
        clipped = np.clip(values, *self.bounds)
        return np.clip((clipped - _middle(self.bounds)) / _half_width(self.bounds), -1, 1)


class CategoryColumn(BaseModel):
    """One of a list of values; a feature each, 1 for the value that the cell holds, else 0."""

    model_config = FROZEN

    name: Name = Field(description="Name of the column in the table's header.")
    type: Literal["category"] = Field(description="`category`.")
    categories: Annotated[Synonyms, Field(min_length=1)] = Field(
        description="The values that the column may hold; each becomes a feature. A list in place "
        "of a value holds its synonyms, the first of which names it."
    )
    fill: str = Field("", description="What a missing or unknown value becomes; '': all zeros.")
    missing: Texts = Field((), description="Marks of a missing value in this column alone.")
    aliases: Names = _ALIASES

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        where = f"column '{self.name}': 'categories'"
        if not all(self.categories):
            raise ValueError(f"{where}: a list of synonyms is empty; name a value, or remove it")
        _refuse_repeats(where, (value for values in self.categories for value in values))
        if value_key(self.fill) != b"" and self.fill_index < 0:
            raise ValueError(f"column '{self.name}': 'fill' is none of 'categories'")
        return self

    @property
    def fill_index(self) -> int:
        """The index of ``fill`` among the categories, -1 for all zeros."""
        key = value_key(self.fill)
        for index, values in enumerate(self.categories):
            if key in map(value_key, values):
                return index
        return -1

    @property
    def feature_names(self) -> tuple[str, ...]:
        """``column=value``, a name a category."""
        return tuple(f"{self.name}={values[0]}" for values in self.categories)


Column = Annotated[NumberColumn | CategoryColumn, Field(discriminator="type")]


class EventColumn(BaseModel):
    """Which records had their event at the label's time; the others were censored then."""

    model_config = FROZEN

    column: Name = Field(description="Name of the column.")
    occurred: Annotated[Texts, Field(min_length=1)] = Field(
        description="The values that mean that the event occurred at the time."
    )
    censored: Annotated[Texts, Field(min_length=1)] = Field(
        description="The values that mean that it had not occurred when observation ended."
    )
    aliases: Names = _ALIASES

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _refuse_repeats("'event'", (value for values in self.groups for value in values))
        return self

    @property
    def groups(self) -> tuple[Texts, Texts]:
        """The values of no event, at index 0, and of the event."""
        return self.censored, self.occurred


class Label(BaseModel):
    """What is to be predicted: one of ``classes``, a number in ``bounds``, or a time to an event.

    Survival has a column of times, a column of events, and the public ``edges`` of intervals: the
    model learns the hazard of the event in each (``Task.survival``).
    """

    model_config = FROZEN

    column: Name = Field(description="Name of the column; for survival that of the time.")
    classes: Annotated[tuple[Texts, ...], AList] = Field(
        (), description="A class a list of the values that mean it."
    )
    bounds: Bounds | None = Field(
        None, description="Regression: clipped to these, then scaled to [0, 1]."
    )
    edges: Annotated[tuple[Finite, ...], AList] = Field(
        (),
        description="Survival: the ends of the intervals, rising from above 0. A time on an end "
        "lies in the interval that it ends; one beyond the last is censored there.",
    )
    event: EventColumn | None = Field(
        None, description="Survival: the column of events: the table `[label.event]`."
    )
    aliases: Names = _ALIASES

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.classes) + (self.bounds is not None) + bool(self.edges) != 1:
            raise ValueError(
                "give either 'classes' (a list of lists of values), 'bounds' (regression) or "
                "'edges' (survival)"
            )
        if bool(self.edges) != (self.event is not None):
            raise ValueError("survival needs both 'edges' and the table 'label.event'; add one")
        if self.edges:
            if not all(low < high for low, high in pairwise((0.0, *self.edges))):
                raise ValueError("'edges' must rise, the first from above 0")
        elif self.bounds is not None:
            _refuse_empty("label", self.bounds)
        elif len(self.classes) < 2 or not all(self.classes):
            raise ValueError("'classes' needs at least two classes, each with a value")
        _refuse_repeats("'classes'", (value for values in self.classes for value in values))
        return self

    def scale(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """Return regression targets ``values`` (n,) clipped to the bounds, scaled to [0, 1]."""
        low, half = self._range()
        # Halves before the difference, which may overflow for bounds near 1e308.
        scaled = (np.clip(values, low, (self.bounds or (0, 1))[1]) / 2 - low / 2) / half
        return np.clip(scaled, 0, 1).astype(np.float32)

    def unscale(self, predictions: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return ``predictions`` of a regression model in the label's own units."""
        low, half = self._range()
        return low + predictions.astype(np.float64) * half * 2

    def _range(self) -> tuple[float, float]:
        bounds = self.bounds or (0.0, 1.0)
        return bounds[0], _half_width(bounds)


class Schema(BaseModel):
    """Which columns of a table are features, which one is the label, and how each is read.

    Frozen; unknown keys and wrong types are refused by name. The order of ``columns`` is the order
    of the features.
    """

    model_config = FROZEN

    label: Label = Field(description="The column to predict: the table `[label]`.")
    columns: Annotated[tuple[Column, ...], AList, Field(min_length=1)] = Field(
        description="The features, in this order: a table `[[columns]]` each."
    )
    id: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")] = Field(
        "", description="Column that names the protected unit (a patient); never a feature."
    )
    missing: Texts = Field(("", "?", "NA"), description="Marks of a missing value.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        event = self.label.event
        names = [self.label.column, *self.label.aliases, *([self.id] if self.id else [])]
        names += [event.column, *event.aliases] if event else []
        names += [name for column in self.columns for name in (column.name, *column.aliases)]
        for name, times in Counter(names).items():
            if times > 1:
                raise ValueError(
                    f"column '{name}' is named twice; label, id, columns and aliases must differ"
                )
            if name != name.strip(BLANK):
                raise ValueError(f"column '{name}' has a blank at an end; remove it")
        for column in self.columns:
            groups = column.categories if isinstance(column, CategoryColumn) else ()
            values = (value for values in groups for value in values)
            self._refuse_missing(f"column '{column.name}'", column.missing, values)
        groups = event.groups if event else self.label.classes
        self._refuse_missing("label", (), (v for values in groups for v in values))
        outputs = max(len(self.label.classes), len(self.label.edges))
        if len(self.feature_names) > MAX_FEATURES or outputs > MAX_FEATURES:
            raise ValueError(f"more than {MAX_FEATURES} features, classes or intervals; use fewer")
        return self

    def _refuse_missing(self, where: str, own: Texts, values: Iterable[str]) -> None:
        marks = {value_key(mark) for mark in (*self.missing, *own)}
        for value in values:
            if value_key(value) in marks:
                raise ValueError(f"{where}: '{value}' is also a mark in 'missing'; remove one")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of each feature, in their order."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def task(self) -> Task:
        """The public shape of what is learned: a row of features; classes, a number, intervals."""
        shape = (len(self.feature_names),)
        if self.label.edges:
            return Task.survival(shape, len(self.label.edges))
        if self.label.bounds is not None:
            return Task.regression(shape)
        return Task.classification(shape, len(self.label.classes))

    @staticmethod
    def parse(text: str) -> Schema:
        """Return the schema written in the TOML ``text``.

        Raises:
            DataError: not TOML, keys unknown or missing, values wrong or still to be chosen;
                named on one line.
        """
        return _parsed(text)

    @staticmethod
    def load(name_or_text: str) -> Schema:
        """Return the schema of a built-in name such as ``heart``, or of TOML text.

        Raises:
            DataError: no such name, or a wrong text.
        """
        return Schema.parse(schema_text(name_or_text))


@lru_cache(maxsize=8)
def _parsed(text: str) -> Schema:
    """Return the schema; a simulated site asks for the same one with every message."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        raise DataError("schema: not valid TOML; check it with a TOML linter") from None
    refuse_placeholders(data)
    try:
        return Schema.model_validate(data)
    except ValidationError as error:
        raise DataError(f"schema: {_in_words(error, data)}") from None


def schema_text(name_or_text: str) -> str:
    """Return the TOML text of a built-in schema, or the text itself (it holds '=' or a newline).

    No path is read here: terms come from a server, which must not name a file of the site
    (``config/schema_file.py`` reads one, where the user's own run config is read).

    Raises:
        DataError: there is no built-in schema of that name.
    """
    if "=" in name_or_text or "\n" in name_or_text:
        return name_or_text
    known = _built_in()
    if name_or_text not in known:
        raise DataError(
            f"schema: there is no built-in one of that name; choose {', '.join(known)}, "
            "give TOML text, or in a run config the path of a file that ends in .toml"
        )
    return known[name_or_text]


@cache
def _built_in() -> Mapping[str, str]:
    """Return the texts of the built-in schemas by their names, sorted."""
    paths = sorted(Path(__file__).with_name("schemas").glob("*.toml"))
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


def _in_words(error: ValidationError, data: dict[str, Any]) -> str:
    """Return the mistakes on one line, a column called by its name and not by its number."""
    models: dict[str, type[BaseModel]] = {
        "label": Label,
        "event": EventColumn,
        "number": NumberColumn,
        "category": CategoryColumn,
    }
    tables = {item["loc"][:-1] for item in error.errors(include_url=False, include_input=False)}
    known = [
        ".".join(map(str, (*table, kebab(key))))
        for table in tables
        for key in models.get(str(table[-1]) if table else "", Schema).model_fields
    ]

    def named(match: re.Match[str]) -> str:
        column = data["columns"][int(match[1])]
        name = column.get("name") if isinstance(column, dict) else None
        plain = isinstance(name, str) and _PLAIN.match(name)  # the text may be a server's
        return f"columns.{name}" if plain else f"columns.{match[1]}"

    text = re.sub(r"\bcolumns\.(\d+)(\.number|\.category)?", named, describe(error, known))
    text = text.replace(".type' is missing", ".type' is missing; give 'number' or 'category'")
    return " ".join(text.split())
