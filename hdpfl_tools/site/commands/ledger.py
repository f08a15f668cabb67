"""``hdpfl-site ledger`` and ``withdraw``: the budget ledger, and consent that was withdrawn."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from hdpfl_flower.config.data_source import NOBODY, DataSource
from hdpfl_flower.config.profile import LedgerPaths, Profile
from hdpfl_flower.config.toml_text import BOM
from hdpfl_flower.errors import AccountingError, DataError, LedgerError, ProfileError
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.releases.rounds import Metrics, Update
from hdpfl_tools.site.commands.texts.render import text_of
from hdpfl_tools.site.options import ProfileOption, open_profile
from hdpfl_tools.site.reports.facts import Source, gather
from hdpfl_tools.site.reports.formatting import ROUNDING, ceil_digits, floor_digits, per_cent
from hdpfl_tools.site.reports.ledger_view import (
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
from hdpfl_tools.site.reports.lifetime import (
    RENYI,
    SUM,
    admitted,
    budget_status,
    fit_line,
    fit_of_next,
    order_for,
    order_of_new,
    promise_lines,
    shares_of_runs,
    spent_by_unit,
)
from hdpfl_tools.site.reports.units import sums_of
from hdpfl_tools.tables import withdrawals


class Composition(StrEnum):
    """How runs add up under the cap."""

    renyi = RENYI
    sum = SUM


def ledger(
    profile: ProfileOption = None,
    init: Annotated[bool, typer.Option("--init", help="Create the ledger.")] = False,
    composition: Annotated[
        Composition | None,
        typer.Option(
            help="With --init: how runs add up. Default: what admits more runs like the profile's."
        ),
    ] = None,
    higher: Annotated[
        bool, typer.Option("--raise-cap", help="Raise the cap to the profile's budget, for good.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a cap is raised.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the charges, the releases and the budget left; create the ledger; raise its cap.

    The command first checks every entry, every payload and the anchor.

    With --init it creates the ledger. The ledger's cap is the profile's budget: a promise for all
    releases over the ledger's life. The command refuses if a ledger exists, or an anchor of one.

    How runs add up under the cap cannot be changed later. A Rényi filter of one order (renyi) is
    for many small runs, and gives back the unused part of a run that ended. The plain sum of ε and
    δ (sum) is for one large run, or for a few. So many runs of ε 1, δ 1e-6 (100 steps, q 0.21) fit
    under a cap at δ 1e-5: ε 3: sum 3, renyi 8; ε 5: sum 5, renyi 20; ε 8: sum 8, renyi 45.
    """
    if init + higher + as_json > 1 or (composition and not init) or (yes and not higher):
        raise typer.BadParameter(
            "--init, --raise-cap and --json exclude each other; --composition goes with --init, "
            "and --yes with --raise-cap"
        )
    site = open_profile(profile)
    if init:
        _create(site, composition.value if composition else "")
    elif higher:
        _raise_cap(site, yes=yes)
    else:
        _show(site, as_json=as_json)


def _create(site: Profile, composition: str) -> None:
    order = order_of_new(site, composition)
    paths, budget = ledger_paths(site), site.budget
    # The anchor first: it shows that there was a ledger, also where its file is gone.
    _prepare_anchor(paths)
    Ledger.create(paths.path, budget.epsilon, budget.delta, paths.anchor, order=order).close()
    typer.echo(
        text_of(
            "new_ledger",
            paths=paths,
            cap=budget,
            composition=RENYI if order else SUM,
            runs=[*_typical_runs(site, order)],
        )
    )


def _typical_runs(site: Profile, order: int) -> Iterator[tuple[str, ...]]:
    """Yield the cost of typical runs, and how many of them each composition admits."""
    cap, cost = (site.budget.epsilon, site.budget.delta), (site.run.epsilon, site.run.delta)
    # An AccountingError here: no order holds the cap, or no accountant takes the delta.
    with contextlib.suppress(AccountingError):
        order = order or order_for(*cap)
        for epsilon in sorted({0.3, 1.0, 3.0, cost[0]} - {math.inf}):
            fit = admitted(cap, (epsilon, cost[1]), order)
            name = f"ε {ceil_digits(epsilon)}, δ {ceil_digits(cost[1])}"
            yield (name + (" (this [run])" if epsilon == cost[0] else ""), *map(str, fit))


