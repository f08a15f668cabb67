"""Run report: one self-contained HTML page from the run's folder."""

from __future__ import annotations

import base64
import json
import math
import shlex
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hdpfl_flower.config.server_terms import rates_line
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.site_summary import (
    NOBODY_MEASURED,
    NOT_ASKED,
    PERSONAL,
    SITE,
    WORST,
    is_error,
)
from hdpfl_flower.monitoring.influence import warning_lines
from hdpfl_flower.monitoring.journal import Event, finished_rounds, read_journal
from server_app.plots import plot_run, why_no_picture
from server_app.reports.clusters import found_clusters, has_clusters, sites_clusters
from server_app.reports.influence import site_shares
from server_app.reports.run_template import PAGE
from server_app.run.federated_measures import FEDERATED
from server_app.run.final_measures import EVENT, measure_rows
from server_app.run.resume import JOURNAL, defaults, is_complete

Cell = str | float | int
_NOISE = {
    "records": "added at each site, to the clipped gradients of its records",
    "client": "added at each site, to its clipped update",
    "server": "added at the server, to the sum of the sites' clipped updates",
}
MOST_ROWS = 200
"""Most rows of a table of sites; the journal has all."""


def make_report(folder: Path) -> str:
    """Return the page of the run in ``folder``.

    Raises:
        DataError: the folder has no journal, or a damaged one, or no finished round.
    """
    events = read_journal(folder / JOURNAL)
    rounds = finished_rounds(events)
    if not rounds:
        raise DataError("the run has finished no round; there is nothing to report")
    starts = [event for event in events if event["event"] in ("run-started", "run-resumed")]
    terms: Any = next((e["terms"] for e in starts if "terms" in e), {})
    if not isinstance(terms, dict) or not terms:
        raise DataError("the journal is damaged: it does not say how the run began")
    name = str(terms.get("run-id", folder.name))
    clusters = has_clusters(rounds)
    no_picture = why_no_picture()
    return PAGE.render(
        name=name,
        status=_status(events, rounds, starts),
        rates=rates_line(terms),
        measures=list(_measures(events, EVENT)),
        federated=list(_measures(events, FEDERATED)),
        federated_facts=_federated_line(events),
        results=list(_results(rounds, is_regression="mse" in rounds[-1]["metrics"])),
        missing=_some(_not_counted(rounds[-1])),
        unmeasured=_why_unmeasured(events, rounds),
        picture="" if no_picture else _picture(events),
        no_picture=no_picture,
        privacy=list(_privacy(events)),
        sites=_some([*_sites(rounds), *_sites_not_asked(events, rounds)]),
        shares=_some(site_shares(rounds)),
        warnings=list(warning_lines(rounds)),
        clusters=list(found_clusters(rounds)) if clusters else [],
        cluster_sites=_some(sites_clusters(rounds)) if clusters else [],
        configuration=folded(terms),
        versions=list(_versions(starts)),
        command=command_of(terms, rounds, starts),
    )


def _why_unmeasured(events: Sequence[Event], rounds: Sequence[Event]) -> str:
    """Return why no measure is in the page, and the remedies; empty where one is."""
    if rounds[-1]["metrics"] or any(_last(events, name) for name in (EVENT, FEDERATED)):
        return ""
    return NOBODY_MEASURED if "tested" in rounds[-1] else NOT_ASKED


def metric_words(name: str) -> str:
    """Return the words of a metric of the rounds.

    >>> metric_words("site-accuracy-worst"), metric_words("personal-loss"), metric_words("loss")
    ('accuracy, worst tenth of the sites', 'loss, personal models', 'loss')
    """
    kinds = {SITE: "mean of the sites", PERSONAL: "personal models"}
    kind = next((kind for kind in kinds if name.startswith(kind)), "")
    plain, parts = name.removeprefix(kind), [kinds[kind]] if kind else []
    if plain.endswith(WORST):
        plain = plain.removesuffix(WORST)
        parts = [*([] if kind == SITE else parts), "worst tenth of the sites"]
    if plain.endswith("-variance"):
        plain, parts = plain.removesuffix("-variance"), [*parts, "variance over the sites"]
    return ", ".join([plain.replace("-", " "), *parts])


