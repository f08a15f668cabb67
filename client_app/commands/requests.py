"""``hdpfl-site requests`` and ``refuse``: waiting runs, each with its price."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from client_app.commands.options import ProfileOption, open_profile
from client_app.commands.plan import ledger_view, tests_of
from client_app.reports.formatting import bar, ceil_digits, floor_digits, per_cent
from client_app.reports.ledger_view import ledger_paths, read_ledger
from client_app.reports.lifetime import (
    RENYI,
    SUM,
    budget_status,
    fit_of,
    rounds_that_fit,
)
from client_app.site.inbox import RunRequest, read_requests, remove_request
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.settings import Value
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError, HDPFLError
from hdpfl_flower.ledger.account import APPROVED, REFUSED, Approval
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.monitoring.journal import plain
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.privacy.policy import FREE_TERMS, check_policy
from hdpfl_flower.system.printable import printable

SHORT = 32
"""Shown digits of a request's SHA-256, and the least that name it: 128 bits, for which no second
request is found."""
_NUMBER, _DIGITS = re.compile("[0-9]{1,18}"), re.compile("[0-9a-f]{32,64}")
_WIDTH = 84
"""Characters of a line beside its label; the rest follows on marked lines."""
_UPDATES = {
    "records": "an update a round, with this site's own noise on every record's gradient",
    "client": "an update a round, clipped and noised as a whole",
    "server": "an update a round WITHOUT noise: the server is trusted to add it",
}
_ALWAYS = (
    "strategy", "model", "dataset", "rounds", "local-epochs", "local-steps", "participations",
    "noise", "evaluation",
)  # fmt: skip
"""Terms with a line of their own, by default too."""

ByOption = Annotated[
    str,
    typer.Option(
        "--by", metavar="NAME", help="Name of the decider, beside the system's user name."
    ),
]


def requests(
    profile: ProfileOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, every term included.")
    ] = False,
) -> None:
    """List the runs that wait for approval, and the decisions so far.

    Each with its purpose, its terms, the app, what it would cost of this site's budget and what it
    would disclose. No record is read. The price is shown here alone.
    """
    site = open_profile(profile)
    waiting = read_requests(ledger_paths(site).path)
    decided = list(_decisions(site))
    if as_json:
        content = {
            "pending": [_as_json(site, each) for each in waiting],
            "decided": decided,
        }
        typer.echo(json.dumps(content, indent=2))
        return
    if not waiting:
        typer.echo("no run waits for approval")
    for request in waiting:
        for line in (*request_lines(site, request), ""):
            typer.echo(printable(line))
    if waiting:
        typer.echo(f"decide: hdpfl-site approve {waiting[0].number}, or: refuse; in full: --json")
    for row in decided:
        run = quoted(row["run"])
        typer.echo(printable(f"{row['at'][:10]}  {row['decision']:<9} {run}  {row['by']}"))


def approve_run(site: Profile, name: str, by: str, *, yes: bool) -> None:
    """Approve a waiting run; the decision is an entry of the ledger.

    Guarantees:
        What is approved is what is shown here. Unasked (``yes``) that is the request of a number
        or of digits, which it was listed under; a run's name gets other terms.

    Raises:
        DataError: no such request waits, or ``yes`` and the name of a run.
        LedgerError: the run was refused, or the ledger cannot be written.
    """
    if yes and not _is_listed_as(name):
        raise DataError(
            "'--yes' approves what was listed: name the request by its number, or by at least "
            f"{SHORT} of its digits, as 'hdpfl-site requests' prints them"
        )
    request = find_request(site, name)
    for line in request_lines(site, request):
        typer.echo(printable(line))
    if not yes and not typer.confirm("It will use this site's records. Approve it?"):
        raise DataError("nothing was approved; to decline the run for good: hdpfl-site refuse")
    paths = ledger_paths(site)
    ledger = Ledger(paths.path, paths.anchor)
    try:
        ledger.approve(
            Approval(request.run_id, request.digest, request.terms.to_json(), request.app, _who(by))
        )
    finally:
        ledger.close()
    remove_request(paths.path, request)
    typer.echo(f"approved: run {quoted(request.run_id)}, under these terms and this app alone")


def refuse(
    run: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST | RUN", help="The request's number or digits, or its run's name."
        ),
    ],
    profile: ProfileOption = None,
    by: ByOption = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    by_name: Annotated[
        bool, typer.Option("--run", help="It is a run's name, which looks like a number.")
    ] = False,
) -> None:
    """Refuse a run for good; an approved run then makes no more releases.

    The coordinator sees that the site refused, and no reason. What was released stays charged; the
    rest returns where the ledger's composition is renyi.
    """
    site = open_profile(profile)
    run_id = _run_to_refuse(site, run, by_name=by_name)
    if not yes and not typer.confirm(f"Refuse run {quoted(run_id)} for good? It cannot be undone"):
        raise DataError("nothing was refused")
    paths = ledger_paths(site)
    waiting = [each for each in read_requests(paths.path) if each.run_id == run_id]
    ledger = Ledger(paths.path, paths.anchor)
    try:
        ledger.refuse(run_id, _who(by), waiting[-1].terms.to_json() if waiting else "")
    finally:
        ledger.close()
    for request in waiting:
        remove_request(paths.path, request)
    typer.echo(f"refused: run {quoted(run_id)}")


def find_request(site: Profile, name: str) -> RunRequest:
    """Return the request of a number, of digits, or of the run ``name``.

    Text that could be a number or digits is never taken for a run's name.

    Raises:
        DataError: there is none.
    """
    waiting = read_requests(ledger_paths(site).path)
    for each in waiting:
        if name == str(each.number) or (name == each.run_id and not _is_listed_as(name)):
            return each
        if _DIGITS.fullmatch(name.lower()) and each.digest.startswith(name.lower()):
            return each
    known = ", ".join(f"{each.number} (run {quoted(each.run_id)})" for each in waiting) or "none"
    if _is_listed_as(name):
        raise DataError(
            f"no request {name} waits: it was decided, or the coordinator has changed it since; "
            f"list again: hdpfl-site requests; waiting: {known}"
        )
    raise DataError(
        f"no run {quoted(name)} waits for approval; waiting: {known}; for an app: "
        "hdpfl-site approve APP.fab --to DIR"
    )


def request_lines(site: Profile, request: RunRequest) -> Iterator[str]:
    """Yield the facts for a decision: all content of the digest, and price."""
    terms, default = request.terms.as_config(), RunTerms().as_config()
    first, last = (at[:16].replace("T", " ") for at in (request.first, request.last))
    yield f"request {request.number}    {request.digest[:SHORT]}"
    yield from _row("run", f"{quoted(request.run_id)}, asked {first} to {last} UTC")
    yield from _row("who asks", f"{quoted(terms['coordinator'])} (by the server's word)")
    yield from _row("purpose", quoted(terms["purpose"]))
    yield from _row("app", f"SHA-256 {request.app}")
    shown = {"run-id", "coordinator", "purpose", *FREE_TERMS}
    usual = []
    for key, value in terms.items():
        if key in shown:
            continue
        if value == default[key] and key not in _ALWAYS:
            usual.append(f"{key} {_value(key, value)}")
        else:
            yield from _row("terms", f"{key} {_value(key, value)}")
    yield from _row("by default", ", ".join(usual))
    free = ", ".join(f"{key} {_value(key, terms[key])}" for key in sorted(FREE_TERMS))
    free += f", pull of work {request.terms.pull:g}"
    cap = "" if request.terms.epsilon_cap else "; a cap may lower ε"
    yield from _row("may change", f"{free}, within [policy]{cap}")
    yield from _row("discloses", "; ".join(disclosed_by(site, request.terms)))
    yield from _row("price", price_line(site, request.terms))


def quoted(text: object) -> str:
    r"""Return a server's text quoted and escaped, on one line.

    >>> print(quoted("run-1', approved" + chr(10)))
    'run-1\', approved\n'
    """
    return "'" + printable(str(text).replace("\\", "\\\\").replace("'", "\\'")) + "'"


def _value(key: str, value: Value) -> str:
    if key == "schema" and value:
        content = str(value).encode(errors="surrogatepass")
        try:
            columns = f"{len(Schema.load(str(value)).columns)} columns"
        except DataError:
            columns = "not readable"
        digest = hashlib.sha256(content).hexdigest()
        name = "" if "\n" in str(value) or "=" in str(value) else f"{quoted(value)}, "
        return f"{name}{columns}, {len(content)} bytes, SHA-256 {digest}; its text: --json"
    if key == "sites":  # a line breaks between two of them
        return quoted(str(value).replace(",", ", "))
    return quoted(value) if isinstance(value, str) else str(value)


def _row(label: str, text: str) -> Iterator[str]:
    """Yield a labelled line; long text follows on marked lines."""
    while len(text) > _WIDTH:
        end = text.rfind(" ", 0, _WIDTH) + 1 or _WIDTH
        yield f"  {label:<11}{text[:end]}"
        label, text = "...", text[end:]
    yield f"  {label:<11}{text}"


def disclosed_by(site: Profile, terms: RunTerms) -> list[str]:
    """Return the data that would leave the site in such a run."""
    constants = [name for name in site.disclose if "metrics" not in name]
    leaves = [_UPDATES[terms.noise]]
    if constants:
        leaves.append(f"if the strategy asks: {', '.join(constants)}")
    leaves += tests_of(site, terms)
    if terms.sends_scores:
        leaves.append("one noisy histogram of scores on its own records held out, at the end")
    return leaves


def price_line(site: Profile, terms: RunTerms) -> str:
    """Return the run's cost relative to the remaining budget, in words."""
    price = price_of(site, terms)
    if "declined" in price:
        return f"none, the site declines it: {price['declined']}"
    if price["epsilon"] is None:
        return "nothing of this ledger: the trusted server keeps the account"
    cost = f"ε {ceil_digits(price['epsilon'])}, δ {ceil_digits(price['delta'])}"
    fit = "" if price["fits"] else "; it does NOT fit: the site will decline it"
    if price["composition"] == SUM:
        left = f"ε {floor_digits(price['left-epsilon'])}, δ {floor_digits(price['left-delta'])}"
        return f"{cost}, of {left} left{fit}"
    return (
        f"{cost}: {per_cent(price['share'])} of the lifetime promise, of which "
        f"{bar(price['full'])} is taken; such runs that fit: {price['runs-that-fit']} (by the sum: "
        f"{price['runs-by-sum']}){fit}{price['rounds']}"
    )


