"""``hdpfl-site ledger`` and ``withdraw``: the budget ledger, and consent that was withdrawn."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from client_app.commands.options import ProfileOption, open_profile
from client_app.reports.formatting import ROUNDING, ceil_digits, floor_digits, per_cent, table
from client_app.reports.ledger_view import (
    STATUSES,
    LedgerView,
    exact_answers,
    ledger_paths,
    most_exact,
    notes_on_cap,
    open_chain,
    read_ledger,
    view_of,
)
from client_app.reports.lifetime import (
    RENYI,
    SUM,
    admitted,
    budget_status,
    fit_line,
    fit_of,
    order_of_new,
    promise_lines,
    shares_of_runs,
    spent_by_unit,
)
from client_app.reports.units import sums_of
from hdpfl_flower.config.data_source import NOBODY, DataSource
from hdpfl_flower.config.profile import LedgerPaths, Profile
from hdpfl_flower.config.toml_text import BOM
from hdpfl_flower.errors import AccountingError, DataError, LedgerError, ProfileError
from hdpfl_flower.ledger import withdrawals
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.hash_chain import Chain, Entry
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.renyi import order_for
from hdpfl_flower.system.terminal import new_app

app = new_app("The budget ledger: what was charged and released.")


class Composition(StrEnum):
    """How runs add up under the cap."""

    renyi = RENYI
    sum = SUM


@app.command()
def init(
    profile: ProfileOption = None,
    composition: Annotated[
        Composition | None,
        typer.Option(help="How runs add up; without it: what admits more runs like the profile's."),
    ] = None,
    higher: Annotated[
        bool, typer.Option("--raise-cap", help="Raise the cap to the profile's budget, for good.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a cap is raised.")] = False,
) -> None:
    """Create the ledger, or with --raise-cap raise its cap.

    Its cap is the profile's budget, a promise for all releases over its life. Refused where there
    is a ledger, or an anchor of one.

    How runs add up under the cap cannot be changed later. A Rényi filter of one order (renyi) is
    for many small runs, and gives back what did not leave of a run that ended; the plain sum of ε
    and δ (sum) is for one large run, or a few. Of runs of ε 1, δ 1e-6 (100 steps, q 0.21) these fit
    under a cap at δ 1e-5: ε 3: sum 3, renyi 8; ε 5: sum 5, renyi 20; ε 8: sum 8, renyi 45.
    """
    site = open_profile(profile)
    if higher:
        if composition is not None:
            raise typer.BadParameter(
                "--composition is of a new ledger, and --raise-cap of an old one"
            )
        _raise_cap(site, yes=yes)
        return
    order = order_of_new(site, composition.value if composition else "")
    paths = ledger_paths(site)
    # The anchor first: it shows that there was a ledger, also where its file is gone.
    _prepare_anchor(paths)
    budget = site.budget
    Ledger.create(paths.path, budget.epsilon, budget.delta, paths.anchor, order=order).close()
    typer.echo(
        f"created {paths.path}, cap ε {floor_digits(budget.epsilon)}, "
        f"δ {floor_digits(budget.delta)}, composition {RENYI if order else SUM}"
    )
    for line in _compositions(site, order):
        typer.echo(line)
    if paths.anchor is not None:
        typer.echo(f"its anchor is {paths.anchor}")
    typer.echo("Keep it for as long as the records live: no other command creates or resets one.")


def _compositions(site: Profile, order: int) -> Iterator[str]:
    """Yield a table of the typical runs that each composition admits."""
    cap, mine = (site.budget.epsilon, site.budget.delta), (site.run.epsilon, site.run.delta)
    try:
        order = order or order_for(*cap)
    except AccountingError:
        return
    rows: list[tuple[str, ...]] = [("runs of one cost that fit, about", SUM, RENYI)]
    for epsilon in sorted({0.3, 1.0, 3.0, mine[0]} - {math.inf}):
        try:
            fit = admitted(cap, (epsilon, mine[1]), order)
        except AccountingError:  # a delta that no accountant takes
            continue
        name = f"ε {ceil_digits(epsilon)}, δ {ceil_digits(mine[1])}"
        rows.append((name + (" (this [run])" if epsilon == mine[0] else ""), *map(str, fit)))
    yield from table(rows)


@app.command()
def show(
    profile: ProfileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Print charges, releases and how much of the promise is left.

    Every entry, payload and the anchor are checked first.
    """
    site = open_profile(profile)
    with open_chain(site) as chain:
        view = view_of(chain)
        payloads = _check_payloads(chain, view.account)
    if as_json:
        typer.echo(json.dumps(_shown(view, site), indent=1))
        return
    now = budget_status(view.account, site.budget)
    if view.runs:
        for line in table([*run_rows(view, site)]):
            typer.echo(line)
        typer.echo("")
    else:
        typer.echo("no run was charged yet\n")
    if now.order:
        fit = fit_of(view.account, site, (site.run.epsilon, site.run.delta))
        run = f"a run of ε {ceil_digits(site.run.epsilon)}, δ {ceil_digits(site.run.delta)}: "
        lines = [*promise_lines(now, view.account), run + fit_line(now, fit)]
    else:
        lines = [*table([
            ("", "ε", "δ"),
            ("cap", floor_digits(now.cap[0]), floor_digits(now.cap[1])),
            ("spent", ceil_digits(now.spent[0]), ceil_digits(now.spent[1])),
            ("left", floor_digits(now.left[0]), floor_digits(now.left[1])),
        ]), *spent_by_unit(view.account)]  # fmt: skip
    for line in lines:
        typer.echo(line)
    for note in notes_on_cap(view.account, site.budget):
        typer.echo(note)
    typer.echo(exact_answers(view.account.exact_answers, most_exact(site)))
    typer.echo(ROUNDING)
    typer.echo(f"entries verified: {len(view.entries)}{_days(view.entries)}")
    typer.echo(f"payloads kept, each matching its seal: {payloads}")
    anchor = ledger_paths(site).anchor
    typer.echo(
        "no anchor is named: an older copy put back would not be noticed"
        if anchor is None
        else f"the anchor {anchor} agrees"
    )


