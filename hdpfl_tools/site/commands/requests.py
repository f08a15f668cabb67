"""``hdpfl-site requests``: the runs that wait for a decision, each with its price."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import re
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.settings import Value
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError, HDPFLError
from hdpfl_flower.ledger.account import APPROVED, REFUSED
from hdpfl_flower.ledger.ledger import Approval, Ledger
from hdpfl_flower.monitoring.journal import plain
from hdpfl_flower.privacy.policy import FREE_TERMS, check_policy
from hdpfl_flower.releases.of_run import ends_first, sent_kinds
from hdpfl_tools.site.commands.plan import cost_of, tests_of
from hdpfl_tools.site.commands.prepare import read_shown
from hdpfl_tools.site.commands.texts.render import quoted, text_of
from hdpfl_tools.site.open_requests import RunRequest, read_requests, remove_request
from hdpfl_tools.site.options import ProfileOption, open_profile
from hdpfl_tools.site.reports.ledger_view import ledger_paths, read_ledger
from hdpfl_tools.site.reports.lifetime import RENYI, SUM
from hdpfl_tools.site.reports.units import half_of, promise_of

SHORT = 32
"""Shown digits of a request's SHA-256, and the least that name it: 128 bits, for which no second
request is found."""
_NUMBER, _DIGITS = re.compile("[0-9]{1,18}"), re.compile("[0-9a-f]{32,64}")
_ALWAYS = {
    "strategy",
    "model",
    "dataset",
    "rounds",
    "local-epochs",
    "local-steps",
    "participations",
    "noise",
    "evaluation",
}
"""Terms with a line of their own, by default too."""

ByOption = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="NAME",
        help="Name of the person who decides; the ledger also records the system's user name.",
    ),
]


def requests(
    profile: ProfileOption = None,
    refuse: Annotated[
        str,
        typer.Option(
            metavar="REQUEST | RUN",
            help="Refuse this run for good: the number or the digits of its request, or its name.",
        ),
    ] = "",
    by: ByOption = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    by_name: Annotated[
        bool,
        typer.Option(
            "--run", help="The value of --refuse is a run's name that looks like a number."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with every term.")] = False,
) -> None:
    """List the runs that wait and the decisions so far; with --refuse, refuse a run.

    For each run that waits, the list shows its purpose, its terms, the app, its price in this
    site's budget, and the data that would leave the site. No record is read, and nothing of the
    list is sent.

    A refusal is final. If the run was approved before, it makes no more releases. The coordinator
    sees that the site refused, but no reason. Releases that the site has begun stay charged. The
    rest of the charge returns if the ledger's composition is renyi.
    """
    site = open_profile(profile)
    if refuse:
        refuse_run(site, refuse, by, yes=yes, by_name=by_name)
        return
    if by or yes or by_name:
        raise typer.BadParameter("--by, --yes and --run go with --refuse")
    waiting = read_requests(ledger_paths(site).path)
    decided = list(_decisions(site))
    if as_json:
        pending = [plain(request_facts(site, request)) for request in waiting]
        typer.echo(json.dumps({"pending": pending, "decided": decided}, indent=2))
        return
    shown = [f"{request_text(site, request)}\n" for request in waiting]
    typer.echo("\n".join([*shown, text_of("requests", waiting=waiting, decided=decided)]))


def approve_run(site: Profile, name: str, by: str, *, yes: bool) -> None:
    """Approve a waiting run; the decision is an entry of the ledger.

    Guarantees:
        The approved request is the shown one. Unasked (``yes``) a request is named by the number
        or the digits of its listing; the name of a run can get other terms meanwhile.

    Raises:
        DataError: the request does not wait, or ``yes`` and the name of a run; or the site's
            records cannot be read by its schema, or not be written.
        LedgerError: the run was refused, or the ledger cannot be written.
    """
    if yes and not _is_listed_as(name):
        raise DataError(
            "'--yes' approves a request that you saw in the list: name it by its number, or by "
            f"at least {SHORT} of its digits, as 'hdpfl-site requests' prints them"
        )
    request = find_request(site, name)
    typer.echo(request_text(site, request))
    # Before the question: the decision is on these records.
    reading = None if site.data is None else read_shown(site, request.terms)
    if not yes and not typer.confirm("The run will use this site's records. Approve it?"):
        raise DataError("nothing was approved; to refuse the run: hdpfl-site requests --refuse")
    paths = ledger_paths(site)
    approval = Approval(
        request.run_id, request.digest, request.terms.to_json(), request.app, _decider(by)
    )
    with contextlib.closing(Ledger(paths.path, paths.anchor)) as ledger:
        # On disk before the entry that names them.
        records = None if reading is None else (reading.write(), reading.facts.export)
        ledger.approve(approval, records)
    remove_request(paths.path, request)
    typer.echo(f"approved: run {quoted(request.run_id)}, only under these terms and with this app")


def refuse_run(site: Profile, name: str, by: str, *, yes: bool, by_name: bool) -> None:
    """Refuse a run for good; the decision is an entry of the ledger.

    Raises:
        DataError: no run of this name waits, was approved or charged; or the answer is no.
        LedgerError: the ledger cannot be written.
    """
    run_id = _run_to_refuse(site, name, by_name=by_name)
    if not yes and not typer.confirm(
        f"Refuse run {quoted(run_id)} for good? This cannot be undone"
    ):
        raise DataError("nothing was refused")
    paths = ledger_paths(site)
    waiting = [request for request in read_requests(paths.path) if request.run_id == run_id]
    with contextlib.closing(Ledger(paths.path, paths.anchor)) as ledger:
        ledger.refuse(run_id, _decider(by), waiting[-1].terms.to_json() if waiting else "")
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
    for request in waiting:
        if name == str(request.number) or (name == request.run_id and not _is_listed_as(name)):
            return request
        if _DIGITS.fullmatch(name.lower()) and request.digest.startswith(name.lower()):
            return request
    listed = ", ".join(f"{r.number} (run {quoted(r.run_id)})" for r in waiting) or "none"
    if _is_listed_as(name):
        raise DataError(
            f"no request {name} waits: it was decided, or the coordinator changed it; list the "
            f"requests again: hdpfl-site requests; waiting: {listed}"
        )
    raise DataError(
        f"no run {quoted(name)} waits for approval; waiting: {listed}; for an app: "
        "hdpfl-site approve APP.fab --to DIR"
    )


def request_text(site: Profile, request: RunRequest) -> str:
    """Return the facts for a decision: all content of the digest, and price."""
    values, default = request.terms.as_config(), RunTerms().as_config()
    free = [f"{key} {_value(key, values.pop(key))}" for key in sorted(FREE_TERMS & values.keys())]
    for key in ("run-id", "coordinator", "purpose"):
        del values[key]
    usual = {key for key in values.keys() - _ALWAYS if values[key] == default.get(key)}
    first, last = (time[:16].replace("T", " ") for time in (request.first, request.last))
    return text_of(
        "request",
        request=request_facts(site, request),
        digits=request.digest[:SHORT],
        first=first,
        last=last,
        terms=[f"{key} {_value(key, values[key])}" for key in values if key not in usual],
        by_default=[f"{key} {_value(key, values[key])}" for key in values if key in usual],
        may_change=free,
        capped=bool(request.terms.epsilon_cap),
    )


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


def disclosed_by(site: Profile, terms: RunTerms) -> list[str]:
    """Return the data that would leave the site in a run of these terms."""
    constants = [name for name in site.disclose if "metrics" not in name]
    leaves = [] if ends_first(terms) else [terms.source.leaves]
    if constants:
        leaves.append(f"if the strategy asks for them: {', '.join(constants)}")
    leaves += [] if ends_first(terms) else tests_of(site, terms)
    return [*leaves, *(kind.asks for kind in sent_kinds(terms))]


def price_of(site: Profile, terms: RunTerms) -> dict[str, Any]:
    """Return the run's cost relative to the remaining budget, as ``hdpfl-site plan`` does."""
    try:
        check_policy(site, terms)
        if not terms.source.site_plans:
            return {"epsilon": None, "delta": None, "fits": True}
        cost = cost_of(site, terms)
    except HDPFLError as reason:
        return {"declined": str(reason)}
    price: dict[str, Any] = {"epsilon": cost.plan.epsilon, "delta": cost.plan.delta}
    if beside := promise_of(cost.plan, terms):
        price["noise-promise"] = beside.facts()
    if cost.budget.order:
        return {"composition": RENYI, **price, **cost.facts(), "rounds": cost.rounds_only}
    left_epsilon, left_delta = cost.budget.left
    left = {"left-epsilon": left_epsilon, "left-delta": left_delta}
    return {"composition": SUM, **price, **left, "fits": cost.fits}


