"""The sections of a site's report, in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from client_app.reports.board import NIST, nist_rows, runs_asked
from client_app.reports.formatting import ROUNDING, ceil_digits
from client_app.reports.ledger_view import STATUSES
from client_app.reports.units import (
    BY_SERVER,
    RECORD,
    WHOLE_SITE,
)

TEXT, POINT, TABLE = "text", "point", "table"
Part = tuple[str, Any]
"""Kind and content: a paragraph, a point of a list, or rows of cells, the first one the header."""

_STATUS_WORDS = {
    "reserved": "taken and not finished: being worked on, or broken off; nothing left the site",
    "sealed": "{noisy} updates stored and handed over: they may have left",
    "sent": "{noisy} updates that left the site",
    "lost": "given up: nothing left the site, and the budget was charged all the same",
}
_SHORT = {
    RECORD: "record",
    WHOLE_SITE: "all records",
    BY_SERVER: "the server's",
}


def names_of(runs: list[str]) -> str:
    """Return the names of runs in a sentence."""
    return ("run " if len(runs) == 1 else "runs ") + ", ".join(f"'{run}'" for run in runs)


def sections(facts: dict[str, Any]) -> list[tuple[str, list[Part]]]:
    """Return the whole report."""
    found = [
        ("", [*_head(facts["ledger"])]),
        ("Who asked, and who decided", [*_decided(facts)]),
        ("What was spent", [*_spending(facts)]),
        ("What was released", [*_released(facts)]),
        ("Assumptions checked", [*_assumptions(facts)]),
        ("What the promise does not cover", [(POINT, each) for each in facts["not-covered"]]),
        ("What 'private' means here", [(TEXT, facts["promise"]["private-epsilon"])]),
        (
            "Appendix: topics of NIST SP 800-226",
            [
                (
                    TEXT,
                    f"Guidelines for Evaluating Differential Privacy Guarantees, {NIST}. Topics "
                    "are in this report's words; it was not compared with each section.",
                ),
                (TABLE, tuple(nist_rows(facts))),
            ],
        ),
    ]
    return [*found, ("", [(TEXT, ROUNDING)])]


def failed(facts: dict[str, Any]) -> list[str]:
    """Return the claims that the ledger's entries contradict."""
    return [each["claim"] for each in facts["assumptions"] if each["status"] == "fails"]


def _head(ledger: dict[str, Any]) -> Iterator[Part]:
    days = f", {ledger['from']} to {ledger['to']} (UTC)" if ledger["entries"] else ""
    yield (TEXT, f"ledger {ledger['path']}")
    yield (TEXT, f"entries verified: {ledger['entries']}{days}")
    yield (TEXT, f"digest of the last one: {ledger['digest']}")


def _decided(facts: dict[str, Any]) -> Iterator[Part]:
    rows = runs_asked(facts, whole=True)
    yield (TEXT, "Coordinator and purpose are the server's word. Each decision is a ledger entry.")
    yield (TABLE, tuple(rows)) if len(rows) > 1 else (TEXT, "no run was asked for")


def _spending(facts: dict[str, Any]) -> Iterator[Part]:
    if facts["runs"]:
        yield (TABLE, tuple(charges(facts["runs"])))
        yield (TEXT, "What each run did, and its ε computed again from the ledger alone:")
        yield (TABLE, tuple(_events(facts["runs"])))
        yield (
            TEXT,
            "Each step takes a record with probability q and adds noise of z times the clip norm "
            "(twice it where the unit is all records). PLD is how the charge was made; RDP is "
            "another proof for the same steps, and looser.",
        )
        if any(run["plan"] and run["plan"]["counts-noise"] is not None for run in facts["runs"]):
            yield (
                TEXT,
                "Counts: each class of the labels is counted once a run, with noise of that z; the "
                "numbers stay at the site. Their cost is in the run's ε.",
            )
        if any(run["plan"] and run["plan"]["scores-noise"] is not None for run in facts["runs"]):
            yield (
                TEXT,
                "Scores: once a run the final model's predictions for the records held out, one a "
                "unit, are counted by class in public bins, with noise of that z in each count, "
                "and sent. Their cost is in the run's ε.",
            )
    else:
        yield (TEXT, "no run was charged yet")
    if facts["order"]:
        yield (
            TEXT,
            f"A Rényi filter of order {facts['order']} holds the promise: all of a run is reserved "
            "when it starts, and what it never reserved of its releases returns when it has ended.",
        )
    else:
        yield (TEXT, "A run is charged whole when it starts; nothing returns if it ends early.")
    for day in facts["ledger"]["cap-raised-on"]:
        yield (TEXT, f"the cap was raised on {day}, by a command of this site's operator")
    if not facts["ledger"]["anchor"] and facts["simulation"] is not None:
        yield (TEXT, "The ledger has no anchor: an older copy put back would go unnoticed.")


