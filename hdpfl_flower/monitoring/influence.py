"""Each site's share of the model: how much of what moved the model is the site's.

The model after t rounds is x₀ + Σ cᵢₛ·uᵢₛ over the sites i and rounds s ≤ t, uᵢₛ the update that i
sent in round s and

    cᵢₛ = (server's rate) · (``Outcome.scale``) · (weight of i)

The share of site i is Σₛ cᵢₛ over the same sum for all sites. It counts what the server decides,
not how long the updates are: an update's length is mostly its noise (√d·σ, which averages out and
moves the model nowhere), a site can send any length it likes, and with ``noise = server`` lengths
are not in the journal. Lengths stand beside the shares in the report.

What a guard takes out of the model again is subtracted; an update that it shortens counts by its
weight. With ``centred-clipping`` the clipped part
of an update is replaced by the last aggregate, and so is counted for those whose it was. A server
step with a past (momentum, Adam, Anderson) spreads a round over later ones, and a reported mean
of models (``average``) counts early rounds for more: the share is that of the broadcast model, a
round counted whole at its own rate. With class rows of their own weights it is the mean over the
coordinates.

Everything comes from the rounds of a journal, so that a run that resumes, an exporter and a report
find the same shares.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hdpfl_flower.errors import DataError

HALF = 0.5
"""A site with more than this share decides by itself."""
LEAST_SITES = 3
"""Of two sites one always has half: models of fewer sites than this are not judged."""
_ROUNDING = 1e-9
"""Shares are sums of float64: two equal ones are no more than half by this."""

_NAMED = 10
"""Sites that a line names."""
MOST_SHARES = 100
"""Sites whose shares a round's line in the journal has: the largest ones, where there are more."""

Parts = dict[str, float]
"""Site → what it has of a model, in any unit."""


class Decides(NamedTuple):
    """One site decides a model, or a round's step of it.

    Attributes:
        of: ``round`` or ``model``, so far.
        model: its number; 0 where there is one.
        site: which.
        share: above a half.
    """

    of: str
    model: int
    site: str
    share: float


@dataclass
class Influence:
    """The shares of a run, as far as its rounds were added.

    Attributes:
        models: the parts in each model so far.
        last: the parts in each model's step of the last round; none without a quorum.
    """

    models: list[Parts] = field(default_factory=list)
    last: dict[int, Parts] = field(default_factory=dict)
    _centre: Parts = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)

    def add(self, event: Mapping[str, Any]) -> None:
        """Add a round of a journal; round 1 begins anew.

        Raises:
            LookupError, TypeError, ValueError: the round is not whole; nothing is added.
        """
        found, fresh = self._step(event), int(event["round"]) == 1
        asked, taken_back = set(event["asked"]), dict(event.get("taken-back", {}))
        lost = {site: float(part) for site, part in taken_back.items()}
        if fresh:
            self.models, self._centre, self._asked = [], {}, set()
        self._asked |= asked
        self.last, self._centre = found
        count = max(self.last, default=-1) + 1
        # A new model begins where the first one was before this round, or at the initial one.
        first = self.models[0] if self.models and event.get("from-first") else {}
        self.models += [dict(first) for _ in range(count - len(self.models))]
        for model, parts in self.last.items():
            for site, part in parts.items():
                self.models[model][site] = self.models[model].get(site, 0.0) + part
        for site, part in lost.items():
            for parts in self.models:
                if site in parts:
                    # Not below 0; ∞ is all of it, and what rounding leaves is nothing.
                    rest = parts[site] - part
                    parts[site] = rest if rest > _ROUNDING * parts[site] else 0.0

    def shares(self, model: int = 0) -> Parts:
        """Return each site's share of a model so far; a site without a part has 0."""
        found = shares_of(self.models[model] if model < len(self.models) else {})
        if len(self.models) > 1:
            return found
        return {**dict.fromkeys(sorted(self._asked - found.keys()), 0.0), **found}

    def largest_shares(self, model: int) -> Parts:
        """Return :meth:`shares`; of more than ``MOST_SHARES`` sites the largest ones alone."""
        parts = self.models[model]
        known = len(parts if len(self.models) > 1 else self._asked | parts.keys())
        if known <= MOST_SHARES:
            return self.shares(model)
        total = sum(parts.values())
        most = heapq.nlargest(MOST_SHARES, parts.items(), key=lambda pair: pair[1])
        return {site: part / total if total > 0 else 0.0 for site, part in most}

    def deciding(self) -> Iterator[Decides]:
        """Yield who decides more than half: of the last round's step, and of a model so far.

        A model of fewer than ``LEAST_SITES`` sites is passed over.
        """
        for model, known in enumerate(self.models):
            sites = len(known) if len(self.models) > 1 else len(self._asked | known.keys())
            if sites < LEAST_SITES:
                continue
            for of, parts in (("round", self.last.get(model, {})), ("model", known)):
                site, share = largest(parts)
                if share > HALF + _ROUNDING:
                    yield Decides(of, model, site, share)

    def _step(self, event: Mapping[str, Any]) -> tuple[dict[int, Parts], Parts]:
        """Return the parts in each model's step of a round, and in the next centre."""
        weights, gauges = list(event.get("weights", [])), dict(event.get("gauges", {}))
        if not weights:
            return {}, self._centre
        sites: Sequence[str] = event["accepted"]
        factor = float(gauges.get("server_rate", 1.0)) * _scale(event, gauges)
        kept = gauges.get("clipped_to", [1.0] * len(sites))
        groups = gauges.get("cluster", [0] * len(sites))
        found: dict[int, Parts] = {}
        for site, weight, left, group in zip(sites, weights, kept, groups, strict=True):
            found.setdefault(int(group), {})[site] = float(weight) * float(left)
        centre: Parts = {}
        if "clipped_to" in gauges:
            # u is replaced by c + factor·(u − c): the rest of each weight goes to the centre.
            rest = sum(map(float, weights)) - sum(found[0].values())
            for site, part in self._centre.items():
                found[0][site] = found[0].get(site, 0.0) + rest * part
            centre = dict(found[0])
        scaled = {m: {s: factor * part for s, part in of.items()} for m, of in found.items()}
        if not all(math.isfinite(part) for of in scaled.values() for part in of.values()):
            raise ValueError("weights that are no numbers")
        return scaled, centre


