"""Task of records without a schema, as one typed value of the terms."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from hdpfl_flower.config.kind import Kind
from hdpfl_flower.config.settings import Count

MAX_NUMBERS = 2**20
"""Maximum numbers per record, to bound memory (3×512×512 fits)."""
MAX_OUTPUTS = 10_000
"""Maximum classes or intervals."""
_SCALING = re.compile(r"-?\d{1,6}(\.\d{1,9})?(,-?\d{1,6}(\.\d{1,9})?){0,15}")
_WEIGHTS = re.compile(r"(balanced:)?(\d{1,9}(?:\.\d{1,9})?(?:,\d{1,9}(?:\.\d{1,9})?)+)")
_SCALES = re.compile(r"-?\d(\.\d{1,6})?:\d(\.\d{1,6})?(,-?\d(\.\d{1,6})?:\d(\.\d{1,6})?)*")
LEAST_SCALE = 0.01
"""Least deviation of a number column, in units of half the width of its bounds."""
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


def _check_scaling(text: str) -> str:
    if not text:
        return text
    if not _SCALING.fullmatch(text):
        raise ValueError("must be decimal numbers with commas between, such as 0.485,0.456,0.406")
    return text


def _check_deviations(text: str) -> str:
    if any(not float(number) > 0 for number in text.split(",") if text):
        raise ValueError("must be above 0")
    return text


def _more_than_one(number: int) -> int:
    if number == 1:
        raise ValueError("must be 2 or more")
    return number


def class_weights(text: str) -> tuple[float, ...]:
    """Return the weights of the classes' losses in a text; empty: none.

    Args:
        text: the weights, or ``balanced:`` and shares p of the classes (counts serve as well), for
            the weights min(p)/p. The largest is 1, so that no gradient grows and C, chosen for
            gradients without weights, clips no more of them.

    Raises:
        ValueError: it is neither.

    >>> class_weights("1,2.5"), class_weights("balanced:0.8,0.2")
    ((1.0, 2.5), (0.25, 1.0))
    """
    if not text:
        return ()
    match = _WEIGHTS.fullmatch(text)
    numbers = tuple(map(float, match[2].split(","))) if match else ()
    if not match or not all(numbers):
        raise ValueError(
            "must be one number above 0 for each class with commas between, such as 1,4, or "
            "'balanced:' and the classes' public shares, such as balanced:0.8,0.2"
        )
    return tuple(min(numbers) / share for share in numbers) if match[1] else numbers


def scales_in(text: str) -> list[tuple[float, float]]:
    """Return the mean and the deviation of each number column in a text of the terms.

    Both are in units of the column's public bounds as [-1, 1], and lie within them.

    Raises:
        ValueError: a number is out of range, or the text of another form.

    >>> scales_in("-0.52:0.14,0.1:0.5")
    [(-0.52, 0.14), (0.1, 0.5)]
    """
    if not text:
        return []
    if not _SCALES.fullmatch(text):
        raise ValueError("must be one MEAN:DEVIATION for each number column, with commas between")
    pairs = [pair.split(":") for pair in text.split(",")]
    scales = [(float(mean), float(deviation)) for mean, deviation in pairs]
    if not all(abs(mean) <= 1 and LEAST_SCALE <= scale <= 1 for mean, scale in scales):
        raise ValueError(
            "must lie within the bounds of the columns: means from -1 to 1, deviations from "
            f"{LEAST_SCALE:g} to 1"
        )
    return scales


def check_scales(text: str) -> str:
    """Return the text of :func:`scales_in` unchanged; raises ``ValueError`` for another one."""
    scales_in(text)
    return text


def _check_weights(text: str) -> str:
    class_weights(text)
    return text


ClassWeights = Annotated[str, Field(max_length=500), AfterValidator(_check_weights)]
Scaling = Annotated[str, AfterValidator(_check_scaling)]
Outputs = Annotated[Count, Field(le=MAX_OUTPUTS)]


class StatedTask(Kind):
    """Task of a record without names or bounds: images, arrays.

    A setting is open at its default: an own data set of a simulation fills it in.
    """

    key = "task"
    shape: Annotated[str, AfterValidator(_check_shape)] = Field(
        "", description="Shape of a record, such as 13 or 1,28,28 (channels, height, width)."
    )

    mean: Scaling = Field(
        "",
        description="Public means of the channels. They are subtracted from each record; those "
        "of ImageNet are `0.485,0.456,0.406`. One number stands for all channels.",
    )
    std: Annotated[Scaling, AfterValidator(_check_deviations)] = Field(
        "",
        description="Public standard deviations of the channels. Each record is divided by "
        "them after the means are subtracted.",
    )

    id: Literal["", "folder"] = Field(
        "",
        description="Unit that is protected. Empty means each record; `folder` means all "
        "images of one folder, for sites that set `data.id` to it.",
    )

    @property
    def number(self) -> int:
        """Classes or intervals; 0: open, or a regression."""
        return 0

    @property
    def open_settings(self) -> list[str]:
        """Names of the settings without a value."""
        values = self.as_config()
        return [key for key in values if not values[key] and key not in ("mean", "std", "id")]

    @property
    def scaling(self) -> tuple[tuple[float, float], ...]:
        """Mean and deviation of each channel; empty: records stay as they are.

        Raises:
            ValueError: they are not as many as the channels.
        """
        channels = int(self.shape.partition(",")[0] or 1)
        means, deviations = (
            [float(number) for number in (text or other).split(",")]
            for text, other in ((self.mean, "0"), (self.std, "1"))
        )
        if not {len(means), len(deviations)} <= {1, channels}:
            raise ValueError(f"'mean' and 'std' must hold one number, or {channels}")
        longest = max(len(means), len(deviations))
        pairs = zip(means * longest, deviations * longest, strict=False)
        return tuple(pairs)[:longest] if self.mean or self.std else ()


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
    intervals: Outputs = Field(0, description="Number of intervals of the observed time.")

    @property
    def number(self) -> int:
        """Intervals; 0: open."""
        return self.intervals


TASKS: dict[str, type[StatedTask]] = {
    kind.kind: kind for kind in (Classification, Regression, Survival)
}
"""Kinds by name."""
