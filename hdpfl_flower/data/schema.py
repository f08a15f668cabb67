"""Public schema of the sites' tables: feature columns and encoding.

A schema is part of a run's terms, so every site and the server read the same text. Bounds, fills
and categories are constants written in it, never statistics of a site's records: scaling by a
private mean would be an un-noised release.
"""

from __future__ import annotations

import math
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

from hdpfl_flower.config.terms import MOST_CHARACTERS, schema_fault
from hdpfl_flower.config.toml_text import form_fault
from hdpfl_flower.config.validation import FROZEN, Location, describe, kebab, written
from hdpfl_flower.data.placeholders import refuse_placeholders
from hdpfl_flower.data.values import BLANK, value_key
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import MOST_DEVIATIONS, TYPICAL_LENGTH, Task

MAX_FEATURES = 10_000
"""Limit that stops a server's schema from exhausting a site's memory."""

LEAST_DEVIATION = 1e-6
"""Least typical deviation, as a share of half the width of the bounds."""

_PLAIN = re.compile(r"^[^\x00-\x1f\x7f]+$")
Name = Annotated[str, Field(pattern=_PLAIN.pattern, max_length=MOST_CHARACTERS)]
AList = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
Finite = Annotated[float, Field(allow_inf_nan=False)]
Bounds = Annotated[tuple[Finite, Finite], AList]
Texts = Annotated[tuple[str, ...], AList]
Names = Annotated[tuple[Name, ...], AList]


def _as_lists(value: Any) -> Any:
    """Wrap single texts in lists: ``"m"`` becomes ``["m"]``."""
    if not isinstance(value, (list, tuple)):
        return value
    return tuple((entry,) if isinstance(entry, str) else entry for entry in value)


Synonyms = Annotated[tuple[Texts, ...], BeforeValidator(_as_lists)]
"""List of values: each a text, or a list of synonyms."""

_ALIASES = Field(
    (), description="Other names of the column. A table must have exactly one of all its names."
)


def _refuse_repeats(where: str, values: Iterable[str]) -> None:
    """Refuse empty values and values with equal comparison keys."""
    seen: dict[float | bytes, str] = {}
    for value in values:
        key = value_key(value)
        if key == b"":
            raise ValueError(
                f"{where}: a value is empty, but an empty cell is a missing value; remove it"
            )
        if key in seen:
            raise ValueError(f"{where}: '{seen[key]}' and '{value}' are the same value; keep one")
        seen[key] = value


def _middle(bounds: tuple[float, float]) -> float:
    return bounds[0] / 2 + bounds[1] / 2


def _half_width(bounds: tuple[float, float]) -> float:
    """Return half the width without overflow for bounds near 1e308."""
    return bounds[1] / 2 - bounds[0] / 2


def _refuse_marks(
    where: str,
    groups: Iterable[Texts],
    marks: frozenset[float | bytes],
    column_marks: frozenset[float | bytes] = frozenset(),
) -> None:
    """Refuse values that are also marks of missing, global or own."""
    for value in (value for values in groups for value in values):
        # Two look-ups: a union for each column would be quadratic in a server's text.
        if (key := value_key(value)) in marks or key in column_marks:
            raise ValueError(f"{where}: '{value}' is also a mark in 'missing'; remove one")


def _refuse_empty(where: str, bounds: tuple[float, float]) -> None:
    if _half_width(bounds) < np.finfo(np.float64).tiny:
        raise ValueError(f"{where}: 'bounds' must be [low, high] with low below high")