def _show(site: Profile, *, as_json: bool) -> None:
    with open_chain(site) as chain:
        view = view_of(chain)
        payloads = _check_payloads(chain, view.account)
    if as_json:
        typer.echo(json.dumps(_facts(view, site), indent=1))
        return
    budget = budget_status(view.account, site.budget)
    fit = fit_of_next(view.account, site)
    typer.echo(
        text_of(
            "ledger",
            view=view,
            rows=[*run_rows(view, site)],
            budget=budget,
            promise=promise_lines(budget, view.account) if budget.order else (),
            run=site.run,
            fit=fit_line(budget, fit),
            spent_by_unit=spent_by_unit(view.account),
            notes=notes_on_cap(view.account, site.budget),
            exact_answers=exact_answers(view.account.exact_answers, most_exact(site)),
            rounding=ROUNDING,
            payloads=payloads,
            anchor=ledger_paths(site).anchor,
        )
    )


def _facts(view: LedgerView, site: Profile) -> dict[str, object]:
    """Return runs and budget for JSON, with the digits of the terminal."""
    head, *rows = run_rows(view, site)
    account, budget = view.account, budget_status(view.account, site.budget)
    fit = fit_of_next(account, site)
    units = [{key: unit[key] for key in ("unit", "relation", "runs")} for unit in sums_of(account)]
    amounts = [("cap", budget.cap, floor_digits)]
    if not budget.order:
        amounts += [("spent", budget.spent, ceil_digits), ("left", budget.left, floor_digits)]
        for unit, sums in zip(units, sums_of(account), strict=True):
            unit |= {key: ceil_digits(sums[key]) for key in ("epsilon", "delta")}
    return {
        "runs": [dict(zip(head, row, strict=True)) for row in rows],
        "composition": RENYI if budget.order else SUM,
        "full": per_cent(budget.full),
        "units": units,
        "runs-that-fit": fit.runs,
        "runs-by-sum": fit.by_sum,
        **{
            name: {"epsilon": rounded(epsilon), "delta": rounded(delta)}
            for name, (epsilon, delta), rounded in amounts
        },
        "exact-answers": {"given": account.exact_answers, "most": most_exact(site)},
        "notes": [*notes_on_cap(account, site.budget)],
    }


def _raise_cap(site: Profile, *, yes: bool) -> None:
    """Raise the cap to the profile's budget; the ledger records it for ever."""
    account, budget = read_ledger(site).account, site.budget
    if (account.cap_epsilon, account.cap_delta) == (budget.epsilon, budget.delta):
        typer.echo("the cap is already that of [budget]; there is nothing to do")
        return
    if budget.epsilon < account.cap_epsilon or budget.delta < account.cap_delta:
        raise LedgerError(
            "the cap can only be raised, and [budget] is lower in ε or in δ; a lower [budget] "
            "counts without this command"
        )
    change = (
        f"from ε {floor_digits(account.cap_epsilon)}, δ {floor_digits(account.cap_delta)} "
        f"to ε {floor_digits(budget.epsilon)}, δ {floor_digits(budget.delta)}"
    )
    if not yes:
        typer.confirm(f"Raise the lifetime cap {change}? This cannot be undone", abort=True)
    paths = ledger_paths(site)
    with contextlib.closing(Ledger(paths.path, paths.anchor)) as opened:
        opened.raise_cap(budget.epsilon, budget.delta)
    typer.echo(f"the lifetime cap was raised {change}")


def run_rows(view: LedgerView, site: Profile) -> Iterator[tuple[str, ...]]:
    """Yield a header and a row per run: cost, releases by status."""
    share = shares_of_runs(view.account, site.budget)
    head = ("of the filter", "state") if view.account.order else ()
    yield ("run", "charged", "ε", "δ", *head, *STATUSES, "metrics")
    releases = view.account.releases.items()
    counts = Counter(
        (key[0], release.status) for key, release in releases if key[2] == Update.release
    )
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
            str(view.released(Metrics.release, run_id)),
        )


def _prepare_anchor(paths: LedgerPaths) -> None:
    """Make the anchor's folder; refuse the anchor of another ledger.

    A deleted ledger is a forgotten budget; its anchor remembers it.
    """
    anchor = paths.anchor
    if anchor is None or paths.path.exists():
        return
    if anchor.exists():
        raise LedgerError(
            f"the anchor {anchor} exists, so there was a ledger; restore that ledger from a "
            "backup (for another population, name another anchor)"
        )
    try:
        anchor.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LedgerError(f"the anchor {anchor} cannot be created: {error.strerror}") from None


def _check_payloads(chain: Chain, account: Account) -> int:
    """Return the number of stored payloads; each must match its digest."""
    stored = 0
    for release in account.releases.values():
        # Only the payloads of the last two rounds are kept; older ones have their digests alone.
        payload = chain.blob(release.seq)
        if payload is None:
            continue
        stored += 1
        if hashlib.sha256(payload).hexdigest() != release.payload_digest:
            raise LedgerError("the ledger is damaged: a payload does not match its seal")
    return stored


