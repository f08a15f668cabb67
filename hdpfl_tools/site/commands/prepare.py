"""``hdpfl-site prepare``: the records that runs read, prepared, listed, deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from client_app.site.inbox import read_requests
from client_app.site.prepared_records import prepared_path, read_prepared, stamp_of
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError
from hdpfl_flower.ledger.account import APPROVED
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_tools.site.approval.preparation import (
    ExportRead,
    changes,
    files_in,
    last_prepared,
    read_export,
    sources_of,
)
from hdpfl_tools.site.commands.options import TERMS_HELP, ProfileOption, open_profile
from hdpfl_tools.site.commands.texts.render import quoted, text_of
from hdpfl_tools.site.reports.ledger_view import read_ledger

SHORT = 12
"""Shown digits of a file's SHA-256."""


def prepare(
    run: Annotated[
        str,
        typer.Argument(
            help="An approved or charged run; with --dry-run also one that waits, by its name.",
            show_default=False,
        ),
    ] = "",
    profile: ProfileOption = None,
    terms: Annotated[Path | None, typer.Option("--terms", "--run-config", help=TERMS_HELP)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change; write nothing.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the prepared records, of all runs or of RUN.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """List the records prepared for runs; with a run prepare them anew, or delete them.

    'approve' prepares a run's records by itself, and the first message of a run under a standing
    approval. A message reads nothing else: an export that changed counts from the next approval
    on, or with this command, for RUN, at once.

    With --terms the records of runs to come are prepared, for a standing approval. A run whose
    records were deleted is declined until they are prepared again.
    """
    site = open_profile(profile)
    if delete:
        if terms is not None or dry_run:
            raise typer.BadParameter("--delete goes with RUN and --yes alone")
        _delete(site, run, yes=yes)
    elif terms is not None:
        if run:
            raise typer.BadParameter("RUN and --terms exclude each other")
        reading = read_shown(site, RunConfig.load(terms).terms)
        if not dry_run:
            typer.echo(f"prepared: {reading.write()[:SHORT]}")
    elif run:
        _prepare_anew(site, run, dry_run=dry_run, yes=yes)
    elif dry_run or yes:
        raise typer.BadParameter("--dry-run needs RUN or --terms, and --yes RUN or --delete")
    else:
        typer.echo(text_of("prepared", facts=None, rows=[*_listed(site)]))


def read_shown(site: Profile, terms: RunTerms) -> ExportRead:
    """Read the export by a run's schema; print its counts, and their change.

    Raises:
        DataError, ProfileError, LedgerError: as ``read_export``.
    """
    _, paths = sources_of(site)
    account = read_ledger(site).account
    reading, before = read_export(site, terms, account), last_prepared(paths.path, account)
    differing = [] if before is None else changes(before, reading.facts)
    typer.echo(text_of("prepared", facts=reading.facts, before=before, changes=differing))
    return reading


def _prepare_anew(site: Profile, run: str, *, dry_run: bool, yes: bool) -> None:
    """Bind an approved run to the export as it is now."""
    _, paths = sources_of(site)
    terms = _decided_terms(site, run)
    if terms is None:
        waiting = [each.terms for each in read_requests(paths.path) if each.run_id == run]
        if not waiting:
            raise DataError(f"the ledger knows no run {quoted(run)}, and none of that name waits")
        if not dry_run:
            raise DataError(
                f"run {quoted(run)} waits for approval, which prepares its records: hdpfl-site "
                "approve; to look at them before add --dry-run"
            )
        terms = waiting[-1]
    reading = read_shown(site, terms)
    if dry_run:
        return
    if not yes and not typer.confirm(f"Run {quoted(run)} will use these records. Go on?"):
        raise DataError("nothing was changed")
    with contextlib.closing(Ledger(paths.path, paths.anchor)) as ledger:
        before = ledger.account().records.get(run)
        digest = reading.write()
        ledger.bind_records(run, digest, reading.facts.export, renew=True)
        in_use = {*ledger.account().records.values()}
    typer.echo(f"prepared: {digest[:SHORT]}, for run {quoted(run)}")
    if before and before not in in_use:
        prepared_path(paths.path, before).unlink(missing_ok=True)
        typer.echo(f"deleted: {before[:SHORT]}, which no run uses any more")


def _decided_terms(site: Profile, run: str) -> RunTerms | None:
    """Return the terms of a run that was approved or charged; None: it was not."""
    view = read_ledger(site)
    for entry in reversed(view.entries):
        if entry.kind == APPROVED and entry.body["run_id"] == run:
            return RunTerms.from_json(entry.body["terms"])
    plan = view.account.plans.get(run)
    return plan.read_terms() if plan else None


def _listed(site: Profile) -> Iterator[tuple[str, ...]]:
    """Yield a header and a row a prepared file; nothing where there is none."""
    source, paths = sources_of(site)
    runs_of = _runs_by_file(site)
    for number, path in enumerate(files_in(paths.path)):
        if not number:
            yield ("records", "training", "held out", "megabytes", "export", "runs")
        runs = ", ".join(runs_of.get(path.stem, [])) or "none"
        size = f"{path.stat().st_size / 1e6:.1f}"
        try:
            facts = read_prepared(path).facts
        except DataError as error:
            yield (path.stem[:SHORT], "-", "-", size, str(error).partition(";")[0], runs)
            continue
        yield (
            path.stem[:SHORT],
            str(facts.counts["records for training"]),
            str(facts.counts.get("records held out", "-")),
            size,
            "as it is" if facts.stamp == stamp_of(source) else "changed since",
            runs,
        )


def _runs_by_file(site: Profile) -> dict[str, list[str]]:
    account, runs = read_ledger(site).account, dict[str, list[str]]()
    for run, digest in account.records.items():
        runs.setdefault(digest, []).append(run + (" (ended)" if run in account.ended else ""))
    return runs


def _delete(site: Profile, run: str, *, yes: bool) -> None:
    """Delete prepared files, each named with the runs that are bound to it."""
    _, paths = sources_of(site)
    account, runs_of = read_ledger(site).account, _runs_by_file(site)
    if run and run not in account.records:
        raise DataError(f"no records are prepared for run {quoted(run)}; list: hdpfl-site prepare")
    chosen = [path for path in files_in(paths.path) if not run or path.stem == account.records[run]]
    for path in chosen:
        runs = ", ".join(map(quoted, runs_of.get(path.stem, []))) or "no run"
        typer.echo(f"{path.stem[:SHORT]}: records of {runs}")
    if not chosen:
        typer.echo("no records are prepared")
        return
    question = "Delete them? A run that is not ended is declined until they are prepared again"
    if not yes and not typer.confirm(question):
        raise DataError("nothing was deleted")
    for path in chosen:
        try:
            path.unlink()
        except OSError as error:
            raise DataError(f"{path} cannot be deleted: {error.strerror}") from None
    typer.echo(f"deleted: {len(chosen)}")
