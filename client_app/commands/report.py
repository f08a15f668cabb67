"""``hdpfl-site report``: what this site promises and has spent, for a data-protection officer."""

from __future__ import annotations

import contextlib
import json
import math
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from client_app.commands.books import Books, notes_on_cap, read_books, standing
from client_app.commands.common import ProfileOption, open_profile
from client_app.commands.ledger import STATUSES, metrics_left
from client_app.commands.printing import ROUNDING, down, table, up
from hdpfl_flower.errors import DataError
from hdpfl_flower.profile import Profile

WIDTH = 92

RECORD = "one record"

RELATION = "adding or removing one such unit"
ADVERSARY = (
    "the server and everybody behind it: they see every byte this site ever sends, in all rounds "
    "and all runs, and choose what they send back; other sites may help them"
)
PRIVATE_EPSILON = (
    "The site's own ε, δ and batch size are private, which means: not sent. It does not mean "
    "secret. How loud the noise in an update is can be estimated from the update itself."
)
_DISCLOSED = {
    "declared-records": "the declared number of records, told to the server when the site joins",
    "epsilon": "the ε of a run, told to the server when the site joins",
    "noise-std": "the noise of a simulated site, told to the server when it joins",
    "metrics": "accuracy and loss on records of this site, without any noise",
}
_STATUS_WORDS = {
    "reserved": "taken and not finished: being worked on, or broken off; nothing left the site",
    "sealed": "noisy updates stored and handed over: they may have left",
    "sent": "noisy updates that left the site",
    "lost": "given up: nothing left the site, and the budget was charged all the same",
}