def command_of(terms: Mapping[str, Any], rounds: Sequence[Event], starts: Sequence[Event]) -> str:
    """Return the command that repeats the terms in a new run."""
    default = defaults()
    said = {
        k: v for k, v in terms.items() if v != default.get(k) and k not in ("run-id", "runs-dir")
    }
    command = ["flwr", "run", "."]
    engine = starts[0].get("engine") if starts else None
    if engine in ("deployment", "rehearsal"):
        command += ["SUPERLINK"]
    elif starts and (config := starts[-1].get("federation-config")):
        command += ["--federation-config", config]
    elif sites := max((int(event.get("online", 0)) for event in rounds), default=0):
        command += ["--federation-config", f"num-supernodes={sites}"]
    # JSON's numbers, texts, true and false are TOML's, too.
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in said.items()}
    if any("\\" in text for text in texts.values()):  # more than Flower reads on a command line
        texts |= {
            key: f"'''\n{value}'''"
            for key, value in said.items()
            if isinstance(value, str) and "\n" in value and _is_plain(value)
        }
        lines = "".join(f"{key} = {text}\n" for key, text in texts.items())
        command += ["--run-config", "run.toml", "--stream"]
        return f"cat > run.toml <<'END'\n{lines}END\n{shlex.join(command)}"
    if texts:
        command += ["--run-config", " ".join(f"{key}={text}" for key, text in texts.items())]
    return shlex.join([*command, "--stream"])


def _is_plain(text: str) -> bool:
    """Return whether TOML's literal text of several lines can hold ``text``."""
    lines = text.split("\n")
    return "".join(lines).isprintable() and "'''" not in f"{text}'" and "END" not in lines


def _status(events: Sequence[Event], rounds: Sequence[Event], starts: Sequence[Event]) -> str:
    state = "complete" if is_complete(events) else "not complete"
    resumed = sum(event["event"] == "run-resumed" for event in starts)
    times = "" if not resumed else f", resumed {resumed} time" + "s" * (resumed > 1)
    return f"{state}: {len(rounds)} rounds{times}; {_when(events)}"