def influence_of(rounds: Iterable[Mapping[str, Any]]) -> Influence:
    """Return the shares after ``rounds`` of a journal, in order.

    Raises:
        DataError: a round is not whole.
    """
    found = Influence()
    try:
        for event in rounds:
            found.add(event)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise DataError("the journal is damaged: a round in it is not whole") from None
    return found


def warning_lines(rounds: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each site that decides a model so far, or decided steps of one."""
    found, steps = Influence(), Counter[tuple[int, str]]()
    for event in rounds:
        found.add(event)
        steps.update((one.model, one.site) for one in found.deciding() if one.of == "round")
    of = " {}" if len(found.models) > 1 else ""
    for one in found.deciding():
        if one.of == "model":
            model = of.format(one.model)
            share = f"{one.share:.0%}"
            yield f"site {one.site} decides {share} of the model{model}, more than {HALF:.0%}"
    for (number, site), count in steps.items():
        times = f"{count} round" + "s" * (count > 1)
        model = of.format(number)
        yield f"site {site} decided more than {HALF:.0%} of the step of the model{model} in {times}"


def shares_line(rounds: Iterable[Mapping[str, Any]], *, named: bool) -> str:
    """Return the largest shares of the model, for the log; empty without one model's rounds.

    Args:
        rounds: of the journal.
        named: whether sites may be named, see ``server_app/run/rounds.py``.
    """
    found = influence_of(rounds)
    if len(found.models) != 1:
        return ""
    shares = sorted(found.shares().items(), key=lambda pair: -pair[1])
    shown = [f"{site} {share:.0%}" if named else f"{share:.0%}" for site, share in shares]
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return "shares of the model: " + ", ".join(shown[:_NAMED]) + more


def shares_of(parts: Mapping[str, float]) -> Parts:
    """Return the parts over their sum; all 0 where there is nothing.

    >>> shares_of({"a": 3.0, "b": 1.0})
    {'a': 0.75, 'b': 0.25}
    """
    total = sum(parts.values())
    return {site: part / total if total > 0 else 0.0 for site, part in parts.items()}


def largest(parts: Mapping[str, float]) -> tuple[str, float]:
    """Return the site with the largest part, and its share of all; of equal ones the first.

    >>> largest({"a": 3.0, "b": 1.0})
    ('a', 0.75)
    """
    site, part = max(parts.items(), key=lambda pair: pair[1], default=("", 0.0))
    total = sum(parts.values())
    return site, part / total if total > 0 else 0.0


def _scale(event: Mapping[str, Any], gauges: Mapping[str, Any]) -> float:
    """Return ``Outcome.scale``; journals of format 1 have it as a gauge of one strategy alone."""
    return float(event.get("scale", gauges.get("step_scale", 1.0)))
