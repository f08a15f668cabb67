"""The sections of a site's report, in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from client_app.reports.attack import in_words
from client_app.reports.formatting import ROUNDING, ceil_digits, floor_digits
from client_app.reports.layout import Bullet, Part, Section, Table, Text
from client_app.reports.ledger_view import STATUSES
from client_app.reports.units import (
    AGAINST_NOTHING,
    BY_SERVER,
    MORE_OR_LESS,
    NOT_HERE,
    RECORD,
    WHOLE_SITE,
)

TITLE = "Privacy report of this site"
_STATUS_WORDS = {
    "reserved": "taken and not finished: being worked on, or broken off; nothing left the site",
    "sealed": "{noisy} updates stored and handed over: they may have left",
    "sent": "{noisy} updates that left the site",
    "lost": "given up: nothing left the site, and the budget was charged all the same",
}
_SHORT = {
    RECORD: "record",
    WHOLE_SITE: "all records",
    AGAINST_NOTHING: "update or none",
    BY_SERVER: "the server's",
}
_FAULT = "CONTRADICTED: do not rely on the numbers of this report before it is cleared up."


def sections(facts: dict[str, Any], *, every_release: bool) -> list[Section]:
    """Return the report; ``every_release`` adds a table with a row a release."""
    found = [
        Section("", tuple(_head(facts["ledger"]))),
        Section("1. What is promised", tuple(_promise(facts))),
        Section("2. What was spent", tuple(_spending(facts))),
        Section("3. What was released", tuple(_released(facts, every_release))),
        Section("4. Assumptions checked", tuple(_assumptions(facts))),
        Section("5. What the promise does not cover", tuple(map(Bullet, facts["not-covered"]))),
        Section("6. What 'private' means here", (Text(facts["promise"]["private-epsilon"]),)),
    ]
    return [*found, Section("", (Text(ROUNDING),))]


def failed(facts: dict[str, Any]) -> list[str]:
    """Return the claims that the ledger's entries contradict."""
    return [each["claim"] for each in facts["assumptions"] if each["status"] == "fails"]


def _head(ledger: dict[str, Any]) -> Iterator[Part]:
    days = f", {ledger['from']} to {ledger['to']} (UTC)" if ledger["entries"] else ""
    yield Text(f"ledger {ledger['path']}")
    yield Text(f"entries verified: {ledger['entries']}{days}")
    yield Text(f"digest of the last one: {ledger['digest']}")


def _promise(facts: dict[str, Any]) -> Iterator[Part]:
    epsilon, delta = facts["spent"]["epsilon"], facts["spent"]["delta"]
    for claim in failed(facts):
        yield Text(f"{_FAULT} The ledger's own entries say otherwise than '{claim}', see 4.")
    if facts["simulation"]:
        yield Text(
            "NOTHING: this is a simulation. Its noise comes from a seed, so it protects nobody."
        )
        return
    if facts["clipped-updates-opted-out"]:
        yield Text(
            "NO PRIVACY in the runs of a trusted server: this site declared an infinite ε to it, "
            f"so {facts['clipped-updates-opted-out']} of its updates went into models without any "
            "noise. What follows does not cover them."
        )
    if facts["clipped-updates-released"] > facts["clipped-updates-opted-out"]:
        trusted = facts["trusted-server"]
        epsilon_there = trusted["epsilon"]
        amount = (
            "" if epsilon_there is None else f", at an ε of {ceil_digits(epsilon_there)} in all"
        )
        yield Text(
            f"CLIENT-LEVEL DP BY A TRUSTED SERVER for {_names(trusted['runs'])}: their updates "
            "left without noise, and what follows does not cover them, see 5. That server "
            f"promises, on its word alone{amount}: {NOT_HERE}."
        )
    if math.isinf(epsilon):
        yield Text(
            "NO PRIVACY: ε is infinite. At least one run added no noise, so what this site sent "
            "may disclose anything about its records."
        )
        return
    cap = f"ε = {floor_digits(facts['cap']['epsilon'])}, δ = {floor_digits(facts['cap']['delta'])}"
    if len(facts["sums"]) > 1:
        yield from _by_unit(facts, cap)
        return
    yield Text(
        "All noisy updates that this site has released under this ledger, taken together, are "
        f"(ε, δ)-differentially private with ε = {ceil_digits(epsilon)} and δ = "
        f"{ceil_digits(delta)}, whatever the server does. Charges only grow, and a run that does "
        f"not fit under the cap {cap} is declined."
    )
    yield Bullet(f"Protected is {facts['promise']['unit']}.")
    yield Bullet(f"Compared is {facts['promise']['relation']}.")
    yield Bullet(f"The adversary is {facts['promise']['adversary']}.")
    if epsilon:
        more_or_less = facts["promise"]["relation"] == MORE_OR_LESS
        what = "one unit more or less" if more_or_less else "what is compared"
        yield Bullet(
            f"In words: {what} changes the probability of anything that can be "
            f"seen by a factor of at most e^ε = {_factor(epsilon)}, but for a probability δ."
        )
    yield from _attacks(facts)


