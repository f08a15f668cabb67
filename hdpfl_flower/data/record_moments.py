"""Layout of a first message: the vector of each record, whose noisy sum a site sends.

A record is the vector (w, y, y², …): y are its number columns, in units of half the width of their
bounds around a public point. The whole vector is clipped to a public length, so that one record
more or less moves the sum by that at most.

For scales the point is the lower third: bounds must hold the largest value, so that most values lie
below the middle, and about ``CROWD`` the vectors are short. Longer ones are clipped, and count
less. For a table, which people read, the point is the middle and the length that of the longest
vector there can be, so that each record counts alike. Sites and the server know the layout by the
terms.

A survival curve is in a table, or alone: then nothing else of a record counts, and its noise is
least.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.survival_cells import MOST_INTERVALS, cells_in, cosines
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import MOST_DEVIATIONS, Records, Task

Floats = npt.NDArray[np.float64]

CROWD: Final = -0.45
"""Public point that y is measured from, in [−1, 1] of the bounds."""
SCALES_COUNT, TABLE_COUNT, FLAG = 0.5, 1.0, 0.5
"""Weights: of a record in a message for scales, of a record and of each of its categories in one
for a table, and of a missing value."""
TYPICAL: Final = 0.32
"""Length of y of a column up to which records are not clipped in a message for scales: .25, .32 and
.4 are alike on tuning data."""
EMPTY: Final = 64
"""Coordinates that no record has: they show the noise that the sum has."""


@dataclass(frozen=True)
class Number:
    """A number column.

    Attributes:
        place: its feature.
        name: in the schema; of arrays, its number.
        slope: y of a feature is slope · feature + offset.
        offset: likewise.
        middle: the column's value where y is 0.
        half: units of the column in one of y.
        fill: y of a missing value.
    """

    place: int
    name: str
    slope: float = 1.0
    offset: float = 0.0
    middle: float = 0.0
    half: float = 1.0
    fill: float = 0.0


@dataclass(frozen=True)
class Bins:
    """A number column that is counted in bins.

    Attributes:
        number: the column.
        edges: rising, the bounds at both ends, in the column's units.
    """

    number: Number
    edges: tuple[float, ...]


@dataclass(frozen=True)
class Layout:
    """Coordinates of a first message.

    Attributes:
        numbers: number columns, each with a sum and a sum of squares.
        has_bounds: whether a schema bounds them; else records beyond [−1, 1] are counted.
        is_table: whether no record is clipped.
        classes: label counts; 0: none.
        groups: category columns: name, first feature, categories.
        flags: names of the columns whose missing values are counted.
        bins: columns that are counted in bins.
        blocks: copies of the coordinates, of which a record has that of its class; 1: one for all.
        edges: ends of the intervals of a survival curve, rising; empty: there is none.
        is_curve: whether the curve is all of it.
    """

    numbers: tuple[Number, ...]
    has_bounds: bool
    is_table: bool
    classes: int = 0
    groups: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    flags: tuple[str, ...] = ()
    bins: tuple[Bins, ...] = ()
    blocks: int = 1
    edges: tuple[float, ...] = ()
    is_curve: bool = False

    @property
    def block(self) -> Layout:
        """The layout of one class."""
        return replace(self, blocks=1)

    @property
    def parts(self) -> dict[str, slice]:
        """Coordinates of a block by their meaning, in order."""
        sizes = {
            "count": 0 if self.is_curve else 1,
            "sums": len(self.numbers),
            "squares": len(self.numbers),
            "outside": 0 if self.has_bounds else 1,
            "labels": self.classes,
            **{f"categories {name}": len(names) for name, _, names in self.groups},
            "missing": len(self.flags),
            **{f"bins {bins.number.name}": len(bins.edges) - 1 for bins in self.bins},
            "curve": 2 * len(self.edges),
            "empty": EMPTY,
        }
        ends = np.cumsum([0, *sizes.values()]).tolist()
        return {name: slice(*ends_of) for name, ends_of in zip(sizes, pairwise(ends), strict=True)}

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.blocks * int(self.parts["empty"].stop)

    @property
    def bound(self) -> float:
        """Length that the vector of a record is clipped to."""
        counted = (not self.is_curve) + (not self.has_bounds) + bool(self.classes)
        counted += len(self.groups) + len(self.bins) + bool(self.edges)
        square = 1.0 if self.is_table else TYPICAL**2
        spread = square * (1 + square) * len(self.numbers)
        return math.sqrt(self.weight**2 * counted + spread + FLAG**2 * len(self.flags))

    @property
    def weight(self) -> float:
        """Weight of a record, and of each of its categories."""
        return TABLE_COUNT if self.is_table else SCALES_COUNT


def names_in(text: str) -> list[str]:
    """Return the columns in a text, between commas; raises ``ValueError`` for one twice."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if len({*names}) < len(names):
        raise ValueError("names a column twice")
    return names


def numbers_in(text: str) -> list[float]:
    """Return a number of bins, or rising inner edges; raises ``ValueError`` for another text."""
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    is_number = len(numbers) == 1 and numbers[0] in range(2, 101)
    if not is_number and not (numbers and all(low < high for low, high in pairwise(numbers))):
        raise ValueError(
            "must be a whole number from 2 to 100, or rising inner edges between commas"
        )
    return numbers


