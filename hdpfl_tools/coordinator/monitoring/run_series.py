"""Totals of a run's journal, event by event, for the exporter.

Nothing is taken from an event that is not named here: the terms, the ``privacy`` event and other
strategies' gauges hold ε, δ and batch sizes, of simulations at least.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hdpfl_flower import formats
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.site_summary import SITE, WORST
from hdpfl_flower.monitoring import series as metrics
from hdpfl_flower.monitoring.influence import Influence
from hdpfl_flower.monitoring.journal import Event, finished_rounds
from hdpfl_flower.monitoring.rejection import Rejection, rejections_in
from hdpfl_flower.monitoring.series import Reading, Series
from hdpfl_tools.simulation.scenarios.groups import BY_GROUP, MINORITY

MAX_SITES = 200
"""Most sites of a run with series of their own."""

BAD = frozenset({Rejection.GUARD, Rejection.MALFORMED})
"""Rejections that count as a bad update of their site."""

ENDS = ("completed", "interrupted")
"""Ends of a run's attempt; the second one keeps what it had."""
_STATUSES = {"approval": "pending", "presence": "offline"}
"""Event of a site → the status that is counted while it lasts."""
_REMEMBERED = 101
"""Rounds that the median is taken over."""
_OF_A_SITE: Mapping[str, Series] = {
    "noise_std": metrics.NOISE,
    "cluster": metrics.CLUSTER,
    "cluster_confidence": metrics.CONFIDENCE,
}
_STAYS = frozenset({metrics.CLUSTER, metrics.CONFIDENCE})
"""Gauges per site of a round; cluster findings are kept."""
_OF_A_ROUND: Mapping[str, Series] = {
    "clusters": metrics.CLUSTERS,
    "clusters_mss": metrics.MSS,
    "last_soft_round": metrics.LAST_SOFT,
}
_MEASURES: Mapping[str, Series] = {
    "accuracy": metrics.ACCURACY,
    "loss": metrics.LOSS,
    "mse": metrics.SQUARED,
    "mae": metrics.ABSOLUTE,
}
_BY_GROUP = BY_GROUP.removeprefix("accuracy")
_GROUPS = {"": "all", MINORITY.removeprefix("accuracy"): "minority"}
_FINAL = ("measures", "federated-measures")
"""Events with the measures of the final model; ``run/federated_measures.py``."""
_OF_SITES = {"": "sites", WORST: "worst-tenth"}