def _is_listed_as(name: str) -> bool:
    """Return whether ``name`` is a number or digits, as 'requests' prints."""
    return bool(_NUMBER.fullmatch(name) or _DIGITS.fullmatch(name.lower()))


def _run_to_refuse(site: Profile, name: str, *, by_name: bool) -> str:
    """Return the name of a requested, approved or charged run."""
    account = read_ledger(site).account
    runs = {
        *account.plans,
        *account.approved,
        *account.records,
        *(key[0] for key in account.releases),
    }
    runs |= {request.run_id for request in read_requests(ledger_paths(site).path)}
    if name in runs and (by_name or not _is_listed_as(name)):
        return name
    if by_name:
        raise DataError(
            f"no run {quoted(name)} waits, and none of this name was approved; list the "
            "runs: hdpfl-site requests"
        )
    try:
        return find_request(site, name).run_id
    except DataError as reason:
        hint = "; if you mean the run of that name, add --run" if name in runs else ""
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


def request_facts(site: Profile, request: RunRequest) -> dict[str, Any]:
    """Return a request with its terms, disclosures and price, for JSON."""
    half = half_of(request.terms)
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
        "noise-of": half.known_members(site, request.terms) if half else {},
        "noise-remedy": half.REMEDY if half else "",
        "price": price_of(site, request.terms),
    }


def _decider(by: str) -> str:
    """Return the decider: system user, and self-given name."""
    try:
        # Not of the environment, which any user sets.
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"user {os.getuid()}"
    return f"{user} ({by})" if by else user