def _by_unit(facts: dict[str, Any], cap: str) -> Iterator[Part]:
    """Yield the promise where runs protect different units: a sum for each, and no other."""
    yield Text(
        "The runs of this ledger protect units of different size, so there is no single ε. The "
        "noisy updates of the runs of one unit, taken together, are (ε, δ)-differentially private "
        "for that unit, whatever the server does. Charges of all units count against the one cap "
        f"{cap}, only grow, and a run that does not fit under it is declined."
    )
    for each in facts["sums"]:
        yield Bullet(
            f"Protected is {each['unit']}, compared is {each['relation']}: "
            f"ε = {ceil_digits(each['epsilon'])}, δ = {ceil_digits(each['delta'])} "
            f"(e^ε = {_factor(each['epsilon'])}), by {_names(each['runs'])} alone."
        )
    for each in facts["sums"]:
        if total := each["with-all-records"]:
            yield Bullet(
                f"The runs of all records protect {each['unit']} as well. With them counted, its "
                f"ε is {ceil_digits(total['epsilon'])} and its δ {ceil_digits(total['delta'])}."
            )
    yield from _attacks(facts)
    yield Bullet(f"The adversary is {facts['promise']['adversary']}.")


def _attacks(facts: dict[str, Any]) -> Iterator[Part]:
    for each in facts["sums"]:
        if found := each["attacker-finds"]:
            yield Bullet(
                f"An attack that sees all of {_names(each['runs'])} and asks whether "
                f"{each['unit']} was among the data {in_words(found)}; seeing nothing, as many."
            )


def _names(runs: list[str]) -> str:
    return ("run " if len(runs) == 1 else "runs ") + ", ".join(f"'{run}'" for run in runs)


def _spending(facts: dict[str, Any]) -> Iterator[Part]:
    if facts["runs"]:
        yield Table(tuple(_charges(facts["runs"])))
        yield Text("What each run did, and its ε computed again from the ledger alone:")
        yield Table(tuple(_events(facts["runs"])))
        yield Text(
            "Each step takes a record with probability q and adds noise of z times the clip norm "
            "(twice it where the unit is all records). PLD is how the charge was made; RDP is "
            "another proof for the same steps, and looser."
        )
        if any(run["plan"] and run["plan"]["counts-noise"] is not None for run in facts["runs"]):
            yield Text(
                "Counts: each class of the labels is counted once a run, with noise of that z; the "
                "numbers stay at the site. Their cost is in the run's ε."
            )
        if any(run["plan"] and run["plan"]["scores-noise"] is not None for run in facts["runs"]):
            yield Text(
                "Scores: once a run the final model's predictions for the records held out, one a "
                "unit, are counted by class in public bins, with noise of that z in each count, "
                "and sent. Their cost is in the run's ε."
            )
    else:
        yield Text("no run was charged yet")
    yield Text("A run is charged whole when it starts; nothing is given back if it ends early.")
    for name, write in (("cap", floor_digits), ("spent", ceil_digits), ("left", floor_digits)):
        amount = facts[name]
        yield Bullet(f"{name}: ε {write(amount['epsilon'])}, δ {write(amount['delta'])}")
    for day in facts["ledger"]["cap-raised-on"]:
        yield Text(f"the cap was raised on {day}, by a command of this site's operator")
    yield from map(Text, facts["notes"])
    if not facts["ledger"]["anchor"] and facts["simulation"] is not None:
        yield Text("The ledger has no anchor: nobody would notice an older copy put back.")


