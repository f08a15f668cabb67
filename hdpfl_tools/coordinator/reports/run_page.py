"""Run report: one self-contained HTML page from the run's folder."""

from __future__ import annotations

import json
import math
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hdpfl_flower.config.server_terms import rates_line
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.site_summary import NOBODY_MEASURED, NOT_ASKED, WORST, is_error
from hdpfl_flower.monitoring.influence import warning_lines
from hdpfl_flower.monitoring.journal import Event, finished_rounds, read_journal
from hdpfl_flower.noise_sources import SOURCES
from hdpfl_flower.releases import sent_once
from hdpfl_tools.coordinator.reports.measures import metric_words
from hdpfl_tools.coordinator.reports.page import (
    Block,
    Cell,
    Row,
    configuration,
    picture,
    render,
    table,
)
from hdpfl_tools.coordinator.reports.site_rows import (
    SiteRounds,
    cluster_findings,
    rounds_of_sites,
    site_clusters,
    site_rows,
    site_shares,
)
from server_app.plots import plot_run, why_no_picture
from server_app.releases import half_of
from server_app.run.federated_measures import FEDERATED
from server_app.run.final_measures import EVENT, measure_rows
from server_app.run.resume import JOURNAL, defaults, is_complete

_PUBLIC = (
    "Measures on the public test set. Each interval of 95 % comes from resampling the test "
    "records. With more than two classes, a value is the mean over the classes of each class "
    "against the rest."
)
_MISSING = "The means of the last round do not count the tests of these sites:"
_SHARES = (
    "Each site's part of what moved the model over all rounds: its weight times the rate of "
    "each round, less what a guard took out later."
)
_AGAIN = (
    "A simulation with a seed computes the same arrays again. Real sites draw fresh noise, and "
    "their ledgers are charged for a new run."
)

_SUM_ALONE = (
    "The server reads only the sum of the sites, because of 'noise', so no site's share is "
    "known. A site with less noise has a larger weight in the sum: its weight is proportional "
    "to 1/z"
)


def make_report(folder: Path) -> str:
    """Return the page of the run in ``folder``.

    Raises:
        DataError: the folder has no journal, or a damaged one, or no finished round.
    """
    events = read_journal(folder / JOURNAL)
    rounds = finished_rounds(events)
    if not rounds:
        raise DataError("the run has no finished round, so there is nothing to report")
    starts = [event for event in events if event["event"] in ("run-started", "run-resumed")]
    terms: Any = next((e["terms"] for e in starts if "terms" in e), {})
    if not isinstance(terms, dict) or not terms:
        raise DataError("the journal is damaged: it does not say how the run began")
    sites, clusters = rounds_of_sites(rounds), list(cluster_findings(rounds))
    for site in sites.values() if _is_summed(terms) else ():
        site.weights.clear()  # those of the sites in the sum are not known
    missing = rounds[-1].get("tested", {}).get("missing", {})
    sections = {
        "No measures": [Block("warnings", _why_unmeasured(events, rounds))],
        **_final_measures(events),
        "Result": [
            table(_results(rounds), ("", "last round", "best round", "sites counted")),
            table([(str(s), str(why)) for s, why in missing.items()], ("site", "why"), _MISSING),
        ],
        "Figures": [_figure(events)],
        "Privacy": [table(_privacy(events))],
        "Sites": [
            table(
                [*site_rows(sites), *_sites_not_asked(events, rounds)],
                ("site", "asked", "used", "mean weight", "last weight", "why not used"),
            )
        ],
        "Shares of the model": _shares(rounds, sites, is_summed=_is_summed(terms)),
        "Clusters": [
            table(clusters, ("", "in the first round")),
            table(
                site_clusters(sites) if clusters else (),
                ("site", "its clusters, round by round", "confidence", "rounds in which it chose"),
            ),
        ],
        "Configuration": configuration(terms),
        "Versions": [table(_versions(starts))],
        "How to run it again": [Block("command", command_of(terms, rounds, starts), _AGAIN)],
    }
    lines = [_status(events, rounds, starts), rates_line(terms)]
    return render(f"Run {terms.get('run-id', folder.name)}", lines, sections)


def _is_summed(terms: Mapping[str, Any]) -> bool:
    source = SOURCES.get(str(terms.get("noise", "")))
    return source is not None and source.is_summed


def _shares(
    rounds: Sequence[Event], sites: Mapping[str, SiteRounds], *, is_summed: bool
) -> list[Block]:
    """Return the shares of the model by site, where the server knows them."""
    if is_summed:
        return [Block("warnings", [_SUM_ALONE])]
    head = ("site", "model", "share of the model", "share of the last step", "rounds used")
    gauges = ("estimated noise", "local steps", "length over the median length", "what limited it")
    return [
        Block("warnings", [f"Warning: {line}" for line in warning_lines(rounds)]),
        table(site_shares(rounds, sites), (*head, *gauges), _SHARES),
    ]


def _why_unmeasured(events: Sequence[Event], rounds: Sequence[Event]) -> list[str]:
    """Return why no measure is in the page, and the remedies; empty where one is."""
    if rounds[-1]["metrics"] or any(_last(events, name) for name in (EVENT, FEDERATED)):
        return []
    return [NOBODY_MEASURED if "tested" in rounds[-1] else NOT_ASKED]