def report(
    profile: ProfileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Print the site's privacy report.

    In plain words: what is promised, what was spent and released, and what is not covered.
    """
    site = open_profile(profile)
    facts = gather(site, read_books(site))
    if as_json:
        typer.echo(json.dumps(_plain(facts), indent=2, ensure_ascii=False))
        return
    for line in in_words(facts):
        typer.echo(line)


def gather(site: Profile, books: Books) -> dict[str, Any]:
    """Return everything the report says, by name; ε and δ spent are rounded up, left down."""
    now = standing(books.account, site.budget)
    facts: dict[str, Any] = {
        "ledger": {
            "path": str(site.ledger.path) if site.ledger else "",
            "entries": len(books.entries),
            "from": books.entries[0].at[:10] if books.entries else "",
            "to": books.entries[-1].at[:10] if books.entries else "",
            "anchor": bool(site.ledger and site.ledger.anchor),
            "cap-raised-on": [e.at[:10] for e in books.entries if e.kind == "cap"][1:],
        },
        "cap": _amount(now.cap),
        "spent": _amount(now.spent),
        "left": _amount(now.left),
        "notes": list(notes_on_cap(books.account, site.budget)),
        "runs": [_run(books, run_id, site) for run_id in books.runs],
        "updates": {status: books.count(status, kind="update") for status in STATUSES},
        "metrics-released": metrics_left(books),
        "no-privacy": math.inf in (site.run.epsilon, now.spent[0]),
        "simulation": site.simulated,
        "disclosed": list(site.disclose),
    }
    facts["promise"] = {
        "unit": _unit_of_all(facts["runs"]),
        "relation": RELATION,
        "adversary": ADVERSARY,
        "private-epsilon": PRIVATE_EPSILON,
    }
    facts["not-covered"] = list(_not_covered(facts))
    return facts


def in_words(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the report's lines."""
    ledger, spent = facts["ledger"], facts["spent"]
    yield "PRIVACY REPORT OF THIS SITE"
    yield f"ledger {ledger['path']}"
    yield f"entries verified: {ledger['entries']}" + (
        f", {ledger['from']} to {ledger['to']} (UTC)" if ledger["entries"] else ""
    )
    yield "\n1. What is promised"
    yield from _promise(facts)
    yield "\n2. What was spent"
    yield from _spending(facts)
    yield "\n3. What was released"
    for status in STATUSES:
        yield from _bullet(f"{status} {facts['updates'][status]}: {_STATUS_WORDS[status]}")
    yield from _bullet(f"metrics {facts['metrics-released']}: released without noise, see 4")
    yield "\n4. What the promise does not cover"
    for text in facts["not-covered"]:
        yield from _bullet(text)
    yield "\n5. What 'private' means here"
    yield from _wrapped(PRIVATE_EPSILON)
    if spent["epsilon"]:
        yield f"\n{ROUNDING}"


def _promise(facts: dict[str, Any]) -> Iterator[str]:
    epsilon, delta = facts["spent"]["epsilon"], facts["spent"]["delta"]
    if facts["simulation"]:
        yield from _wrapped(
            "NOTHING: this is a simulation. Its noise comes from a seed, so it protects nobody."
        )
        return
    if math.isinf(epsilon):
        yield from _wrapped(
            "NO PRIVACY: ε is infinite. At least one run added no noise, so what this site sent "
            "may tell anything about its records."
        )
        return
    yield from _wrapped(
        "All noisy updates that this site has released under this ledger, taken together, are "
        f"(ε, δ)-differentially private with ε = {up(epsilon)} and δ = {up(delta)}, whatever the "
        "server does. Charges only grow, and a run that does not fit under the cap "
        f"ε = {down(facts['cap']['epsilon'])}, δ = {down(facts['cap']['delta'])} is declined."
    )
    yield from _bullet(f"Protected is {facts['promise']['unit']}.")
    yield from _bullet(f"Compared is {RELATION}.")
    yield from _bullet(f"The adversary is {ADVERSARY}.")
    if epsilon:
        yield from _bullet(
            f"In words: one unit more or less changes the probability of anything that can be "
            f"seen by a factor of at most e^ε = {_factor(epsilon)}, but for a probability δ."
        )


def _spending(facts: dict[str, Any]) -> Iterator[str]:
    if facts["runs"]:
        rows = [("run", "charged", "algorithm", "rounds", "ε", "δ")]
        rows += [
            (run["run-id"], run["charged"] or "-", run["strategy"] or "-", str(run["rounds"]),
             _in_run(run["epsilon"]), _in_run(run["delta"]))
            for run in facts["runs"]
        ]  # fmt: skip
        for line in table(rows):
            yield f"  {line}"
    else:
        yield "  no run was charged yet"
    yield "  A run is charged whole when it starts; nothing is given back if it ends early."
    for name, write in (("cap", down), ("spent", up), ("left", down)):
        amount = facts[name]
        yield f"  {name:<6} ε {write(amount['epsilon'])}, δ {write(amount['delta'])}"
    for day in facts["ledger"]["cap-raised-on"]:
        yield f"  the cap was raised on {day}, by a command of this site's operator"
    for note in facts["notes"]:
        yield f"  {note}"
    if not facts["ledger"]["anchor"]:
        yield "  The ledger has no anchor: nobody would notice an older copy put back."


def _not_covered(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what leaves the site, or may be learned, outside of (ε, δ)."""
    if facts["simulation"]:
        yield "Everything: a simulation's noise can be computed again by whoever knows the seed."
    if facts["no-privacy"]:
        yield "Runs with an infinite ε: this site opted out of noise, and they give no privacy."
    for name in facts["disclosed"]:
        yield f"'{name}', which the profile discloses: {_DISCLOSED[name]}."
    if facts["metrics-released"]:
        yield f"Metrics without noise: {facts['metrics-released']} were released so far."
    if facts["promise"]["unit"] == RECORD:
        yield (
            "A person with several records: the promise holds for each record, not for all of "
            "them together ('data.id' names a column that makes the person the unit)."
        )
    yield (
        "The declared number of records N: it counts as public (batches, steps and noise are "
        "planned with it, never with the true number)."
    )
    yield (
        "The time a reply takes: it grows with the records that a batch happens to hold, and no "
        "constant time of reply ('reply-after') is set."
    )
    yield (
        "What the site's own people hand on: numbers or predictions that "
        "'hdpfl-site model' computes here from this site's records."
    )


def _run(books: Books, run_id: str, site: Profile) -> dict[str, Any]:
    plan = books.account.plans.get(run_id)
    terms = json.loads(plan.terms) if plan else {}
    return {
        "run-id": run_id,
        "charged": books.charged_on(run_id),
        "strategy": terms.get("strategy", ""),
        "rounds": len(json.loads(plan.plan)["steps"]) if plan else 0,
        "epsilon": plan.epsilon if plan else None,
        "delta": plan.delta if plan else None,
        "unit": _unit(str(terms.get("schema", "")), site),
        "updates": {status: books.count(status, run_id, "update") for status in STATUSES},
        "metrics-released": metrics_left(books, run_id),
    }


def _unit(schema_text: str, site: Profile) -> str:
    """Return what a run protects: one record, or what the id column of its schema names."""
    if schema_text and site.data is not None and site.data.format in ("csv", "parquet"):
        from hdpfl_flower.schema import Schema

        with contextlib.suppress(DataError):  # a schema that a later version no longer reads
            if column := Schema.load(schema_text).id:
                return f"all that lies under one value of column '{column}' (one record is used)"
    return RECORD


def _unit_of_all(runs: list[dict[str, Any]]) -> str:
    """Return the unit that every run protects: one record, unless all name the same id column."""
    units = {run["unit"] for run in runs}
    return units.pop() if len(units) == 1 else RECORD


def _amount(amount: tuple[float, float]) -> dict[str, float]:
    return {"epsilon": amount[0], "delta": amount[1]}


def _in_run(value: float | None) -> str:
    return "-" if value is None else up(value)


def _factor(epsilon: float) -> str:
    """Return e^ε in print, rounded up."""
    return up(math.exp(epsilon)) if epsilon < 20 else "more than a hundred million"


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON has it: an infinite number becomes the text 'inf'."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return "inf" if value == math.inf else value


def _wrapped(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _bullet(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, WIDTH, initial_indent="  - ", subsequent_indent="    ")