class NumberColumn(BaseModel):
    """A number, clipped to public bounds and scaled.

    Without ``typical`` to [-1, 1]: the middle of the bounds becomes 0, so that an ordinary or a
    missing value does not add to the length of a record's gradient, which the run clips. (On the
    heart data DP-SGD learned as well as with [0, 1] or slightly better.) Bounds have to hold every
    record, so that most values lie in a small part of wide ones: with ``typical`` the mean becomes
    0 and a deviation :meth:`Schema.gain`.
    """

    model_config = FROZEN

    name: Name = Field(description="Name of the column in the table's header.")
    type: Literal["number"] = Field(description="`number`.")
    bounds: Bounds = Field(description="[low, high]. A value outside is clipped to them.")
    typical: Bounds | None = Field(
        None,
        description="[mean, deviation] of the column. Both must be public: take them from a "
        "textbook, a codebook or an earlier released message, never from a site's records. They "
        "improve the model if the bounds are wide, even if the mean is wrong by half a deviation, "
        "or the deviation is twice or half the true one. If the bounds are tight, leave them out "
        "unless they are right.",
    )
    fill: Finite | None = Field(
        None,
        description="The number that replaces a missing value. None: the typical mean, or else "
        "the middle of the bounds.",
    )
    missing: Texts = Field((), description="Marks of a missing value in only this column.")
    aliases: Names = _ALIASES

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _refuse_empty(f"column '{self.name}'", self.bounds)
        if not self.bounds[0] <= self.fill_value <= self.bounds[1]:
            raise ValueError(f"column '{self.name}': 'fill' lies outside 'bounds'")
        mean, deviation = self.typical or (self.fill_value, _half_width(self.bounds))
        # Half a width is the largest deviation that values within bounds can have.
        least = LEAST_DEVIATION * _half_width(self.bounds)
        if not (
            self.bounds[0] <= mean <= self.bounds[1]
            and least <= deviation <= _half_width(self.bounds)
        ):
            raise ValueError(
                f"column '{self.name}': 'typical' must be [mean, deviation], the mean within "
                "'bounds', the deviation above 0 and at most half of their width"
            )
        return self

    @property
    def fill_value(self) -> float:
        """Number in place of a missing one."""
        if self.fill is not None:
            return self.fill
        return self.typical[0] if self.typical else _middle(self.bounds)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of the column."""
        return (self.name,)

    def scale(self, values: npt.NDArray[np.float64], gain: float) -> npt.NDArray[np.float64]:
        """Return finite ``values`` (n,), clipped to bounds and scaled.

        Args:
            values: one a record.
            gain: feature of a value one typical deviation above the mean, :meth:`Schema.gain`.

        Returns:
            numbers in [-1, 1]; with ``typical`` in ±``MOST_DEVIATIONS`` · gain.
        """
        clipped = np.clip(values, *self.bounds)
        if self.typical is None:
            return np.clip((clipped - _middle(self.bounds)) / _half_width(self.bounds), -1, 1)
        mean, deviation = self.typical
        # A half before the difference, which may overflow for bounds near 1e308.
        deviations = 2 * ((clipped / 2 - mean / 2) / deviation)
        return gain * np.clip(deviations, -MOST_DEVIATIONS, MOST_DEVIATIONS)


class CategoryColumn(BaseModel):
    """A value from a list. Each category becomes a feature, which is 0 or 1."""

    model_config = FROZEN

    name: Name = Field(description="Name of the column in the table's header.")
    type: Literal["category"] = Field(description="`category`.")
    categories: Annotated[Synonyms, Field(min_length=1)] = Field(
        description="The values that the column may hold; each becomes a feature. A list in place "
        "of a value holds synonyms, and the first synonym names the feature."
    )
    fill: str = Field(
        "",
        description="The category that replaces a missing or unknown value. Empty: all "
        "features are zero.",
    )
    missing: Texts = Field((), description="Marks of a missing value in only this column.")
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
        """Index of ``fill`` among the categories; -1 means all zeros."""
        key = value_key(self.fill)
        for index, values in enumerate(self.categories):
            if key in map(value_key, values):
                return index
        return -1

    @property
    def feature_names(self) -> tuple[str, ...]:
        """``column=value`` for each category."""
        return tuple(f"{self.name}={values[0]}" for values in self.categories)


Column = Annotated[NumberColumn | CategoryColumn, Field(discriminator="type")]


class EventColumn(BaseModel):
    """The column that tells an event from censoring at the label's time."""

    model_config = FROZEN

    column: Name = Field(description="Name of the column.")
    occurred: Annotated[Texts, Field(min_length=1)] = Field(
        description="The values that mean that the event occurred at the time."
    )
    censored: Annotated[Texts, Field(min_length=1)] = Field(
        description="The values that mean that the event had not occurred when the "
        "observation ended."
    )
    aliases: Names = _ALIASES

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _refuse_repeats("'event'", (value for values in self.groups for value in values))
        return self

    @property
    def groups(self) -> tuple[Texts, Texts]:
        """Values of no event (index 0) and of the event."""
        return self.censored, self.occurred