def _final_measures(events: Sequence[Event]) -> dict[str, list[Block]]:
    """Return the sections with the measures of the final model."""
    head = ("measure", "value", "interval")
    kinds = [*sent_once().values()]
    facts_of = {kind: _last(events, kind.event) for kind in kinds}
    try:
        return {
            "Measures of the final model": [
                table(measure_rows(_last(events, EVENT)), head, _PUBLIC)
            ],
            **{
                kind.title: [table(measure_rows(facts), head, half_of(kind.kind).about(facts))]
                for kind, facts in facts_of.items()
            },
        }
    except (LookupError, TypeError, ValueError, AttributeError):
        raise DataError("the journal is damaged: its final measures are incomplete") from None


def command_of(terms: Mapping[str, Any], rounds: Sequence[Event], starts: Sequence[Event]) -> str:
    """Return the command that repeats the terms in a new run."""
    default = defaults()
    its_own = ("run-id", "runs-dir")
    given = {k: v for k, v in terms.items() if v != default.get(k) and k not in its_own}
    command = ["flwr", "run", "."]
    engine = starts[0].get("engine") if starts else None
    if engine in ("deployment", "rehearsal"):
        command += ["SUPERLINK"]
    elif starts and (config := starts[-1].get("federation-config")):
        command += ["--federation-config", config]
    elif sites := max((int(event.get("online", 0)) for event in rounds), default=0):
        command += ["--federation-config", f"num-supernodes={sites}"]
    # JSON's numbers, texts, true and false are TOML's, too.
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in given.items()}
    if any("\\" in text for text in texts.values()):  # more than Flower reads on a command line
        texts |= {
            key: f"'''\n{value}'''"
            for key, value in given.items()
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
    """Return start, end (UTC) and duration as hours:minutes:seconds."""
    try:
        first, last = (
            datetime.fromisoformat(str(event["at"])).astimezone(UTC)
            for event in (events[0], events[-1])
        )
    except (KeyError, ValueError):
        return "unknown time"
    end = f"{last:%H:%M}" if first.date() == last.date() else f"{last:%-d %b %Y, %H:%M}"
    seconds = round((last - first).total_seconds())
    return f"{first:%-d %b %Y, %H:%M} to {end} UTC ({timedelta(seconds=seconds)} h)"


def _last(events: Sequence[Event], name: str) -> Event:
    """Return the last event of that name; empty if none."""
    return next((event for event in reversed(events) if event["event"] == name), {})


def _results(rounds: Sequence[Event]) -> Iterator[Row]:
    last, is_regression = rounds[-1], "mse" in rounds[-1]["metrics"]
    tested = last.get("tested", {})
    for name in dict.fromkeys(name for event in rounds for name in event["metrics"]):
        values = [(event["metrics"].get(name, math.nan), event["round"]) for event in rounds]
        finite = [pair for pair in values if math.isfinite(pair[0])]
        best: Cell = ""
        if finite and not name.endswith("-variance"):  # no variance is best
            value, number = (min if is_error(name) else max)(finite)
            best = f"{value:.4f} (round {number})"
        words = metric_words(name.replace("accuracy", "R²") if is_regression else name)
        count = tested.get("counted", {}).get(name.removesuffix(WORST))
        sites = "" if count is None else f"{count} of {tested['sites']}"
        yield words, last["metrics"].get(name, ""), best, sites
    yield "updates used", f"{len(last['accepted'])} of {len(last['asked'])}", "", ""
    without = sum("gauges" not in event for event in rounds)
    yield "rounds without a quorum", without, "", ""
    for key, words in (
        ("bytes_down", "bytes sent to sites"),
        ("bytes_up", "bytes that sites sent"),
    ):
        total = sum(int(event.get(key, 0)) for event in rounds)
        yield words, f"{total / 1e6:.2f} MB", "", ""


def _privacy(events: Sequence[Event]) -> Iterator[Row]:
    promises = _last(events, "privacy")
    for key, value in promises.items():
        if key not in ("event", "at"):
            words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            source = SOURCES.get(words) if key == "noise" else None
            yield key, source.added if source else words
    if not promises:
        yield "not known", "the run ended before this was known"


def _sites_not_asked(events: Sequence[Event], rounds: Sequence[Event]) -> Iterator[Row]:
    """Yield sites without their operator's approval before the last round."""
    asked = {site for event in rounds for site in event["asked"]}
    decisions = {e.get("site"): e.get("status") for e in events if e["event"] == "approval"}
    for site, status in decisions.items():
        if site not in asked:
            yield str(site), 0, 0, "", "", f"{status}"


def _versions(starts: Sequence[Event]) -> Iterator[Row]:
    pairs = [pair for event in starts for pair in event.get("versions", {}).items()]
    for package in dict(pairs):
        versions = dict.fromkeys(version for name, version in pairs if name == package)
        yield package, ", then ".join(versions)


def _figure(events: Sequence[Event]) -> Block:
    if why := why_no_picture():
        return Block("text", f"There is no picture: {why}")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.png"
        plot_run(events, path)
        return picture(path, "Tests of the models by round, and each site's weight by round")