def withdraw(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]…",
            help="Ids as in the records. - reads ids from standard input, one on each line, so "
            "that no shell history holds them. Without an id, the command prints how many persons "
            "withdrew, and when.",
            show_default=False,
        ),
    ] = None,
    profile: ProfileOption = None,
    undo: Annotated[
        bool,
        typer.Option(
            "--undo",
            help="Take the withdrawals of these ids back, because consent was given again.",
        ),
    ] = False,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Note the ids again under a new key, because the old key was lost. Name the ids "
            "of all persons who ever withdrew.",
        ),
    ] = False,
) -> None:
    """Take persons out of every later run, because they withdrew their consent.

    From the next message on, no record of these persons is read: not for training, tests, scores or
    counts, not by 'evaluate' or 'worth', and not by anything else. For each id the ledger notes a
    keyed digest and never the id. Earlier releases stay released; the command lists them with their
    bounds.
    """
    site = open_profile(profile)
    if not ids:
        if undo or renew:
            raise DataError("name the ids, or - to read them from standard input")
        _show_withdrawals(site)
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
        typer.echo(f"taken back: {new} withdrawals; the other ids had no withdrawal")
        return
    typer.echo(f"noted: {new} withdrawals; {len(units) - new} were noted before")
    for line in _in_records(source, units):
        typer.echo(line)
    _show_withdrawals(site)


def _show_withdrawals(site: Profile) -> None:
    """Print the withdrawals, and the runs that released something before them."""
    from hdpfl_tools.site.reports.rendering import charges, sentences

    view = read_ledger(site)
    facts = gather(Source(view, ledger_paths(site).path, site))
    last = max(
        (day for noted in view.account.withdrawn.values() for day in noted.values()), default=""
    )
    released = {
        release["run-id"]
        for release in facts["releases"]
        if release["status"] in ("sealed", "sent") and release["at"] <= last
    }
    runs = [run for run in facts["runs"] if run["run-id"] in released]
    typer.echo(
        text_of(
            "withdrawals",
            withdrawn="".join(sentences(facts, "withdrawals")),
            runs=charges(facts | {"runs": runs}) if runs else [],
            points=sentences(facts, "alarms", "promise", "exact", "undone"),
        )
    )


def _source_with_ids(site: Profile) -> DataSource:
    if site.data is None:
        raise ProfileError("profile: [data] is missing; say where the site's records lie")
    if not site.data.id:
        raise ProfileError(
            "profile: 'data.id' is empty, so a record does not tell its person: name the column "
            'of ids (for images: "folder"), or remove the person\'s records from the export'
        )
    # As the export holds them, withdrawn units included.
    return site.data.without(lambda: NOBODY)


def _units(source: DataSource, ids: Sequence[str]) -> list[bytes]:
    """Return the different ids, as a run reads them; none is ever printed."""
    from hdpfl_tools.tables.screen.unit_ids import read_alike

    if "-" in ids:
        if len(ids) > 1:
            raise DataError("'-' reads the ids from standard input: give no id beside it")
        try:
            lines = sys.stdin.read().removeprefix(BOM).split("\n")
        except UnicodeDecodeError:
            raise DataError("the ids in standard input are not in UTF-8; convert them") from None
        ids = [line for line in lines if line.strip()]
    typed = [name.encode(errors="surrogateescape") for name in ids]
    units = list(dict.fromkeys(read_alike(source, typed)))
    if not units or b"" in units:
        raise DataError("an id is empty; nothing was noted")
    return units


def _in_records(source: DataSource, units: Sequence[bytes]) -> Iterator[str]:
    """Yield how the ids occur in the records, by their place in the list that was given."""
    from hdpfl_tools.tables.screen.id_spellings import spellings
    from hdpfl_tools.tables.screen.unit_ids import unit_ids

    try:
        present = unit_ids(source)
    except DataError as error:
        yield f"warning: it is not known whether the ids occur in the records: {error}"
        return
    there, withdrawn = {*present}, {*units}
    absent = [str(place) for place, unit in enumerate(units, 1) if unit not in there]
    yield f"in the records: {len(units) - len(absent)} of {len(units)}"
    if absent:
        yield (
            f"warning: in no record: number {', '.join(absent)} of the ids that you gave. Is it a "
            "typing error? The withdrawal is noted nevertheless, for a person who comes later; "
            "to correct it: --undo"
        )
    groups = spellings(list(dict.fromkeys([*units, *present]))).alike
    others = sum(bool({*group} & withdrawn) * len({*group} - withdrawn) for group in groups)
    if others:
        yield (
            f"warning: {others} other ids of the records differ from these ids only in spelling "
            "(zeros, case, blanks, marks), and STAY IN: if they are the same persons, also "
            "withdraw them as the records write them"
        )