class Label(BaseModel):
    """Target of the model: a class, a number in ``bounds``, or a survival time.

    Survival has a column of times, a column of events, and the public ``edges`` of intervals: the
    model learns the hazard of the event in each (``Task.survival``).
    """

    model_config = FROZEN

    column: Name = Field(description="Name of the column; for survival, the column of times.")
    classes: Annotated[tuple[Texts, ...], AList] = Field(
        (), description="The classes. Each is a list of the values that mean this class."
    )
    bounds: Bounds | None = Field(
        None,
        description="For a regression: the number is clipped to these bounds, then "
        "scaled to [0, 1].",
    )
    edges: Annotated[tuple[Finite, ...], AList] = Field(
        (),
        description="For survival: the ends of the intervals, rising, all above 0. A time that "
        "equals an end lies in the interval that ends there. A time beyond the last end is "
        "censored there.",
    )
    event: EventColumn | None = Field(
        None, description="For survival: the column of events, the table `[label.event]`."
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
        """Return regression targets (n,), clipped to bounds, scaled to [0, 1]."""
        low, half = self._range()
        # Halves before the difference, which may overflow for bounds near 1e308.
        scaled = (np.clip(values, low, (self.bounds or (0, 1))[1]) / 2 - low / 2) / half
        return np.clip(scaled, 0, 1).astype(np.float32)

    def unscale(self, predictions: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return regression ``predictions`` in the label's own units."""
        low, half = self._range()
        return low + predictions.astype(np.float64) * half * 2

    def _range(self) -> tuple[float, float]:
        bounds = self.bounds or (0.0, 1.0)
        return bounds[0], _half_width(bounds)


class Schema(BaseModel):
    """Features, label and encoding of a table's columns.

    Frozen; unknown keys and wrong types are refused by name. The order of ``columns`` is the order
    of the features.
    """

    model_config = FROZEN

    label: Label = Field(description="The column to predict: the table `[label]`.")
    columns: Annotated[tuple[Column, ...], AList, Field(min_length=1)] = Field(
        description="The features, in this order: one table `[[columns]]` for each."
    )
    id: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=MOST_CHARACTERS)] = Field(
        "",
        description="The column that names the protected unit (a patient). It is never a feature.",
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
        marks = frozenset(map(value_key, self.missing))
        for column in self.columns:
            groups = column.categories if isinstance(column, CategoryColumn) else ()
            column_marks = frozenset(map(value_key, column.missing))
            _refuse_marks(f"column '{column.name}'", groups, marks, column_marks)
        _refuse_marks("label", event.groups if event else self.label.classes, marks)
        outputs = max(len(self.label.classes), len(self.label.edges))
        if self.width > MAX_FEATURES or outputs > MAX_FEATURES:
            raise ValueError(f"more than {MAX_FEATURES} features, classes or intervals; use fewer")
        return self

    @property
    def width(self) -> int:
        """Number of features."""
        return sum(len(c.categories) if isinstance(c, CategoryColumn) else 1 for c in self.columns)

    @property
    def gain(self) -> float:
        """Feature of a value one typical deviation above the mean: 2.5/√d of d features.

        Of 1.5, 2.5, 4 and √d as the length of a typical record, 2.5 was within a point of the best
        on two small tables with wide bounds, at ε .3 and 1.
        """
        return TYPICAL_LENGTH / math.sqrt(self.width)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in order."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def task(self) -> Task:
        """Public task: a feature row to classes, a number, or intervals."""
        shape = (self.width,)
        if self.label.edges:
            return Task.survival(shape, len(self.label.edges))
        if self.label.bounds is not None:
            return Task.regression(shape)
        return Task.classification(shape, len(self.label.classes))

    @staticmethod
    def parse(text: str) -> Schema:
        """Return the schema in the TOML ``text``.

        Raises:
            DataError: too long or too deep, not TOML, keys unknown or missing, values wrong or
                still to be chosen; named on one line.

        Guarantees:
            Time and memory are linear in the text, and its size is checked first.
        """
        return _parsed(text)

    @staticmethod
    def load(name_or_text: str) -> Schema:
        """Return a built-in schema by name (``heart``), or parse TOML text.

        Raises:
            DataError: an unknown name, or a wrong text.
        """
        return Schema.parse(schema_text(name_or_text))


@lru_cache(maxsize=8)
def _parsed(text: str) -> Schema:
    """Return the schema, cached: simulated sites parse it per message."""
    _check_form(text)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError):  # TOML's, or of a number of 5,000 digits
        raise DataError("schema: not valid TOML; check it with a TOML linter") from None
    refuse_placeholders(data)
    try:
        return Schema.model_validate(data)
    except ValidationError as error:
        raise DataError(f"schema: {_in_words(error, data)}") from None