def price_of(site: Profile, terms: RunTerms) -> dict[str, Any]:
    """Return the run's cost relative to the remaining budget, as ``hdpfl-site plan`` does."""
    view = ledger_view(site)[0]
    try:
        check_policy(site, terms)
        if terms.noise == "server":
            return {"epsilon": None, "delta": None, "fits": True}
        charged = view.account.plans.get(terms.run_id)
        made = charged.read() if charged else make_plan(site, terms)
        fit = fit_of(view.account, site, (made.epsilon, made.delta), made)
    except HDPFLError as reason:
        return {"declined": str(reason)}
    now = budget_status(view.account, site.budget)
    by_filter = {
        "share": fit.share,
        "full": now.full,
        "runs-that-fit": fit.runs,
        "runs-by-sum": fit.by_sum,
        "rounds-that-fit": made.rounds if fit.runs else fit.rounds,
        "rounds": "" if charged else rounds_that_fit(fit, made.rounds),
    }
    left = {"left-epsilon": now.left[0], "left-delta": now.left[1]}
    return {
        "composition": RENYI if now.order else SUM,
        "epsilon": made.epsilon,
        "delta": made.delta,
        **(by_filter if now.order else left),
        "fits": charged is not None or fit.runs > 0,
    }


def _is_listed_as(name: str) -> bool:
    """Return whether ``name`` is a number or digits, as 'requests' prints."""
    return bool(_NUMBER.fullmatch(name) or _DIGITS.fullmatch(name.lower()))