def _when(events: Sequence[Event]) -> str:
    """Return start, end (UTC) and duration."""
    try:
        first, last = (
            datetime.fromisoformat(str(event["at"])).astimezone(UTC)
            for event in (events[0], events[-1])
        )
    except (KeyError, ValueError):
        return "when is not known"
    end = f"{last:%H:%M}" if first.date() == last.date() else f"{last:%-d %b %Y, %H:%M}"
    minutes, seconds = divmod(round((last - first).total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (seconds, "s" if not hours else "")]
    length = " ".join(f"{number} {unit}" for number, unit in parts if number and unit) or "0 s"
    return f"{first:%-d %b %Y, %H:%M} to {end} UTC ({length})"


def _last(events: Sequence[Event], name: str) -> Event:
    """Return the last event of that name; empty if none."""
    return next((event for event in reversed(events) if event["event"] == name), {})


def _federated_line(events: Sequence[Event]) -> str:
    """Return the basis of the federated measures in a sentence; or empty."""
    said = _last(events, FEDERATED)
    if "noise" not in said:
        return ""
    try:
        sites = int(said["sites"])
        line = (
            f"{sites} of {sites + len(said['without'])} sites, about "
            f"{max(0, round(said['records']))} records, noise σ = {float(said['noise']):.3g} a cell"
        )
    except (LookupError, TypeError, ValueError):
        raise DataError("the journal is damaged: its federated measures are not whole") from None
    return line


def _measures(events: Sequence[Event], name: str) -> Iterable[tuple[Cell, ...]]:
    """Yield the final measures with intervals; empty without a test."""
    said = _last(events, name)
    try:
        yield from measure_rows(said)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise DataError("the journal is damaged: its final measures are not whole") from None


def _results(rounds: Sequence[Event], *, is_regression: bool = False) -> Iterable[tuple[Cell, ...]]:
    last = rounds[-1]
    for name in dict.fromkeys(n for event in rounds for n in event["metrics"]):
        found = [(e["metrics"][name], e["round"]) for e in rounds if name in e["metrics"]]
        finite = [pair for pair in found if math.isfinite(pair[0])]
        best: Cell = ""
        if finite and not name.endswith("-variance"):  # of which none is best
            value, number = (min if is_error(name) else max)(finite)
            best = f"{value:.4f} (round {number})"
        shown = name.replace("accuracy", "R²") if is_regression else name
        yield metric_words(shown), last["metrics"].get(name, ""), best, _counted(last, name)
    yield "updates used", f"{len(last['accepted'])} of {len(last['asked'])}", "", ""
    without = sum("gauges" not in event for event in rounds)
    yield "rounds without a quorum", without, "", ""
    for key, words in (("bytes_down", "sent to sites"), ("bytes_up", "sent by sites")):
        total = sum(int(event.get(key, 0)) for event in rounds)
        yield words, f"{total / 1e6:.2f} MB", "", ""


def _counted(last: Event, metric: str) -> str:
    """Return the number of sites in a mean; empty if unknown."""
    tested = last.get("tested", {})
    number = tested.get("counted", {}).get(metric.removesuffix(WORST))
    return "" if number is None else f"{number} of {tested['sites']}"


def _not_counted(last: Event) -> Iterable[tuple[str, str]]:
    """Yield the sites outside the last round's means, with reasons."""
    for site, why in last.get("tested", {}).get("missing", {}).items():
        yield str(site), str(why)


def _privacy(events: Sequence[Event]) -> Iterable[tuple[Cell, ...]]:
    said = next((e for e in reversed(events) if e["event"] == "privacy"), {})
    for key, value in said.items():
        if key not in ("event", "at"):
            words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield key, _NOISE.get(words, words) if key == "noise" else words
    if not said:
        yield "not known", "the run ended before it was said"


def _sites(rounds: Sequence[Event]) -> Iterable[tuple[Cell, ...]]:
    asked, weights = Counter[str](), defaultdict[str, list[float]](list)
    used, reasons = Counter[str](), defaultdict[str, Counter[str]](Counter)
    for event in rounds:
        asked.update(set(event["asked"]))
        used.update(set(event["accepted"]))
        for site, weight in zip(event["accepted"], event["weights"], strict=False):
            weights[site].append(weight)
        for site, why in event.get("rejected", {}).items():
            if why is not None:
                reasons[site][str(why)] += 1
    for site in dict.fromkeys(site for event in rounds for site in event["asked"]):
        own = weights[site]
        mean = sum(own) / len(own) if own else ""
        words = "; ".join(f"{why} ({count} ×)" for why, count in reasons[site].items())
        yield site, asked[site], used[site], mean, own[-1] if own else "", words


def _some(rows: Iterable[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """Return the first rows and the number of others."""
    shown = list(rows)
    rest = len(shown) - MOST_ROWS
    if rest <= 0:
        return shown
    return [*shown[:MOST_ROWS], (f"and {rest:,} more, in the journal",)]


def _sites_not_asked(
    events: Sequence[Event], rounds: Sequence[Event]
) -> Iterable[tuple[Cell, ...]]:
    """Yield sites without their operator's approval before the last round."""
    asked = {site for event in rounds for site in event["asked"]}
    decisions = {e.get("site"): e.get("status") for e in events if e["event"] == "approval"}
    for site, status in decisions.items():
        if site not in asked:
            yield str(site), 0, 0, "", "", f"{status}"


def _versions(starts: Sequence[Event]) -> Iterable[tuple[Cell, ...]]:
    found: dict[str, list[str]] = {}
    for event in starts:
        for name, version in event.get("versions", {}).items():
            if version not in found.setdefault(name, []):
                found[name].append(version)
    yield from ((name, ", then ".join(versions)) for name, versions in found.items())


def folded(terms: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return changed and default run config keys, under two titles."""
    default = defaults()
    said: list[tuple[str, str]] = []
    usual: list[tuple[str, str]] = []
    for key, value in terms.items():
        kind = usual if value == default.get(key) else said
        lines = isinstance(value, str) and "\n" in value
        kind.append((key, value.strip() if lines else json.dumps(value, ensure_ascii=False)))
    return [("Not the default", said), ("Defaults", usual)]


def _picture(events: Sequence[Event]) -> str:
    with tempfile.TemporaryDirectory() as name:
        plot_run(events, Path(name) / "run.png")
        return base64.b64encode((Path(name) / "run.png").read_bytes()).decode()