def _check_form(text: str) -> None:
    """Refuse text that is too long or nested too deeply; ``DataError`` states the limit."""
    if fault := schema_fault(text):
        raise DataError(f"schema: the text {fault}")
    if fault := form_fault(text):
        raise DataError(f"schema: {fault}")


def schema_text(name_or_text: str) -> str:
    """Return a built-in schema's TOML, or the text itself: it holds '=' or a newline.

    No path is read here: the terms come from a server, which must not name a file of the site
    (``config/named_files.py`` reads one, where the user's own run config is read).

    Raises:
        DataError: there is no built-in schema of that name.
    """
    if "=" in name_or_text or "\n" in name_or_text:
        return name_or_text
    texts = _built_in()
    if name_or_text not in texts:
        raise DataError(
            f"schema: there is no built-in schema of that name; choose {', '.join(texts)}, give "
            "TOML text, or, in a run config, give the path of a file that ends in .toml"
        )
    return texts[name_or_text]


@cache
def _built_in() -> Mapping[str, str]:
    """Return the built-in schemas' texts by name, sorted."""
    paths = sorted(Path(__file__).with_name("schemas").glob("*.toml"))
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


def _in_words(error: ValidationError, data: dict[str, Any]) -> str:
    """Return the validation errors on one line, columns by name."""
    models: dict[str, type[BaseModel]] = {
        "label": Label,
        "event": EventColumn,
        "number": NumberColumn,
        "category": CategoryColumn,
    }

    def name(location: Location) -> str:
        """Return the key, with the column's name for its number and type."""
        if location[:1] != ("columns",) or len(location) < 2:
            return written(location)
        column = data["columns"][location[1]]
        called = column.get("name") if isinstance(column, dict) else None
        plain = isinstance(called, str) and _PLAIN.match(called)  # the text may be a server's
        rest = location[3:] if location[2:3] in {("number",), ("category",)} else location[2:]
        return written(("columns", str(called) if plain else location[1], *rest))

    def known(location: Location) -> list[str]:
        table = location[:-1]
        model = models.get(str(table[-1]) if table else "", Schema)
        return [name((*table, kebab(key))) for key in model.model_fields]

    text = describe(error, known, name=name)
    text = text.replace(".type' is missing", ".type' is missing; give 'number' or 'category'")
    return " ".join(text.split())