def _run_to_refuse(site: Profile, name: str, *, by_name: bool) -> str:
    """Return the name of a requested, approved or charged run."""
    account = read_ledger(site).account
    known = {*account.plans, *account.approved, *(key[0] for key in account.releases)}
    known |= {each.run_id for each in read_requests(ledger_paths(site).path)}
    if name in known and (by_name or not _is_listed_as(name)):
        return name
    if by_name:
        raise DataError(f"no run {quoted(name)} waits or was approved; list: hdpfl-site requests")
    try:
        return find_request(site, name).run_id
    except DataError as reason:
        hint = "; for the run of that name add --run" if name in known else ""
        raise DataError(f"{reason}{hint}") from None


def _decisions(site: Profile) -> Iterator[dict[str, str]]:
    """Yield the ledger's decisions, in order."""
    for entry in read_ledger(site).entries:
        if entry.kind in (APPROVED, REFUSED):
            yield {
                "run": entry.body["run_id"],
                "decision": entry.kind,
                "at": entry.at,
                "by": entry.body["by"],
                "request": entry.body.get("request", ""),
            }


def _as_json(site: Profile, request: RunRequest) -> dict[str, Any]:
    return {
        "number": request.number,
        "run": request.run_id,
        "request": request.digest,
        "asked-first": request.first,
        "asked-last": request.last,
        "coordinator": request.terms.coordinator,
        "purpose": request.terms.purpose,
        "app": request.app,
        "terms": request.terms.as_config(),
        "discloses": disclosed_by(site, request.terms),
        "price": plain(price_of(site, request.terms)),
    }


def _who(by: str) -> str:
    """Return the decider: system user, and self-given name."""
    try:
        # Not of the environment, which any user sets.
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"user {os.getuid()}"
    return f"{user} ({by})" if by else user
