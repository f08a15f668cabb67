"""Influence in a run's report: each site's share and its causes."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hdpfl_flower.monitoring.influence import influence_of
from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.monitoring.rejection import Rejection, rejections_in

Cell = str | float | int

BOUNDED: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "capped": ("capped", lambda value: value > 0),
    "shortened_to": ("shortened", lambda value: value < 1),
    "precision_bounded": ("precision bounded", lambda value: value > 0),
    "noise_raised": ("noise raised to its claim", lambda value: value > 0),
}
"""Per-site gauge → the treatment in words, with its numbers."""


def site_shares(rounds: Sequence[Event]) -> Iterator[tuple[Cell, ...]]:
    """Yield a row per site and model, the largest share first.

    Site, model (empty where there is one), share of the model, of the last round's step, rounds
    used, medians of the estimated noise, of the local steps and of the length of its updates over
    the round's median, and what bounded it. Empty where the journal does not say.
    """
    found = influence_of(rounds)
    several = len(found.models) > 1
    used = _used(rounds)
    rows = [
        (model, site, share)
        for model in range(len(found.models))
        for site, share in found.shares(model).items()
    ]
    totals = {model: sum(step.values()) for model, step in found.last.items()}
    for model, site, share in sorted(rows, key=lambda row: (row[0], -row[2])):
        step, total = found.last.get(model, {}), totals.get(model, 0.0)
        of_step: Cell = step[site] / total if site in step and total else ""
        yield site, model if several else "", share, of_step, *_facts(used[site], site)


class _Used(NamedTuple):
    """The rounds of one site.

    Attributes:
        asked: in which it was asked, or a guard took back what it had.
        accepted: those whose update was used, its row in them, and the median length there.
    """

    asked: list[Event]
    accepted: list[tuple[Event, int, float]]


def _used(rounds: Sequence[Event]) -> Mapping[str, _Used]:
    """Return the rounds of each site, in one pass."""
    found: dict[str, _Used] = defaultdict(lambda: _Used([], []))
    for event in rounds:
        for site in {*event["asked"], *event.get("taken-back", {})}:
            found[site].asked.append(event)
        middle = _middle(event.get("norms"))
        for row, site in enumerate(event["accepted"]):
            found[site].accepted.append((event, row, middle))
    return found


def _facts(of: _Used, site: str) -> tuple[Cell, ...]:
    used = of.accepted
    of_gauge = {
        name: [_at(event.get("gauges", {}).get(name), row) for event, row, _ in used]
        for name in ("noise_std", "steps", *BOUNDED)
    }
    lengths = [
        own / middle
        for event, row, middle in used
        if middle and (own := _at(event.get("norms"), row))
    ]
    # 0 says of a noise that it is not known.
    noise = [value for value in of_gauge["noise_std"] if value]
    done = Counter({
        words: sum(value is not None and holds(value) for value in of_gauge[name])
        for name, (words, holds) in BOUNDED.items()
    })  # fmt: skip
    done["refused"] = sum(rejections_in(event).get(site) is Rejection.GUARD for event in of.asked)
    done["taken back"] = sum(site in event.get("taken-back", {}) for event in of.asked)
    return (
        len(used),
        _median(noise),
        _whole(_median([value for value in of_gauge["steps"] if value is not None])),
        _median(lengths),
        "; ".join(f"{words} ({count} ×)" for words, count in done.items() if count),
    )


def _median(values: Sequence[float]) -> Cell:
    return float(statistics.median(values)) if values else ""


def _whole(value: Cell) -> Cell:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _middle(values: object) -> float:
    places = range(len(values)) if isinstance(values, list) else ()
    known = [value for place in places if (value := _at(values, place)) is not None]
    return statistics.median(known) if known else 0.0


def _at(values: object, index: int) -> float | None:
    """Return a finite number of a journal's list; else None."""
    if not isinstance(values, list) or index >= len(values):
        return None
    try:
        value = float(values[index])
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None