def charges(runs: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield a header, then a row of charges for each run."""
    yield ("run", "charged", "algorithm", "unit", "rounds", "ε", "δ")
    for run in runs:
        yield (
            run["run-id"],
            run["charged"] or "-",
            run["strategy"] or "-",
            _SHORT.get(run["unit"], "id"),
            str(run["rounds"]),
            _in_run(run["epsilon"]),
            _in_run(run["delta"]),
        )


def _events(runs: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield a header, then a row for each part of a schedule."""
    yield ("run", "rounds × steps", "q", "z", "δ", "ε charged", "ε by PLD", "ε by RDP")
    for run in runs:
        charged, delta = _in_run(run["epsilon"]), _in_run(run["delta"])
        plan = run["plan"]
        if plan is None:
            yield (run["run-id"], "-", "-", "-", delta, charged, "-", "-")
            continue
        numbers = (
            ceil_digits(plan["noise-multiplier"]),
            delta,
            charged,
            ceil_digits(plan["epsilon-pld"]),
            ceil_digits(plan["epsilon-rdp"]),
        )
        for part in plan["schedule"]:
            event = f"{part['rounds']} × {part['steps']}", f"{part['sampling-prob']:.4g}"
            z = ceil_digits(plan["noise-multiplier"] * part["noise-factor"])
            yield (run["run-id"], *event, z, *numbers[1:])
        last = f"{plan['schedule'][-1]['sampling-prob']:.4g}"
        if plan["tuning-steps"]:
            yield (run["run-id"], f"tuning × {plan['tuning-steps']}", last, *numbers)
        if plan["counts-noise"] is not None:
            yield (run["run-id"], "counts", "1", ceil_digits(plan["counts-noise"]), *numbers[1:])
        if plan["scores-noise"] is not None:
            yield (run["run-id"], "scores", "1", ceil_digits(plan["scores-noise"]), *numbers[1:])


def _released(facts: dict[str, Any]) -> Iterator[Part]:
    for status in STATUSES:
        words = _STATUS_WORDS[status].format(noisy=_noisy(facts["runs"]))
        yield (POINT, f"{status} {facts['updates'][status]}: {words}")
    yield (POINT, f"metrics {facts['metrics-released']}: released without noise")
    if facts["scores-released"]:
        yield (
            POINT,
            f"histograms of scores {facts['scores-released']}: with noise, part of their runs' ε",
        )
    if any(facts["stays"].values()):
        kept = ", ".join(f"{kind} {count}" for kind, count in facts["stays"].items() if count)
        yield (POINT, f"{kept}: sealed for this site's own model, with noise, and never sent")
    if facts["closed-runs"]:
        yield (
            POINT,
            f"closed here: {names_of(facts['closed-runs'])}; nothing more of them can be released",
        )
    if facts["clipped-updates-released"]:
        clipped = facts["clipped-updates-released"]
        yield (POINT, f"clipped updates {clipped}: released without noise to a trusted server")
    if not facts["runs"]:
        return
    header = ("run", "round", "kind", "status", "time (UTC)", "payload's SHA-256")
    rows = [
        (each["run-id"], str(each["round"]), each["kind"], each["status"], each["at"][:19],
         each["payload"] or "-")
        for each in facts["releases"]
    ]  # fmt: skip
    yield (TABLE, (header, *rows))


def _noisy(runs: list[dict[str, Any]]) -> str:
    """Return the kind of the charged updates: noisy, clean or mixed."""
    without = [run["epsilon"] is not None and math.isinf(run["epsilon"]) for run in runs]
    if not any(without):
        return "noisy"
    return "un-noised" if all(without) else "noisy and (in runs of an infinite ε) un-noised"


def _assumptions(facts: dict[str, Any]) -> Iterator[Part]:
    words = {"holds": "holds", "fails": "FAILS", "not checked": "NOT CHECKED"}
    for each in facts["assumptions"]:
        yield (POINT, f"{words[each['status']]}: {each['claim']} ({each['how']}).")
        for failure in each["failures"]:
            yield (POINT, f"FAILS: {failure}")


def _in_run(value: float | None) -> str:
    return "-" if value is None else ceil_digits(value)