@dataclass
class RunTally:
    """A run, as far as its journal was read.

    Attributes:
        run: its id.
        last_event: when the journal was last written to, seconds since 1970; NaN: never.
    """

    run: str
    last_event: float = math.nan
    _about: tuple[str, str, str] = ("", "", "")
    _started: float = math.nan
    _active: bool = False
    _planned: int = 0
    _timeout: float = math.nan
    _last: Event | None = None
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _asked: Counter[str] = field(default_factory=Counter)
    _accepted: Counter[str] = field(default_factory=Counter)
    _bad: Counter[str] = field(default_factory=Counter)
    _late: Counter[str] = field(default_factory=Counter)
    _final: dict[tuple[str, str], float] = field(default_factory=dict)
    _rejected: Counter[Rejection] = field(default_factory=Counter)
    _left_out: set[str] = field(default_factory=set)
    _pending: set[str] = field(default_factory=set)
    _absent: set[str] = field(default_factory=set)
    _missed: Counter[str] = field(default_factory=Counter)
    _how: str = ""
    _received: float = 0.0
    _sent: float = 0.0
    _no_quorum: int = 0
    _found: dict[tuple[Series, str], float] = field(default_factory=dict)
    _influence: Influence | None = field(default_factory=Influence)
    _unreadable: int = 0
    _format: object = formats.JOURNAL.newest

    def apply(self, event: Event) -> None:
        """Add one event; unreadable events are counted."""
        try:
            self._format = event.get("format", self._format)
            formats.JOURNAL.check(self._format)  # of every event after a newer version's, too
            self._apply(event)
        except (DataError, LookupError, TypeError, ValueError, AttributeError, OverflowError):
            self._unreadable += 1

    def readings(self) -> Iterator[Reading]:
        """Yield the current readings of the run's series."""
        yield metrics.RUN.reads(1, self.run, *self._about)
        values = {
            metrics.STARTED: self._started,
            metrics.LAST_EVENT: self.last_event,
            metrics.ACTIVE: self._active,
            metrics.PLANNED: self._planned,
            metrics.TIMEOUT: self._timeout,
            metrics.NO_QUORUM: self._no_quorum,
            metrics.LEFT_OUT: len(self._left_out),
            metrics.PENDING_SITES: len(self._pending) if self._active else 0,
            metrics.UNREADABLE: self._unreadable,
            metrics.RECEIVED: self._received,
            metrics.SENT: self._sent,
            metrics.FINISHED: self._last["round"] if self._last else 0,
        }
        for series, value in values.items():
            if not math.isnan(value):
                yield series.reads(value, self.run)
        for how in ENDS:
            yield metrics.ENDED.reads(how == self._how, self.run, how)
        for reason in Rejection:  # zeros too: Prometheus sees a rise only of an existing series
            yield metrics.REJECTED.reads(self._rejected[reason], self.run, reason.value)
        if self._last is not None:
            yield from self._round(self._last)
            yield from self._model(self._last)
        for (event, measure), value in self._final.items():
            yield metrics.MEASURED.reads(value, self.run, event, measure)
        yield from self._sites()

    # --- parts -------------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        time = datetime.fromisoformat(event["at"])
        when = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        kind = event["event"]
        if kind == "round":
            self._apply_round(event)
        elif kind == "left-out":
            self._left_out.add(_name(event["site"]))
        elif kind in _STATUSES:
            noted = self._pending if kind == "approval" else self._absent
            note = noted.add if event["status"] == _STATUSES[kind] else noted.discard
            note(_name(event["site"]))
        elif kind in _FINAL:
            measures = event["measures"].items()
            self._final |= {(kind, _name(name)): float(facts["value"]) for name, facts in measures}
        elif kind == "run-started":
            self._apply_terms(event["terms"])
            # The first start counts: a run that begins again under its id is the same run.
            self._started = when if math.isnan(self._started) else self._started
        # A crash writes no last event: the run stays active, and last_event shows that it is
        # silent.
        self._active = kind != "run-finished"
        self._how = "" if self._active else _name(event["status"])
        self.last_event = when

    def _apply_terms(self, terms: Mapping[str, Any]) -> None:
        self._about = _name(terms["strategy"]), _name(terms["model"]), _name(terms["dataset"])
        self._planned = int(terms["rounds"])
        self._timeout = float(terms.get("round-timeout", math.nan))

    def _apply_round(self, event: Event) -> None:
        (event,) = finished_rounds([event])
        asked, accepted = list(map(_name, event["asked"])), list(map(_name, event["accepted"]))
        rejected = {_name(site): code for site, code in rejections_in(event).items()}
        received, sent = float(event.get("bytes_up", 0)), float(event.get("bytes_down", 0))
        seconds = float(event["seconds"]) if "seconds" in event else math.nan
        self._influence = _with_round(self._influence, event)
        self._asked.update(asked)
        self._accepted.update(accepted)
        self._rejected.update(rejected.values())
        self._bad.update(site for site, reason in rejected.items() if reason in BAD)
        self._late.update(site for site, reason in rejected.items() if reason is Rejection.LATE)
        self._received, self._sent = self._received + received, self._sent + sent
        self._no_quorum += not event["weights"]
        self._missed.update(self._absent)
        if not math.isnan(seconds):
            self._seconds.append(seconds)
        self._last = {**event, "asked": asked, "accepted": accepted, "seconds": seconds}
        self._note_gauges(self._last)

    def _round(self, last: Event) -> Iterator[Reading]:
        run, weights = self.run, last["weights"]
        yield metrics.ASKED.reads(len(last["asked"]), run)
        yield metrics.ACCEPTED.reads(len(last["accepted"]), run)
        if isinstance(last.get("quorum"), int):
            yield metrics.QUORUM.reads(last["quorum"], run)
        # Kish's effective number of sites, (Σw)²/Σw².
        if weights and math.isfinite(square := sum(weight * weight for weight in weights)):
            # where there are several models, the weights of each of them sum to 1
            yield metrics.EFFECTIVE.reads(sum(weights) ** 2 / square if square else 0, run)
        if self._seconds:
            yield metrics.MEDIAN.reads(statistics.median(self._seconds), run)
        if not math.isnan(last["seconds"]):
            yield metrics.DURATION.reads(last["seconds"], run)
        for phase, seconds in _numbers(last.get("phases")):
            if phase in metrics.PHASES:
                yield metrics.PHASE.reads(seconds, run, phase)

    def _model(self, last: Event) -> Iterator[Reading]:
        for name, value in last["metrics"].items():
            of_sites = name.startswith(SITE)
            for start, series in _MEASURES.items():
                metric = name.removeprefix(SITE)
                if metric.startswith(start):
                    rest = metric.removeprefix(start)
                    group = _OF_SITES.get(rest, "") if of_sites else _group(rest)
                    if group:
                        yield series.reads(value, self.run, group)
        tested = last.get("tested")
        if isinstance(tested, dict):
            counted = tested.get("counted")
            count = dict(_numbers(counted)).get(f"{SITE}loss", 0.0)
            yield metrics.TESTED.reads(count, self.run)
            if not math.isnan(sites := _number(tested.get("sites"))):
                yield metrics.UNTESTED.reads(sites - count, self.run)

    def _note_gauges(self, round_: Event) -> None:
        """Replace the facts about sites and clusters by this round's."""
        stay = {key: value for key, value in self._found.items() if key[0] in _STAYS or not key[1]}
        gauges = round_.get("gauges")
        gauges = gauges if isinstance(gauges, dict) else {}
        for name, series in _OF_A_ROUND.items():
            if not math.isnan(value := _number(gauges.get(name))):
                stay[series, ""] = value
        columns = [
            (metrics.WEIGHT, round_["weights"]),
            (metrics.NORM, round_.get("norms")),
            *((series, gauges.get(name)) for name, series in _OF_A_SITE.items()),
        ]
        for series, column in columns:
            if isinstance(column, list) and len(column) == len(round_["accepted"]):
                for site, value in zip(round_["accepted"], map(_number, column), strict=True):
                    # 0 says of a noise that it is not known
                    if not math.isnan(value) and not (series is metrics.NOISE and value == 0):
                        stay[series, site] = value
        self._found = stay

    def _sites(self) -> Iterator[Reading]:
        many = len(self._asked) > MAX_SITES
        for (series, site), value in self._found.items():
            if not site:
                yield series.reads(value, self.run)
            elif not many:
                yield series.reads(value, self.run, site)
        influence = Influence() if many or self._influence is None else self._influence
        for model in range(len(influence.models)):
            for site, share in influence.shares(model).items():
                yield metrics.SHARE.reads(share, self.run, str(model), site)
        for site in self._asked.keys() | self._absent if not many else ():
            yield metrics.SITE_ONLINE.reads(site not in self._absent, self.run, site)
            yield metrics.SITE_ABSENT.reads(self._missed[site], self.run, site)
        for site, count in self._asked.items() if not many else ():
            yield metrics.SITE_ASKED.reads(count, self.run, site)
            yield metrics.SITE_ACCEPTED.reads(self._accepted[site], self.run, site)
            yield metrics.SITE_LATE.reads(self._late[site], self.run, site)
            yield metrics.SITE_BAD.reads(self._bad[site], self.run, site)


