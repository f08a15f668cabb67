"""``hdpfl-site requests`` and ``refuse``: runs that wait for approval, each with its price."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from client_app.commands.options import ProfileOption, open_profile
from client_app.commands.plan import ledger_view
from client_app.reports.formatting import ceil_digits, floor_digits
from client_app.reports.ledger_view import budget_status, ledger_paths, read_ledger, runs_that_fit
from client_app.site.inbox import RunRequest, read_requests, remove_request
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError, HDPFLError
from hdpfl_flower.ledger.account import APPROVED, REFUSED, Approval
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.monitoring.journal import plain
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.privacy.policy import check_policy
from hdpfl_flower.system.printable import printable

SHORT = 12
"""Digits of a request's digest, by which it can be named instead of by its run."""
_UPDATES = {
    "records": "an update a round, with this site's own noise on every record's gradient",
    "client": "an update a round, clipped and noised as a whole",
    "server": "an update a round WITHOUT noise: the server is trusted to add it",
}
_TERMS = (
    "strategy", "model", "dataset", "rounds", "local_epochs", "local_steps", "participations",
    "noise", "clip_norm", "evaluation",
)  # fmt: skip

ByOption = Annotated[
    str, typer.Option("--by", metavar="NAME", help="Who decides, beside the system's user name.")
]


def requests(
    profile: ProfileOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, every term included.")
    ] = False,
) -> None:
    """List the runs that wait for approval, and what was decided.

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
        first = waiting[0].digest[:SHORT]
        typer.echo(f"every term: --json; decide: hdpfl-site approve {first}, or: refuse")
    for row in decided:
        typer.echo(printable(f"{row['at'][:10]}  {row['decision']:<9} {row['run']}  {row['by']}"))


def approve_run(site: Profile, name: str, by: str, *, yes: bool) -> None:
    """Let a run that waits take part; the decision is an entry of the ledger.

    Raises:
        DataError: no such run waits.
        LedgerError: the run was refused, or the ledger cannot be written.
    """
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
    typer.echo(printable(f"approved: run '{request.run_id}', under these terms and this app alone"))


def refuse(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run, or the digits that 'requests' prints.")
    ],
    profile: ProfileOption = None,
    by: ByOption = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Refuse a run for good; one that was approved releases nothing more.

    The coordinator sees that the site refused, and no reason. What was charged stays charged.
    """
    site = open_profile(profile)
    run_id = _run_to_refuse(site, run)
    if not yes and not typer.confirm(
        printable(f"Refuse run '{run_id}' for good? It cannot be undone")
    ):
        raise DataError("nothing was refused")
    paths = ledger_paths(site)
    ledger = Ledger(paths.path, paths.anchor)
    try:
        ledger.refuse(run_id, _who(by))
    finally:
        ledger.close()
    for request in read_requests(paths.path):
        if request.run_id == run_id:
            remove_request(paths.path, request)
    typer.echo(printable(f"refused: run '{run_id}'"))


def find_request(site: Profile, name: str) -> RunRequest:
    """Return the one request of the run ``name``, or whose digest begins with it.

    Raises:
        DataError: there is none, or several.
    """
    waiting = read_requests(ledger_paths(site).path)
    found = [each for each in waiting if each.run_id == name or _begins(each, name)]
    if len(found) == 1:
        return found[0]
    if found:  # a run can be named like the digits of another one
        raise DataError(f"'{printable(name)}' names several requests; type more of their digits")
    known = ", ".join(f"'{each.run_id}' ({each.digest[:SHORT]})" for each in waiting) or "none"
    raise DataError(
        f"no run '{printable(name)}' waits for approval; waiting: {printable(known)}; for an app: "
        "hdpfl-site approve APP.fab --to DIR"
    )


def request_lines(site: Profile, request: RunRequest) -> Iterator[str]:
    """Yield what an operator decides by."""
    terms = request.terms
    first, last = (at[:16].replace("T", " ") for at in (request.first, request.last))
    yield (f"{terms.run_id}    request {request.digest[:SHORT]}, asked {first} to {last} UTC")
    yield f"  who asks   {terms.coordinator or '(not said)'} (by the server's word)"
    yield f"  purpose    {terms.purpose or '(not said)'}"
    yield f"  app        SHA-256 {request.app}"
    yield "  terms      " + ", ".join(
        f"{name.replace('_', '-')} {getattr(terms, name)}" for name in _TERMS
    )
    yield f"  discloses  {'; '.join(disclosed_by(site, terms))}"
    yield f"  price      {price_line(site, terms)}"


def disclosed_by(site: Profile, terms: RunTerms) -> list[str]:
    """Return what would leave the site in such a run."""
    constants = [name for name in site.disclose if "metrics" not in name]
    leaves = [_UPDATES[terms.noise]]
    if constants:
        leaves.append(f"if the strategy asks: {', '.join(constants)}")
    if terms.evaluation == "sites" and "metrics" in site.disclose:
        leaves.append("metrics on its own records after each round, which ε does not cover")
    if terms.score_share:
        leaves.append("one noisy histogram of scores on its own records held out, at the end")
    return leaves


def price_line(site: Profile, terms: RunTerms) -> str:
    """Return what the run would cost of what is left, in words."""
    price = price_of(site, terms)
    if "declined" in price:
        return f"none, the site declines it: {price['declined']}"
    if price["epsilon"] is None:
        return "nothing of this ledger: the trusted server keeps the account"
    return (
        f"ε {ceil_digits(price['epsilon'])}, δ {ceil_digits(price['delta'])}, of "
        f"ε {floor_digits(price['left-epsilon'])}, δ {floor_digits(price['left-delta'])} left"
        + ("" if price["fits"] else "; it does NOT fit: the site will decline it")
    )


def price_of(site: Profile, terms: RunTerms) -> dict[str, Any]:
    """Return what the run would cost of what is left, computed as ``hdpfl-site plan`` does."""
    view = ledger_view(site)[0]
    try:
        check_policy(site, terms)
        if terms.noise == "server":
            return {"epsilon": None, "delta": None, "fits": True}
        charged = view.account.plans.get(terms.run_id)
        made = charged or make_plan(site, terms)
    except HDPFLError as reason:
        return {"declined": str(reason)}
    left = budget_status(view.account, site.budget).left
    cost = (made.epsilon, made.delta)
    return {
        "epsilon": made.epsilon,
        "delta": made.delta,
        "left-epsilon": left[0],
        "left-delta": left[1],
        "fits": charged is not None or runs_that_fit(view.account, site, cost) > 0,
    }


def _begins(request: RunRequest, name: str) -> bool:
    return len(name) >= 8 and request.digest.startswith(name.lower())


def _run_to_refuse(site: Profile, name: str) -> str:
    """Return the run's name: one that waits, or one that was approved or charged before."""
    account = read_ledger(site).account
    known = {*account.plans, *account.approved, *(key[0] for key in account.releases)}
    return name if name in known else find_request(site, name).run_id


def _decisions(site: Profile) -> Iterator[dict[str, str]]:
    """Yield what the ledger says of decisions, in order."""
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
    """Return who decides: by the system, and what they say of themselves."""
    try:
        # Not of the environment, which anybody sets.
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"user {os.getuid()}"
    return f"{user} ({by})" if by else user