def layout_of(
    schema_text: str,
    task: Task,
    *,
    table: bool = False,
    columns: str = "",
    bins: str = "10",
    by_label: bool = False,
    curve: bool = False,
) -> Layout:
    """Return the layout of a run's first message.

    Args:
        schema_text: of the terms; empty for arrays.
        task: of the run.
        table: whether labels, missing values, categories and bins are counted.
        columns: of the bins.
        bins: of :func:`numbers_in`.
        by_label: whether each class has coordinates of its own.
        curve: whether the message is of a survival curve alone.

    Raises:
        DataError: there are no classes for ``by_label``, no curve of the task, or ``columns`` or
            ``bins`` do not fit the schema; named with the remedy.
    """
    point, blocks = 0.0 if table else CROWD, task.classes if by_label else 1
    if not blocks:
        raise DataError("'first.moments.by-label' is for tasks of classes; leave it out")
    if curve:
        return _curve_layout(_edges(schema_text, task))
    edges = _edges(schema_text, task) if table else ()
    if not schema_text:
        if columns:
            raise DataError("'first.moments.columns' names columns, and arrays have no names")
        places = range(math.prod(task.input_shape))
        arrays = tuple(Number(i, str(i), 1.0, -point, point) for i in places)
        classes = task.classes if table else 0
        return Layout(arrays, False, table, classes, blocks=blocks, edges=edges)
    from hdpfl_flower.data.schema import CategoryColumn, Schema

    schema, start = Schema.load(schema_text), 0
    numbers, groups = list[Number](), list[tuple[str, int, tuple[str, ...]]]()
    by_name: dict[str, tuple[Number, tuple[float, float]]] = {}
    for column in schema.columns:
        width = len(column.feature_names)
        if isinstance(column, CategoryColumn):
            groups.append((column.name, start, tuple(codes[0] for codes in column.categories)))
        else:
            (low, high), middle = column.bounds, column.bounds[0] / 2 + column.bounds[1] / 2
            half = column.bounds[1] / 2 - low / 2
            number = Number(start, column.name, 1.0, -point, middle + point * half, half)
            number = replace(number, fill=(column.fill_value - number.middle) / half)
            if column.typical:
                mean, deviation = column.typical
                reach = MOST_DEVIATIONS * deviation
                slope = 1 / (MOST_DEVIATIONS * schema.gain)
                fill = min(1.0, max(-1.0, (column.fill_value - mean) / reach))
                number = Number(start, column.name, slope, 0.0, mean, reach, fill)
            if table or not column.typical:
                numbers.append(number)
            by_name[column.name] = number, (low, high)
        start += width
    if not table:
        return Layout(tuple(numbers), True, False)
    return Layout(
        tuple(numbers),
        True,
        True,
        task.classes,
        tuple(groups),
        tuple(column.name for column in schema.columns),
        tuple(_bins(name, by_name, bins) for name in names_in(columns)),
        blocks,
        edges,
    )


def _edges(schema_text: str, task: Task) -> tuple[float, ...]:
    """Return the ends of the intervals of a curve, of arrays their numbers; empty: none."""
    if not 0 < task.intervals <= MOST_INTERVALS:
        return ()
    if not schema_text:
        return tuple(float(end) for end in range(1, task.intervals + 1))
    from hdpfl_flower.data.schema import Schema

    return Schema.load(schema_text).label.edges


def _curve_layout(edges: tuple[float, ...]) -> Layout:
    if not edges:
        raise DataError(
            f"'first.moments.content' is curve, for survival tasks of 1 to {MOST_INTERVALS} "
            "intervals ('label.edges' of a schema, or 'task.intervals'); set it to table"
        )
    return Layout((), True, True, edges=edges, is_curve=True)


def _bins(name: str, columns: dict[str, tuple[Number, tuple[float, float]]], text: str) -> Bins:
    if name not in columns:
        raise DataError(
            f"'first.moments.columns': '{name}' is not a number column of the schema; choose "
            f"{', '.join(columns) or 'none, for it has none'}"
        )
    number, (low, high) = columns[name]
    inner = numbers_in(text)
    if len(inner) == 1 and inner[0] in range(2, 101) and "." not in text:
        return Bins(number, tuple(np.linspace(low, high, int(inner[0]) + 1).tolist()))
    if not low < inner[0] or not inner[-1] < high:
        raise DataError(
            f"'first.moments.bins': the edges of '{name}' do not divide its bounds; give "
            "rising edges strictly between them"
        )
    return Bins(number, (low, *inner, high))


def record_sum(layout: Layout, records: Records) -> Floats:
    """Return the sum of the clipped vectors of ``records`` over the bound, shape ``(size,)``.

    Args:
        layout: of the message.
        records: of which each unit has one, before any scales.

    Guarantees:
        One record more or less moves the result by at most 1 in length, whatever it holds: each
        vector is clipped as a whole, and rounded toward zero to a grid on which sums are exact, so
        that the records in memory at a time do not show.
    """
    return exact_sum(records, layout.size, layout.bound, partial(_in_blocks, layout))