def _shown(view: LedgerView, site: Profile) -> dict[str, object]:
    """Return the tables of ``show``: runs and budget, with equal digits."""
    head, *rows = run_rows(view, site) if view.runs else [()]
    now = budget_status(view.account, site.budget)
    sums = (("spent", now.spent, ceil_digits), ("left", now.left, floor_digits))
    fit = fit_of(view.account, site, (site.run.epsilon, site.run.delta))
    return {
        "runs": [dict(zip(head, row, strict=True)) for row in rows],
        "composition": RENYI if now.order else SUM,
        "full": per_cent(now.full),
        "units": [
            {
                "unit": each["unit"],
                "relation": each["relation"],
                "runs": each["runs"],
                **(
                    {}
                    if now.order
                    else {
                        "epsilon": ceil_digits(each["epsilon"]),
                        "delta": ceil_digits(each["delta"]),
                    }
                ),
            }
            for each in sums_of(view.account)
        ],
        "runs-that-fit": fit.runs,
        "runs-by-sum": fit.by_sum,
        **{
            name: {"epsilon": word(pair[0]), "delta": word(pair[1])}
            for name, pair, word in (
                ("cap", now.cap, floor_digits),
                *(() if now.order else sums),
            )
        },
        "exact-answers": {"given": view.account.exact_answers, "most": most_exact(site)},
        "notes": [*notes_on_cap(view.account, site.budget)],
    }


def _raise_cap(site: Profile, *, yes: bool) -> None:
    """Raise the cap to the profile's budget; the ledger records it for ever."""
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


def run_rows(view: LedgerView, site: Profile) -> Iterator[tuple[str, ...]]:
    """Yield a header and a row per run: cost, releases by status."""
    share = shares_of_runs(view.account, site.budget)
    head = ("of the filter", "state") if view.account.order else ()
    yield ("run", "charged", "ε", "δ", *head, *STATUSES, "metrics")
    counts = Counter((key[0], each.status) for key, each in view.account.releases.items()
                     if key[2] == "update")  # fmt: skip
    charged = view.charged_days()
    for run_id in view.runs:
        plan = view.account.plans.get(run_id)
        state = "ended" if run_id in view.account.ended else "open"
        taken = (per_cent(share[run_id]) if run_id in share else "-", state)
        yield (
            run_id,
            charged.get(run_id, "-"),
            ceil_digits(plan.epsilon) if plan else "-",
            ceil_digits(plan.delta) if plan else "-",
            *(taken if view.account.order else ()),
            *(str(counts[run_id, status]) for status in STATUSES),
            str(view.released("metrics", run_id)),
        )


