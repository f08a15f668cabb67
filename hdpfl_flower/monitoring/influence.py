"""Each site's share in the movement of the model.

The model after t rounds is x₀ + Σ cᵢₛ·uᵢₛ over the sites i and rounds s ≤ t, uᵢₛ the update that i
sent in round s and

    cᵢₛ = (server's rate) · (``Outcome.scale``) · (weight of i)

The share of site i is Σₛ cᵢₛ over the same sum for all sites. It counts the server's decisions,
not the updates' lengths: an update's length is mostly noise (√d·σ, which averages out and
does not move the model), a site can send any length, and with ``noise = server`` lengths
are not in the journal. The report shows lengths beside the shares.

Parts that a guard or a revision removes from the model are subtracted, and where the length of
earlier moves changed (``past_scale``), they are scaled; an update that it shortens counts by its
weight. A server step with a past (momentum, Adam, Anderson) spreads a round over later ones, and a
reported mean of models (``average``) counts early rounds for more: the share is that of the
broadcast model, a round counted whole at its own rate. With class rows of their own weights it is
the mean over the coordinates.

All inputs come from the rounds of a journal, so that a resumed run, an exporter and a report
find the same shares.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hdpfl_flower.errors import DataError

log = logging.getLogger("hdpfl.server")
HALF = 0.5
"""Share above which a site decides by itself."""
LEAST_SITES = 3
"""Fewest sites for a verdict: of two, one always has half."""
_ROUNDING = 1e-9
"""Tolerance for rounding in sums of shares."""

_NAMED = 10
"""Maximum sites named in a line."""
MOST_SHARES = 100
"""Maximum sites per journal line, by largest share."""

Decided = tuple[str, int, str]
"""Quantity, model and site of an influence; see :class:`Decides`."""
Parts = dict[str, float]
"""Site → its part in a model, in any unit."""


class Decides(NamedTuple):
    """Verdict: one site decides a model or a round's step.

    Attributes:
        of: ``round`` or ``model``, so far.
        model: its number; 0 where there is one.
        site: its name.
        share: above a half.
    """

    of: str
    model: int
    site: str
    share: float


@dataclass
class Influence:
    """Shares of a run over the rounds added.

    Attributes:
        models: the parts in each model so far.
        last: the parts in each model's step of the last round; none without a quorum.
    """

    models: list[Parts] = field(default_factory=list)
    last: dict[int, Parts] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)

    def add(self, event: Mapping[str, Any]) -> None:
        """Add a round of a journal; round 1 restarts the count.

        Raises:
            LookupError, TypeError, ValueError: the round is incomplete; it is not added.
        """
        step, fresh = self._step(event), int(event["round"]) == 1
        asked, taken_back = set(event["asked"]), dict(event.get("taken-back", {}))
        lost = {site: float(removed) for site, removed in taken_back.items()}
        if fresh:
            self.models, self._asked = [], set()
        self._asked |= asked
        self.last = step
        count = max(self.last, default=-1) + 1
        # A new model starts from the first one before this round, or from the initial one.
        first = self.models[0] if self.models and event.get("from-first") else {}
        self.models += [dict(first) for _ in range(count - len(self.models))]
        past = float(dict(event.get("gauges", {})).get("past_scale", 1.0))
        for parts in self.models:
            for site in parts.keys() & lost.keys():
                # Not below 0; ∞ removes all, and a rest of rounding size counts as 0.
                rest = parts[site] - lost[site]
                parts[site] = rest if rest > _ROUNDING * parts[site] else 0.0
            parts.update((site, past * weight) for site, weight in tuple(parts.items()))
        for model, parts in self.last.items():
            for site, weight in parts.items():
                self.models[model][site] = self.models[model].get(site, 0.0) + weight

    def shares(self, model: int = 0) -> Parts:
        """Return each site's share of a model, 0 without a part."""
        shares = shares_of(self.models[model] if model < len(self.models) else {})
        if len(self.models) > 1:
            return shares
        return {**dict.fromkeys(sorted(self._asked - shares.keys()), 0.0), **shares}

    def largest_shares(self, model: int) -> Parts:
        """Return :meth:`shares`, limited to the ``MOST_SHARES`` largest."""
        parts = self.models[model]
        sites = len(parts if len(self.models) > 1 else self._asked | parts.keys())
        if sites <= MOST_SHARES:
            return self.shares(model)
        total = sum(parts.values())
        most = heapq.nlargest(MOST_SHARES, parts.items(), key=lambda pair: pair[1])
        return {site: weight / total if total > 0 else 0.0 for site, weight in most}

    def deciding(self) -> Iterator[Decides]:
        """Yield sites with more than half of the last round's step, or of a model.

        A model of fewer than ``LEAST_SITES`` sites is skipped.
        """
        for model, model_parts in enumerate(self.models):
            sites = (
                len(model_parts) if len(self.models) > 1 else len(self._asked | model_parts.keys())
            )
            if sites < LEAST_SITES:
                continue
            for of, parts in (("round", self.last.get(model, {})), ("model", model_parts)):
                site, share = largest(parts)
                if share > HALF + _ROUNDING:
                    yield Decides(of, model, site, share)

    def _step(self, event: Mapping[str, Any]) -> dict[int, Parts]:
        """Return the parts in each model's step of a round."""
        weights, gauges = list(event.get("weights", [])), dict(event.get("gauges", {}))
        if not weights:
            return {}
        sites: Sequence[str] = event["accepted"]
        factor = float(gauges.get("server_rate", 1.0)) * float(event.get("scale", 1.0))
        groups = gauges.get("cluster", [0] * len(sites))
        parts: dict[int, Parts] = {}
        for site, weight, group in zip(sites, weights, groups, strict=True):
            parts.setdefault(int(group), {})[site] = factor * float(weight)
        if not all(math.isfinite(weight) for of in parts.values() for weight in of.values()):
            raise ValueError("weights that are not numbers")
        return parts