def exact_sum(
    records: Records, size: int, bound: float, vectors: Callable[[Records], Floats]
) -> Floats:
    """Return the sum of the records' vectors, clipped to ``bound``, over it, shape ``(size,)``.

    Args:
        records: of which each unit has one.
        size: of a vector.
        bound: length that each is clipped to.
        vectors: of ``(n, size)``, each of its own record alone; not finite ones count as zeros.

    Guarantees:
        One record more or less moves the result by at most 1 in length, whatever it holds: each
        vector is clipped as a whole, and rounded toward zero to a grid on which sums are exact, so
        that the records in memory at a time do not show.
    """
    total, at_once = np.zeros(size), max(1, _NUMBERS // size)
    for start in range(0, len(records), at_once):
        rows = np.arange(start, min(start + at_once, len(records)))
        # By rows in memory: a length is added up in the same order beside whichever records.
        some = np.ascontiguousarray(vectors(records.take(rows)))
        some[~np.isfinite(some).all(1)] = 0
        lengths = np.linalg.norm(some, axis=1, keepdims=True) / bound
        some /= bound * np.maximum(lengths, 1) * (1 + 1e-9)
        total += np.trunc(some * _GRID).sum(0)
    return np.asarray(total / _GRID)


def _in_blocks(layout: Layout, records: Records) -> Floats:
    """Return the vectors, each in the block of its class alone, shape ``(n, size)``."""
    vectors = _vectors(layout.block, records)
    if layout.blocks == 1:
        return vectors
    blocks = np.zeros((len(vectors), layout.blocks, vectors.shape[1]))
    blocks[np.arange(len(vectors)), records.targets.astype(np.int64)] = vectors
    return blocks.reshape(len(vectors), -1)


def _vectors(layout: Layout, records: Records) -> Floats:
    """Return the vectors of one block, shape ``(n, size)``."""
    parts, n, weight = layout.parts, len(records), layout.weight
    vectors = np.zeros((n, layout.size))
    features = np.nan_to_num(records.features.reshape(n, -1).astype(np.float64), nan=CROWD)
    vectors[:, parts["count"]] = weight
    places = [number.place for number in layout.numbers]
    slopes = np.array([number.slope for number in layout.numbers])
    offsets = np.array([number.offset for number in layout.numbers])
    y = np.clip(slopes * features[:, places] + offsets, -2, 2)
    if layout.is_table:
        y = np.clip(y, -1, 1)
    vectors[:, parts["sums"]], vectors[:, parts["squares"]] = y, y * y
    if not layout.has_bounds:
        outside = np.any(np.abs(features[:, places]) > 1, axis=1)
        vectors[:, parts["outside"]] = weight * outside[:, None]
    if layout.classes:
        vectors[np.arange(n), parts["labels"].start + records.targets.astype(np.int64)] = weight
    for name, start, categories in layout.groups:
        block = features[:, start : start + len(categories)]
        vectors[:, parts[f"categories {name}"]] = weight * (block > 0.5)
    if layout.flags and records.missing is not None:
        vectors[:, parts["missing"]] = FLAG * records.missing
    for bins in layout.bins:
        number, inner = bins.number, np.array(bins.edges[1:-1])
        values = number.middle + number.half * (
            number.slope * features[:, number.place] + number.offset
        )
        # An edge lies in the bin above it; features are float32, and so are the edges here.
        index = np.searchsorted(inner - 1e-6 * number.half, values, side="right")
        vectors[np.arange(n), parts[f"bins {number.name}"].start + index] = weight
    if layout.edges:
        columns = cosines(len(layout.edges))
        vectors[:, parts["curve"]] = weight * columns.T[records.targets.astype(np.int64)]
    return vectors


def held_back(layout: Layout, noisy: Floats, least: int) -> Floats:
    """Return a noisy sum with counts below ``least`` as 0; all of it, below ``least`` records.

    A curve is whole or 0: 0 where its noisy records or noisy events are below ``least``. Computed
    from the noisy numbers alone, so that it costs and shows nothing more.
    """
    if not least:
        return noisy
    if layout.blocks > 1:
        return np.concatenate([
            held_back(layout.block, block, least) for block in noisy.reshape(layout.blocks, -1)
        ])  # fmt: skip
    parts, shown = layout.parts, noisy.copy()
    counts = noisy * (layout.bound / layout.weight)
    if not layout.is_curve and counts[0] < least:
        return np.zeros_like(noisy)
    if layout.edges:
        cells = cells_in(counts[parts["curve"]])
        if min(cells.sum(), cells[1::2].sum()) < least:
            shown[np.s_[:] if layout.is_curve else parts["curve"]] = 0.0
    for name, part in parts.items():
        if name not in ("count", "sums", "squares", "outside", "curve", "empty"):
            weight = FLAG / layout.weight if name == "missing" else 1.0
            shown[part] = np.where(counts[part] < least * weight, 0.0, shown[part])
    return shown


_NUMBERS = 2**24
"""Numbers of vectors in memory at a time (128 MiB)."""
_GRID = 2.0**30
