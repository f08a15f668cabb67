"""Task of records without a schema, as one typed value of the terms."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import AfterValidator, Field

from hdpfl_flower.config.kinds import Kind
from hdpfl_flower.config.settings import Count

MAX_NUMBERS = 2**20
"""Maximum numbers per record, to bound memory (3×512×512 fits)."""
MAX_OUTPUTS = 10_000
"""Maximum classes or intervals."""
_SHAPE = re.compile(r"\d{1,9}(,\d{1,9}){0,3}")


def _check_shape(text: str) -> str:
    if not text:
        return text
    if not _SHAPE.fullmatch(text):
        raise ValueError("must be one to four whole numbers with commas between, such as 1,28,28")
    shape = tuple(map(int, text.split(",")))
    if not 1 <= math.prod(shape) <= MAX_NUMBERS:
        raise ValueError(f"holds {math.prod(shape):,} numbers a record; give 1 to {MAX_NUMBERS:,}")
    return ",".join(map(str, shape))


def _more_than_one(number: int) -> int:
    if number == 1:
        raise ValueError("must be 2 or more")
    return number


Outputs = Annotated[Count, Field(le=MAX_OUTPUTS)]


class StatedTask(Kind):
    """Task of a record without names or bounds: images, arrays.

    A setting is open at its default: an own data set of a simulation fills it in.
    """

    key = "task"
    shape: Annotated[str, AfterValidator(_check_shape)] = Field(
        "", description="Shape of a record, such as 13 or 1,28,28 (channels, height, width)."
    )

    @property
    def number(self) -> int:
        """Classes or intervals; 0: open, or a regression."""
        return 0

    @property
    def open_settings(self) -> list[str]:
        """Names of the settings without a value."""
        return [key for key, value in self.as_config().items() if not value]


class Classification(StatedTask):
    """A class a record: the whole numbers from 0."""

    kind = "classification"
    classes: Annotated[Outputs, AfterValidator(_more_than_one)] = Field(
        0, description="Number of classes."
    )

    @property
    def number(self) -> int:
        """Classes; 0: open."""
        return self.classes


class Regression(StatedTask):
    """A number a record."""

    kind = "regression"


class Survival(StatedTask):
    """An event, or its censoring, in one of several intervals."""

    kind = "survival"
    intervals: Outputs = Field(0, description="Number of intervals in which it is observed.")

    @property
    def number(self) -> int:
        """Intervals; 0: open."""
        return self.intervals


TASKS: dict[str, type[StatedTask]] = {
    each.kind: each for each in (Classification, Regression, Survival)
}
"""Kinds by name."""