def influence_of(rounds: Iterable[Mapping[str, Any]]) -> Influence:
    """Return the shares after ``rounds`` of a journal, in order.

    Raises:
        DataError: a round is incomplete.
    """
    influence = Influence()
    try:
        for event in rounds:
            influence.add(event)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise DataError("the journal is damaged: a round in it is incomplete") from None
    return influence


def warning_lines(rounds: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each site that decides a model or steps."""
    influence, steps = Influence(), Counter[tuple[int, str]]()
    for event in rounds:
        influence.add(event)
        steps.update(
            (decision.model, decision.site)
            for decision in influence.deciding()
            if decision.of == "round"
        )
    of = " {}" if len(influence.models) > 1 else ""
    for decision in influence.deciding():
        if decision.of == "model":
            model = of.format(decision.model)
            share = f"{decision.share:.0%}"
            yield f"site {decision.site} decides {share} of the model{model}, more than {HALF:.0%}"
    for (number, site), count in steps.items():
        times = f"{count} round" + "s" * (count > 1)
        model = of.format(number)
        yield f"site {site} decided more than {HALF:.0%} of the step of the model{model} in {times}"


def shares_line(rounds: Iterable[Mapping[str, Any]], *, named: bool) -> str:
    """Return the model's largest shares for the log; empty unless there is exactly one model.

    Args:
        rounds: of the journal.
        named: whether sites may be named, see ``server_app/run/rounds.py``.
    """
    influence = influence_of(rounds)
    if len(influence.models) != 1:
        return ""
    shares = sorted(influence.shares().items(), key=lambda pair: -pair[1])
    shown = [f"{site} {share:.0%}" if named else f"{share:.0%}" for site, share in shares]
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return "shares of the model: " + ", ".join(shown[:_NAMED]) + more


def shares_of(parts: Mapping[str, float]) -> Parts:
    """Return the parts over their sum; all 0 for sum 0.

    >>> shares_of({"a": 3.0, "b": 1.0})
    {'a': 0.75, 'b': 0.25}
    """
    total = sum(parts.values())
    return {site: weight / total if total > 0 else 0.0 for site, weight in parts.items()}


def largest(parts: Mapping[str, float]) -> tuple[str, float]:
    """Return the site with the largest part, on ties the first, and its share.

    >>> largest({"a": 3.0, "b": 1.0})
    ('a', 0.75)
    """
    site, weight = max(parts.items(), key=lambda pair: pair[1], default=("", 0.0))
    total = sum(parts.values())
    return site, weight / total if total > 0 else 0.0


def decided(verdict: Decides) -> Decided:
    """Return a verdict's quantity, model and site."""
    return verdict.of, verdict.model, verdict.site


def warn_of(server_round: int, verdict: Decides, *, named: bool, several: bool = False) -> None:
    """Log a site that decides over half of a model or step.

    Args:
        server_round: the round.
        verdict: the site, and the model or step that it decides.
        named: whether the site may be named; with ``noise = server`` the log, unlike the journal,
            does not name the participants.
        several: whether there are several models.
    """
    model = f"the model {verdict.model}" if several else "the model"
    site = f"site {verdict.site}" if named else "one site (the journal names it)"
    quantity = f"the step of {model}" if verdict.of == "round" else f"{model} so far"
    share, half = f"{100 * verdict.share:.0f} %", f"{100 * HALF:.0f} %"
    bound = "'guard' = 'cap' bounds the weight of a site"
    log.warning(
        "round %d: %s decides %s of %s, more than %s; %s",
        *(server_round, site, share, quantity, half, bound),
    )