def _prepare_anchor(paths: LedgerPaths) -> None:
    """Make the anchor's folder; refuse the anchor of another ledger.

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
    """Return the dates of the first and last entry."""
    return f", {entries[0].at[:10]} to {entries[-1].at[:10]} (UTC)" if entries else ""


def _check_payloads(chain: Chain, account: Account) -> int:
    """Return the number of stored payloads; each must match its digest."""
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


_NO_UNLEARNING = (
    "A model that was trained with their records is not changed: those that others hold, and "
    "those in [state]. What it can show of them is what ε and δ bound."
)


def withdraw(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]…",
            help="Ids as in the records; - reads them from standard input, one a line, so that "
            "they stand in no history of the shell. None: how many withdrew, and when.",
            show_default=False,
        ),
    ] = None,
    profile: ProfileOption = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take their withdrawals back: consent was given again.")
    ] = False,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="The ids are of all who ever withdrew: note them anew, under a new key in place "
            "of one that was lost.",
        ),
    ] = False,
) -> None:
    """Take persons out of every later run, because they withdrew their consent.

    From the next message on no record of theirs is read: for training, tests, scores, counts,
    'evaluate', 'worth' and all else. The ledger notes a keyed digest of each id and never the id.
    What was released before stays released: its list, and what bounds it, is printed.
    """
    site = open_profile(profile)
    if not ids:
        if undo or renew:
            raise DataError("name the ids, or - to read them from standard input")
        _show(site)
        return
    if undo and renew:
        raise typer.BadParameter("--undo and --renew exclude each other")
    source = _source_with_ids(site)
    units = _units(source, ids)
    paths = ledger_paths(site)
    with contextlib.closing(Ledger(paths.path, paths.anchor)) as ledger:
        note = withdrawals.undo if undo else withdrawals.renew if renew else withdrawals.withdraw
        new = note(ledger, paths.path, source.own_column, units)
    if undo:
        typer.echo(f"taken back: {new} withdrawals; the others of these ids had none")
        return
    typer.echo(f"noted: {new} withdrawals, {len(units) - new} were noted before")
    for line in _in_records(source, units):
        typer.echo(line)
    _show(site)


def _show(site: Profile) -> None:
    """Print the withdrawals, and the runs that released something before them."""
    from client_app.reports.facts import Source, gather
    from client_app.reports.rendering import charges, sentences

    view = read_ledger(site)
    facts = gather(Source(view, ledger_paths(site).path, site))
    typer.echo("".join(sentences(facts, "withdrawals")) or "no consent was withdrawn")
    if not facts["withdrawn"]:
        return
    last = max(at for noted in view.account.withdrawn.values() for at in noted.values())
    before = {
        release["run-id"]
        for release in facts["releases"]
        if release["status"] in ("sealed", "sent") and release["at"] <= last
    }
    if not before:
        typer.echo("nothing was released before")
        return
    typer.echo("\nruns with releases before the last of these days:")
    runs = [run for run in facts["runs"] if run["run-id"] in before]
    for line in table(charges(facts | {"runs": runs})):
        typer.echo(line)
    bounds = sentences(facts, "alarms", "promise", "exact", "undone")
    for text in (*bounds, _NO_UNLEARNING):
        typer.echo(textwrap.fill(text, 96, initial_indent="- ", subsequent_indent="  "))


def _source_with_ids(site: Profile) -> DataSource:
    if site.data is None:
        raise ProfileError("profile: [data] is missing; say where the site's records lie")
    if not site.data.id:
        raise ProfileError(
            "profile: 'data.id' is empty, so no record tells its person: name the column of ids "
            '(of images: "folder"), or remove the person\'s records from the export itself'
        )
    # As the export holds them, withdrawn units included.
    return site.data.without(lambda: NOBODY)


def _units(source: DataSource, ids: Sequence[str]) -> list[bytes]:
    """Return the different ids, as a run reads them; none is ever printed."""
    from hdpfl_flower.data.screen.unit_ids import read_alike

    if "-" in ids:
        if len(ids) > 1:
            raise DataError("'-' reads the ids from standard input: give it alone")
        try:
            lines = sys.stdin.read().removeprefix(BOM).split("\n")
        except UnicodeDecodeError:
            raise DataError("the ids in standard input are not in UTF-8; convert them") from None
        ids = [line for line in lines if line.strip()]
    typed = [each.encode(errors="surrogateescape") for each in ids]
    units = list(dict.fromkeys(read_alike(source, typed)))
    if not units or b"" in units:
        raise DataError("an id is empty; nothing was noted")
    return units


def _in_records(source: DataSource, units: Sequence[bytes]) -> Iterator[str]:
    """Yield how the ids occur in the records, by their place in the list that was given."""
    from hdpfl_flower.data.screen.id_spellings import spellings
    from hdpfl_flower.data.screen.unit_ids import unit_ids

    try:
        present = unit_ids(source)
    except DataError as error:
        yield f"warning: whether they occur in the records is not known: {error}"
        return
    there, withdrawn = {*present}, {*units}
    absent = [str(at) for at, unit in enumerate(units, 1) if unit not in there]
    yield f"in the records: {len(units) - len(absent)} of {len(units)}"
    if absent:
        yield (
            f"warning: in no record: number {', '.join(absent)} of the ids given. A typing error? "
            "It is noted all the same, for a person who comes later; to correct it: --undo"
        )
    groups = spellings(list(dict.fromkeys([*units, *present]))).alike
    others = sum(bool({*group} & withdrawn) * len({*group} - withdrawn) for group in groups)
    if others:
        yield (
            f"warning: {others} other ids of the records differ from these in spelling alone "
            "(zeros, case, blanks, marks), and STAY IN: if they are the same persons, withdraw "
            "them as they are written there, too"
        )