def _charges(runs: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield a header, then a row a run: what it was charged."""
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
    """Yield a header, then a row a part of a run's schedule: its event, its ε three times."""
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
            yield (run["run-id"], *event, *numbers)
        last = f"{plan['schedule'][-1]['sampling-prob']:.4g}"
        if plan["tuning-steps"]:
            yield (run["run-id"], f"tuning × {plan['tuning-steps']}", last, *numbers)
        if plan["counts-noise"] is not None:
            yield (run["run-id"], "counts", "1", ceil_digits(plan["counts-noise"]), *numbers[1:])
        if plan["scores-noise"] is not None:
            yield (run["run-id"], "scores", "1", ceil_digits(plan["scores-noise"]), *numbers[1:])


def _released(facts: dict[str, Any], every_release: bool) -> Iterator[Part]:
    for status in STATUSES:
        words = _STATUS_WORDS[status].format(noisy=_noisy(facts["runs"]))
        yield Bullet(f"{status} {facts['updates'][status]}: {words}")
    yield Bullet(f"metrics {facts['metrics-released']}: released without noise, see 5")
    if facts["scores-released"]:
        yield Bullet(
            f"histograms of scores {facts['scores-released']}: with noise, part of their runs' ε"
        )
    if any(facts["stays"].values()):
        kept = ", ".join(f"{kind} {count}" for kind, count in facts["stays"].items() if count)
        yield Bullet(f"{kept}: sealed for this site's own model, with noise, and never sent")
    if facts["closed-runs"]:
        yield Bullet(
            f"closed here: {_names(facts['closed-runs'])}; nothing more of them can be released"
        )
    if facts["clipped-updates-released"]:
        clipped = facts["clipped-updates-released"]
        yield Bullet(f"clipped updates {clipped}: released without noise to a trusted server")
    if not facts["runs"]:
        return
    if not every_release:
        rows = [("run", *STATUSES, "metrics")]
        for run in facts["runs"]:
            counts = [run["updates"][status] for status in STATUSES]
            rows.append((run["run-id"], *map(str, counts), str(run["metrics-released"])))
        yield Table(tuple(rows))
        yield Text("Each of them, with the time and the hash of its payload: --markdown or --json.")
        return
    header = ("run", "round", "kind", "status", "time (UTC)", "payload's SHA-256")
    rows = [
        (each["run-id"], str(each["round"]), each["kind"], each["status"], each["at"][:19],
         each["payload"] or "-")
        for each in facts["releases"]
    ]  # fmt: skip
    yield Table((header, *rows))


def _noisy(runs: list[dict[str, Any]]) -> str:
    """Return what the charged runs' updates are: noisy, without noise, or some of each."""
    without = [run["epsilon"] is not None and math.isinf(run["epsilon"]) for run in runs]
    if not any(without):
        return "noisy"
    return "un-noised" if all(without) else "noisy and (in runs of an infinite ε) un-noised"


def _assumptions(facts: dict[str, Any]) -> Iterator[Part]:
    words = {"holds": "holds", "fails": "FAILS", "not checked": "NOT CHECKED"}
    for each in facts["assumptions"]:
        yield Bullet(f"{words[each['status']]}: {each['claim']} ({each['how']}).")
        for failure in each["failures"]:
            yield Bullet(f"FAILS: {failure}")


def _in_run(value: float | None) -> str:
    return "-" if value is None else ceil_digits(value)


def _factor(epsilon: float) -> str:
    """Return e^ε in print, rounded up."""
    return ceil_digits(math.exp(epsilon)) if epsilon < 20 else "more than a hundred million"
