"""``hdpfl-site ledger``: create the budget ledger, look into it, verify it, raise its cap."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated

import typer

from client_app.commands.options import ProfileOption, open_profile
from client_app.reports.formatting import ROUNDING, ceil_digits, floor_digits, table
from client_app.reports.ledger_view import (
    STATUSES,
    LedgerView,
    budget_status,
    ledger_paths,
    metrics_left,
    notes_on_cap,
    open_chain,
    read_ledger,
    view_of,
)
from hdpfl_flower.config.profile import LedgerPaths, Profile
from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.hash_chain import Chain, Entry
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.system.terminal import new_app

app = new_app("The budget ledger: what was charged and released.")


@app.command()
def init(profile: ProfileOption = None) -> None:
    """Create the ledger.

    Its cap is the profile's [budget]. Refused where there is a ledger, or an anchor of one.
    """
    site = open_profile(profile)
    paths = ledger_paths(site)
    # The anchor first: it shows that there was a ledger, also where its file is gone.
    _prepare_anchor(paths)
    budget = site.budget
    Ledger.create(paths.path, budget.epsilon, budget.delta, paths.anchor).close()
    typer.echo(
        f"created {paths.path}, cap ε {floor_digits(budget.epsilon)}, "
        f"δ {floor_digits(budget.delta)}"
    )
    if paths.anchor is not None:
        typer.echo(f"its anchor is {paths.anchor}")
    typer.echo("Keep it for as long as the records live: no other command creates or resets one.")


@app.command()
def show(
    profile: ProfileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Print what was charged, released and is left."""
    site = open_profile(profile)
    view = read_ledger(site)
    if as_json:
        typer.echo(json.dumps(_shown(view, site), indent=1))
        return
    if view.runs:
        for line in table([*run_rows(view)]):
            typer.echo(line)
        typer.echo("")
    else:
        typer.echo("no run was charged yet\n")
    now = budget_status(view.account, site.budget)
    for line in table([
        ("", "ε", "δ"),
        ("cap", floor_digits(now.cap[0]), floor_digits(now.cap[1])),
        ("spent", ceil_digits(now.spent[0]), ceil_digits(now.spent[1])),
        ("left", floor_digits(now.left[0]), floor_digits(now.left[1])),
    ]):  # fmt: skip
        typer.echo(line)
    for note in notes_on_cap(view.account, site.budget):
        typer.echo(note)
    typer.echo(ROUNDING)


def _shown(view: LedgerView, site: Profile) -> dict[str, object]:
    """Return the tables of ``show``: a row a run, and the budget, in the same digits."""
    head, *rows = run_rows(view) if view.runs else [()]
    now = budget_status(view.account, site.budget)
    return {
        "runs": [dict(zip(head, row, strict=True)) for row in rows],
        **{
            name: {"epsilon": word(pair[0]), "delta": word(pair[1])}
            for name, pair, word in (
                ("cap", now.cap, floor_digits),
                ("spent", now.spent, ceil_digits),
                ("left", now.left, floor_digits),
            )
        },
        "notes": [*notes_on_cap(view.account, site.budget)],
    }


@app.command()
def verify(profile: ProfileOption = None) -> None:
    """Check every entry, payload and the anchor."""
    site = open_profile(profile)
    with open_chain(site) as chain:
        view = view_of(chain)
        payloads = _check_payloads(chain, view.account)
    typer.echo(f"entries verified: {len(view.entries)}{_days(view.entries)}")
    typer.echo(f"payloads kept, each matching its seal: {payloads}")
    anchor = ledger_paths(site).anchor
    typer.echo(
        "no anchor is named: an older copy put back would not be noticed"
        if anchor is None
        else f"the anchor {anchor} agrees"
    )


@app.command("raise-cap")
def raise_cap(
    profile: ProfileOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Raise the cap to the profile's [budget].

    The ledger records it; it cannot be undone.
    """
    site = open_profile(profile)
    account, budget = read_ledger(site).account, site.budget
    if (account.cap_epsilon, account.cap_delta) == (budget.epsilon, budget.delta):
        typer.echo("the cap is that of [budget] already; nothing to do")
        return
    if budget.epsilon < account.cap_epsilon or budget.delta < account.cap_delta:
        raise LedgerError(
            "the cap can only be raised, and [budget] is lower in ε or in δ; a lower [budget] "
            "counts as it stands, without this command"
        )
    change = (
        f"from ε {floor_digits(account.cap_epsilon)}, δ {floor_digits(account.cap_delta)} "
        f"to ε {floor_digits(budget.epsilon)}, δ {floor_digits(budget.delta)}"
    )
    if not yes:
        typer.confirm(f"Raise the lifetime cap {change}? It cannot be undone", abort=True)
    paths = ledger_paths(site)
    ledger = Ledger(paths.path, paths.anchor)
    ledger.raise_cap(budget.epsilon, budget.delta)
    ledger.close()
    typer.echo(f"the lifetime cap was raised {change}")


def run_rows(view: LedgerView) -> Iterator[tuple[str, ...]]:
    """Yield a header, then a row a run: its cost, and its releases by status."""
    yield ("run", "charged", "ε", "δ", *STATUSES, "metrics")
    for run_id in view.runs:
        plan = view.account.plans.get(run_id)
        yield (
            run_id,
            view.charged_on(run_id) or "-",
            ceil_digits(plan.epsilon) if plan else "-",
            ceil_digits(plan.delta) if plan else "-",
            *(str(view.count(status, run_id, "update")) for status in STATUSES),
            str(metrics_left(view, run_id)),
        )


def _prepare_anchor(paths: LedgerPaths) -> None:
    """Make the anchor's folder; refuse an anchor that another ledger left.

    A ledger that was deleted is a budget forgotten; its anchor is what remembers it.
    """
    anchor = paths.anchor
    if anchor is None or paths.path.exists():
        return
    if anchor.exists():
        raise LedgerError(
            f"the anchor {anchor} is there, so a ledger was; restore that ledger from a backup "
            "(for another population name another anchor)"
        )
    try:
        anchor.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LedgerError(f"the anchor {anchor} cannot be created: {error.strerror}") from None


def _days(entries: list[Entry]) -> str:
    """Return the days of the first and the last entry, for people."""
    return f", {entries[0].at[:10]} to {entries[-1].at[:10]} (UTC)" if entries else ""


def _check_payloads(chain: Chain, account: Account) -> int:
    """Return how many payloads are kept; each must have the digest that its seal names."""
    kept = 0
    for release in account.releases.values():
        # Only the payloads of the last two rounds are kept; older ones have their digests alone.
        payload = chain.blob(release.seq)
        if payload is None:
            continue
        kept += 1
        if hashlib.sha256(payload).hexdigest() != release.payload_digest:
            raise LedgerError("the ledger is damaged: a payload does not match its seal")
    return kept
