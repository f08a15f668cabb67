"""Scales and tables of the sites' first messages.

A site's sum S over its records, of vectors of length 1 at most, comes with N(0, z²) on each
coordinate; its empty coordinates estimate z. Sites are summed with weights 1/(z² + b), b the mean
square by which their sums depart from the common mean beyond their noise: of alike sites the noisy
ones count less, of unlike ones each record counts alike. Means are shrunk to that of all columns
by the share of their spread that is noise (Morris, JASA 1983), variances to what bounds suggest: a
deviation is about ``PRIOR`` of the distance of the mean to the nearer bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.tasks import LEAST_SCALE
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.record_moments import FLAG, Floats, Layout, Number
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.measures.bootstrap import Estimate
from hdpfl_flower.models.task import Task
from hdpfl_flower.releases.base import ReleaseKind
from hdpfl_flower.releases.moments import Moments
from server_app.releases import ServerHalf
from server_app.releases.survival_curve import curve_of

PRIOR = 0.6
"""Deviation of a column over the distance of its mean to the nearer bound, before any data; of .45,
.6 and .8 the middle on tuning data."""
MOST_SHRUNK = 3.0
"""Factor either way by which a deviation may depart from that."""
EDGE = 0.95
"""Largest mean, either way, in [−1, 1] of the bounds."""
LEAST_OFFSET = 1.25
"""Root mean square of the means, over that of the deviations, from which scales pay: of values in a
corner of their bounds it is 2 and more, of heart records, whose bounds are tight, .8."""
LEAST_RECORDS = 2.0
"""Standard deviations of its noise that a count must be away from 0."""
LEAST_NOISE = 0.25
"""Least z that a site is weighted by."""
NORMAL = 1.959964
"""Standard deviations of a two-sided interval of 95 %."""
HIDDEN = "the noise hides how many records there are; ask for a larger share, or more sites"
SPREAD_OUT = "the values use the whole width of the columns' bounds, so scales would gain little"
UNBOUNDED = "many values are beyond [-1, 1], and arrays have no bounds by which to scale them"


@dataclass(frozen=True)
class Summed:
    """A weighted sum of first messages.

    Attributes:
        values: one a coordinate, in the units of a record's vector.
        noise: standard deviation of the noise in each.
        held_back: of each, whether a site held its count back.
    """

    values: Floats
    noise: float
    held_back: npt.NDArray[np.bool_]


def summed(rows: Floats, layout: Layout, weights: Floats | None = None) -> Summed:
    """Return the weighted sum of ``rows`` (sites, size); None: each record counts alike."""
    squares = np.square(rows[:, layout.parts["empty"]]).mean(1)
    factors = np.ones(len(rows)) if weights is None else weights
    noise = math.sqrt(float(np.square(factors) @ squares))
    held_back = np.any(rows == 0, axis=0) & (noise > 0)
    return Summed(layout.bound * (factors @ rows), layout.bound * noise, held_back)


def weights_of(rows: Floats, layout: Layout) -> Floats:
    """Return the weights of sites, by noise and by how far they differ; the largest is 1."""
    parts = layout.parts
    squares = np.square(rows[:, parts["empty"]]).mean(1)
    noise = np.maximum(squares, LEAST_NOISE**2)
    first = 1 / noise
    total = first @ rows
    counts, count = rows[:, parts["count"]], float(total[parts["count"]][0])
    if len(rows) < 2 or not layout.numbers or count <= 0:
        return np.asarray(first / first.max())
    means = total[parts["sums"]] / count
    excess = np.square(rows[:, parts["sums"]] - counts * means).mean(1)
    excess -= squares * (1 + np.square(means).mean())
    weights = 1 / (noise + max(0.0, float(excess.mean())))
    return np.asarray(weights / weights.max())


def scales_of(rows: Floats, layout: Layout) -> tuple[list[tuple[float, float]], str]:
    """Return mean and deviation of each number column, or none and why.

    Returns:
        both in [−1, 1] of the column's bounds, rounded as terms send them.
    """
    total, parts = summed(rows, layout, weights_of(rows, layout)), layout.parts
    records = float(total.values[parts["count"]][0]) / layout.weight
    if not records > LEAST_RECORDS * total.noise / layout.weight:
        return [], HIDDEN
    if not layout.has_bounds:
        outside = float(total.values[parts["outside"]][0]) / layout.weight
        if outside + total.noise / layout.weight > records / 2:
            return [], UNBOUNDED
    sums, squares = total.values[parts["sums"]], total.values[parts["squares"]]
    noise, offsets = total.noise / records, np.array([number.offset for number in layout.numbers])
    means, second = sums / records, squares / records
    between = max(float(means.var(ddof=1)) - noise**2, 0.0) if len(means) > 1 else math.inf
    share = 1.0 if between == math.inf else between / (between + noise**2 or 1.0)
    means = means.mean() + share * (means - means.mean())
    means = np.clip(means, offsets - EDGE, offsets + EDGE)
    expected = np.square(PRIOR * (1 - np.abs(means - offsets)))
    error = noise**2 * (1 + 4 * np.square(means))
    trust = np.square(expected) / (np.square(expected) + error)
    variances = expected + trust * (second - np.square(means) - expected)
    variances = np.clip(variances, expected / MOST_SHRUNK**2, expected * MOST_SHRUNK**2)
    deviations = np.clip(np.sqrt(variances), LEAST_SCALE, 1.0)
    centres = np.clip(means - offsets, -1, 1)
    if float(np.square(centres).sum()) < LEAST_OFFSET**2 * float(np.square(deviations).sum()):
        return [], SPREAD_OUT
    return [
        (round(float(mean), 4), round(float(deviation), 4))
        for mean, deviation in zip(centres, deviations, strict=True)
    ], ""


class MomentsReading(ServerHalf):
    """Scales for round 1, and the table of columns."""

    def numbers(self, kind: ReleaseKind, terms: RunTerms, task: Task) -> int:
        """Return the public number of coordinates."""
        return _moments(kind).layout(terms, task).size

    def read(
        self,
        kind: ReleaseKind,
        rows: npt.NDArray[np.float32],
        without: Mapping[str, str],
        terms: RunTerms,
    ) -> dict[str, Any]:
        """Return scales, or the table of all sites, of each class and of each row, from 0."""
        moments = _moments(kind)
        layout = moments.layout(terms, task_for(terms.updated(scales="")))
        payloads = rows.astype(np.float64)
        is_summed = terms.source.is_summed
        facts: dict[str, Any] = {"without": dict(without), "measures": {}}
        payloads = payloads[np.any(payloads != 0, axis=1)]  # zeros: held back by 'min-count'
        if not len(payloads):
            return {**facts, "why": "no site sent its first message"}
        if layout.is_table:
            blocks = payloads.reshape(len(payloads), layout.blocks, -1)
            is_noisy = np.any(blocks[..., layout.parts["empty"]] != 0)
            held_back = np.any(blocks == 0, axis=1) & is_noisy
            sites = np.where(held_back, 0.0, blocks.sum(1))
            groups = {"all": sites}
            if layout.blocks > 1:
                groups |= {f"class {i}": blocks[:, i] for i in range(layout.blocks)}
            if not is_summed:
                shown = np.flatnonzero(np.any(rows != 0, axis=1))
                groups |= {str(row): sites[i : i + 1] for i, row in enumerate(shown.tolist())}
            facts["level"] = 0.95
            # A class that a site holds back is none of its rows, nor of its row over all classes.
            sent = {name: part[np.any(part != 0, axis=1)] for name, part in groups.items()}
            facts["groups"] = {
                name: table_of(part, layout.block, is_summed=is_summed)
                for name, part in sent.items()
                if len(part)
            }
            return facts
        scales, why = scales_of(payloads, layout)
        text = ",".join(f"{mean:.4f}:{deviation:.4f}" for mean, deviation in scales)
        return {
            **facts,
            "scales": text,
            **({"why": why, "missing": {"scales": why}} if why else {}),
        }

    def about(self, facts: Mapping[str, Any]) -> str:
        """Return the uses of the first message in this run."""
        if why := facts.get("why"):
            return f"The columns keep the scales of the schema: {why}."
        if "scales" not in facts:
            return "A table of the columns is ready; see hdpfl statistics."
        columns, sites = len(str(facts["scales"]).split(",")), len(facts["answered"])
        return (
            f"{columns} number columns are scaled with noisy means and deviations of {sites} sites."
        )


def _moments(kind: ReleaseKind) -> Moments:
    if not isinstance(kind, Moments):
        raise TypeError("a first message is of the kind 'moments'")
    return kind


# --- the table of columns -------------------------------------------------------------------------


def table_of(rows: Floats, layout: Layout, *, is_summed: bool = False) -> dict[str, Any]:
    """Return the facts of a group of sites: a line a column, labels, categories and bins.

    Args:
        rows: of the sites, shape ``(sites, size)``; a count of exactly 0 was held back.
        layout: of the message.
        is_summed: whether sites weighted their records, so that counts are shares of a whole.

    Returns:
        values with intervals of 95 % that hold the noise and the draw of the records, in the
        columns' units; counts are not rounded and may be negative.
    """
    total, parts = summed(rows, layout), layout.parts
    curve = _curve(rows, total, layout, is_summed=is_summed)
    if layout.is_curve:
        return curve
    count = Noisy(
        float(total.values[parts["count"]][0]) / layout.weight, total.noise / layout.weight
    )
    facts: dict[str, Any] = {"records": None if is_summed else count.facts(), **curve}
    flags = total.values[parts["missing"]] / FLAG
    known = np.where(total.held_back[parts["missing"]], math.nan, flags).tolist()
    missing = dict(zip(layout.flags, known, strict=True))
    is_known = count.value > LEAST_RECORDS * count.noise
    facts["columns"] = [
        {
            "name": number.name,
            **_shown("missing", missing.get(number.name), count, FLAG, total, is_summed),
            **(_of_number(place, number, missing.get(number.name, 0.0), total, layout, is_known)),
        }
        for place, number in enumerate(layout.numbers)
    ]
    facts["labels"] = _counts(total, parts["labels"], count, layout, is_summed)
    facts["categories"] = {
        name: {
            **_shown("missing", missing.get(name), count, FLAG, total, is_summed),
            "shares": dict(
                zip(
                    names,
                    _counts(total, parts[f"categories {name}"], count, layout, is_summed),
                    strict=True,
                )
            ),
        }
        for name, _, names in layout.groups
    }
    facts["bins"] = {
        bins.number.name: {
            "edges": list(bins.edges),
            "counts": (
                cells := _counts(total, parts[f"bins {bins.number.name}"], count, layout, is_summed)
            ),
            "quartiles": _quartiles(bins.edges, [cell["share"] for cell in cells]),
        }
        for bins in layout.bins
    }
    if not is_known:
        facts["why"] = HIDDEN
    return facts


def _curve(rows: Floats, total: Summed, layout: Layout, *, is_summed: bool) -> dict[str, Any]:
    if not layout.edges:
        return {}
    sums = rows[:, layout.parts["curve"]] * (layout.bound / layout.weight)
    return {"curve": curve_of(sums, layout.edges, total.noise / layout.weight, is_summed=is_summed)}


@dataclass(frozen=True)
class Noisy:
    """A number with the standard deviation of its noise."""

    value: float
    noise: float

    def facts(self, low: float = -math.inf, high: float = math.inf) -> dict[str, float | None]:
        """Return the value and its interval, for JSON; all within ``low`` and ``high``."""
        reach = NORMAL * self.noise
        numbers = np.clip([self.value, self.value - reach, self.value + reach], low, high)
        return Estimate(*np.round(numbers, 6).tolist()).facts()


def _shown(
    name: str, value: float | None, count: Noisy, weight: float, total: Summed, is_summed: bool
) -> dict[str, Any]:
    if value is None or math.isnan(value):
        return {} if value is None else {name: None}
    noise = total.noise / weight
    if is_summed:
        value, noise = (value / count.value, noise / count.value) if count.value > 0 else (0.0, 1.0)
    return {name: Noisy(value, noise).facts()}


def _counts(
    total: Summed, part: slice, count: Noisy, layout: Layout, is_summed: bool
) -> list[dict[str, Any]]:
    """Return each count, and its share of all; none where a site held its own back."""
    rows = []
    values = (total.values[part] / layout.weight).tolist()
    for value, held_back in zip(values, total.held_back[part].tolist(), strict=True):
        cell = Noisy(value, total.noise / layout.weight)
        share = None
        if count.value > LEAST_RECORDS * count.noise and not held_back:
            p = min(1.0, max(0.0, value / count.value))
            draw = 0.0 if is_summed else p * (1 - p) / count.value
            noise = math.hypot(cell.noise, p * count.noise) / count.value
            share = Noisy(value / count.value, math.sqrt(noise**2 + draw)).facts(0, 1)
        rows.append({"count": None if is_summed or held_back else cell.facts(), "share": share})
    return rows


def _of_number(
    place: int, number: Number, missing: float, total: Summed, layout: Layout, is_known: bool
) -> dict[str, Any]:
    """Return mean and deviation of a column's values that are there, in its units."""
    parts, noise = layout.parts, total.noise
    records = float(total.values[parts["count"]][0]) / layout.weight
    # Held back, there are few: a mean of all values, the filled ones too, is near enough.
    missing = 0.0 if math.isnan(missing) else missing
    there = records - missing
    if not is_known or not there > LEAST_RECORDS * math.hypot(1 / layout.weight, 1 / FLAG) * noise:
        return {"mean": None, "deviation": None}
    fill = number.fill
    mean = (float(total.values[parts["sums"]][place]) - missing * fill) / there
    second = (float(total.values[parts["squares"]][place]) - missing * fill**2) / there
    # By the derivatives of both ratios in the sums, the count and the missing values.
    counted = (1 / layout.weight) ** 2, (1 / FLAG) ** 2 if layout.flags else 0.0
    of_mean = noise**2 * (1 + mean**2 * counted[0] + (mean - fill) ** 2 * counted[1]) / there**2
    variance = max(second - mean**2, 0.0)
    slopes = (2 * mean**2 - second, second - fill**2 - 2 * mean * (mean - fill))
    of_variance = noise**2 * (
        1 + 4 * mean**2 + slopes[0] ** 2 * counted[0] + slopes[1] ** 2 * counted[1]
    )
    of_variance = of_variance / there**2 + 2 * variance**2 / max(there, 1.0)
    value = Noisy(
        number.middle + number.half * mean, number.half * math.sqrt(of_mean + variance / there)
    )
    ends = [
        math.sqrt(max(0.0, variance + NORMAL * sign * math.sqrt(of_variance))) for sign in (-1, 1)
    ]
    half = number.half
    deviation = Estimate(half * math.sqrt(variance), half * ends[0], half * ends[1])
    return {"mean": value.facts(), "deviation": deviation.facts()}


def _quartiles(edges: Sequence[float], shares: Sequence[Mapping[str, Any] | None]) -> list[float]:
    """Return the quartiles by shares of bins, linear in each; empty where a share is hidden."""
    if any(share is None for share in shares):
        return []
    parts = np.maximum([float(share["value"]) for share in shares if share], 0.0)
    if not parts.sum() > 0:
        return []
    heights = np.concatenate([[0.0], np.cumsum(parts / parts.sum())])
    return [float(np.interp(quarter, heights, edges)) for quarter in (0.25, 0.5, 0.75)]


HALF = MomentsReading()