def tally(run: str, events: Iterable[Event]) -> RunTally:
    """Return the totals of the events of ``run``."""
    totals = RunTally(run)
    for event in events:
        totals.apply(event)
    return totals


def _with_round(influence: Influence | None, event: Event) -> Influence | None:
    """Return the shares with one more round; None if a round is missing."""
    influence = Influence() if event["round"] == 1 else influence
    try:
        if influence is not None:
            influence.add(event)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return None  # shares of all rounds but one would be no shares
    return influence


def _group(rest: str) -> str:
    """Return the group in a metric's name; empty for metrics without one."""
    number = rest.removeprefix(_BY_GROUP) if rest.startswith(_BY_GROUP) else ""
    return number if number.isdecimal() else _GROUPS.get(rest, "")


def _name(value: object) -> str:
    """Return ``value``, which must be a text: a label."""
    if not isinstance(value, str):
        raise TypeError("a name that is no text")
    return value


def _number(value: object) -> float:
    """Return a journal's number, infinite included, as a float; NaN for none."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _numbers(facts: object) -> Iterator[tuple[str, float]]:
    """Yield name and value of the numbers among ``facts``; lists are skipped."""
    for name, value in facts.items() if isinstance(facts, dict) else ():
        if not math.isnan(number := _number(value)):
            yield name, number
