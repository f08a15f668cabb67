"""``hdpfl-site data`` and ``prepare``: imported table and prepared records."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from client_app.site.prepared_records import prepared_path, read_prepared
from hdpfl_flower.config.data_source import TABLES, DataSource
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError, ProfileError
from hdpfl_flower.ledger.account import APPROVED
from hdpfl_flower.ledger.checked_table import (
    TableFacts,
    is_current,
    read_facts,
    stamp_of,
    table_folder,
)
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_tools.shell.terminal import new_app
from hdpfl_tools.site.approval.preparation import (
    ExportRead,
    changes,
    files_in,
    last_prepared,
    read_export,
    sources_of,
)
from hdpfl_tools.site.commands.texts.render import quoted, text_of
from hdpfl_tools.site.open_requests import read_requests
from hdpfl_tools.site.options import TERMS_HELP, ProfileOption, open_profile
from hdpfl_tools.site.reports.ledger_view import read_ledger
from hdpfl_tools.tables.frozen_table import (
    Counts,
    counts_of,
    delete_table,
    import_table,
    rows_of,
    table_path,
)
from hdpfl_tools.tables.sources.frozen_rows import frozen_rows

SHORT = 12
"""Shown digits of a file's SHA-256."""


def prepare(
    run: Annotated[
        str,
        typer.Argument(
            help="Name of an approved or charged run; with --dry-run also of a run that waits.",
            show_default=False,
        ),
    ] = "",
    profile: ProfileOption = None,
    terms: Annotated[Path | None, typer.Option("--terms", "--run-config", help=TERMS_HELP)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change; write nothing.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the prepared records of all runs, or of RUN.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """List the records that are prepared for runs; prepare them again or delete them.

    'approve' prepares the records of a run. Under a standing approval the run's first message does
    it. The run's later messages read only the prepared records. So a later change of the export
    counts from the next approval on, or, for RUN, from the time of this command on.

    With --terms the command prepares the records of future runs, for a standing approval. A run
    whose records were deleted is declined until they are prepared again.
    """
    site = open_profile(profile)
    if delete:
        if terms is not None or dry_run:
            raise typer.BadParameter("--delete goes only with RUN and --yes")
        _delete(site, run, yes=yes)
    elif terms is not None:
        if run:
            raise typer.BadParameter("RUN and --terms exclude each other")
        reading = read_shown(site, RunConfig.load(terms, mailed=True).terms, dry_run=dry_run)
        if not dry_run:
            typer.echo(f"prepared: {reading.write()[:SHORT]}")
    elif run:
        _prepare_anew(site, run, dry_run=dry_run, yes=yes)
    elif dry_run or yes:
        raise typer.BadParameter("--dry-run needs RUN or --terms, and --yes RUN or --delete")
    else:
        typer.echo(text_of("prepared", facts=None, rows=[*_listed(site)]))


def read_shown(site: Profile, terms: RunTerms, *, dry_run: bool = False) -> ExportRead:
    """Read the export; print its counts and their change.

    A table is imported first; with ``dry_run`` nothing of it stays.

    Raises:
        DataError, ProfileError, LedgerError: as ``read_export``.
    """
    _, paths = sources_of(site)
    account = read_ledger(site).account
    with tempfile.TemporaryDirectory() as folder:
        beside = Path(folder) / "ledger" if dry_run else paths.path
        reading = read_export(site, terms, account, beside=beside)
    before = last_prepared(paths.path, account)
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
            raise DataError(f"the ledger knows no run {quoted(run)}, and no run of that name waits")
        if not dry_run:
            raise DataError(
                f"run {quoted(run)} waits for approval, and the approval prepares its records: "
                "hdpfl-site approve; to see them before, add --dry-run"
            )
        terms = waiting[-1]
    reading = read_shown(site, terms, dry_run=dry_run)
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
        typer.echo(f"deleted: {before[:SHORT]}, because no run uses it any more")


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
        raise DataError(
            f"no records are prepared for run {quoted(run)}; list the prepared records: "
            "hdpfl-site prepare"
        )
    chosen = [path for path in files_in(paths.path) if not run or path.stem == account.records[run]]
    for path in chosen:
        runs = ", ".join(map(quoted, runs_of.get(path.stem, []))) or "no run"
        typer.echo(f"{path.stem[:SHORT]}: records of {runs}")
    if not chosen:
        typer.echo("no records are prepared")
        return
    question = (
        "Delete them? A run that has not ended is declined until its records are prepared again"
    )
    if not yes and not typer.confirm(question):
        raise DataError("nothing was deleted")
    for path in chosen:
        try:
            path.unlink()
        except OSError as error:
            raise DataError(f"{path} cannot be deleted: {error.strerror}") from None
    typer.echo(f"deleted: {len(chosen)}")


app = new_app(
    "Import the site's export into the table that runs read; compare or delete this table."
)
MOST_TEXTS = 30
"""Different texts of a column up to which they are compared one by one."""


@app.command("import")
def import_(
    profile: ProfileOption = None,
    terms: Annotated[Path | None, typer.Option("--terms", "--run-config", help=TERMS_HELP)] = None,
) -> None:
    """Read the site's export into the table that runs read, beside the ledger.

    The export is a file of any kind, a database, or a query over several tables. The command reads
    it once, checks it and freezes it. Nothing is sent. Runs read only the frozen table. If the
    export changes later, the site declines runs until the export is imported and checked again;
    'profile check', 'approve' and 'prepare' do that, too.

    If an import is interrupted, the table of the last import stays. With --terms the command uses
    the run's schema to tell the header from titles above it.
    """
    source, ledger = _table_of(open_profile(profile))
    schema = RunConfig.load(terms, mailed=True).terms.schema_text if terms is not None else ""
    before = read_facts(ledger)
    facts = import_table(source, ledger, schema)
    is_same = before is not None and before.table == facts.table
    state = "the table is the same as the one that was imported before" if is_same else "imported"
    typer.echo(_text(facts, ledger, state))


@app.command()
def status(profile: ProfileOption = None) -> None:
    """Compare the export with the imported table, and print each change.

    The command shows rows, columns, missing cells and categories only here: nothing is sent.
    """
    source, ledger = _table_of(open_profile(profile))
    facts = read_facts(ledger)
    if facts is None:
        typer.echo("no table is imported; import it: hdpfl-site data import")
        return
    if is_current(facts, source, whole=True):
        typer.echo(_text(facts, ledger, "the export has not changed since the import"))
        return
    before = counts_of(frozen_rows(table_path(ledger, facts.table)))
    now = counts_of(rows_of(source))
    state = (
        "the export changed since the import, so runs are declined; check it: hdpfl-site "
        "data import"
    )
    typer.echo(_text(facts, ledger, state, [*table_changes(before, now)]))
    raise typer.Exit(1)


@app.command()
def delete(
    profile: ProfileOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete the imported table; the prepared records of runs stay ('prepare --delete')."""
    _, ledger = _table_of(open_profile(profile))
    if not yes and not typer.confirm(f"Delete the table in {table_folder(ledger)}?"):
        raise DataError("nothing was deleted")
    typer.echo(f"deleted: {delete_table(ledger) / 1e6:.1f} MB")


def _table_of(site: Profile) -> tuple[DataSource, Path]:
    """Return ``[data]`` of a table and the path of the ledger."""
    source, paths = sources_of(site)
    if source.format not in TABLES:
        raise ProfileError("'data.format' is no table: 'npz' and 'images' are not imported")
    if not paths.path.parent.is_dir():
        raise ProfileError(
            f"there is no folder {paths.path.parent} for the table; create the ledger: hdpfl-site "
            "ledger --init"
        )
    return source, paths.path


def _text(
    facts: TableFacts, ledger: Path, state: str, changed: list[tuple[str, str, str]] | None = None
) -> str:
    rows = frozen_rows(table_path(ledger, facts.table))
    count = len(rows.uncut.lost({}, len(rows.header)).rows)
    columns = [(name, str(empty), _number(texts)) for name, empty, texts in facts.columns]
    head = [("changed", "imported", "now")] if changed else []
    return text_of(
        "data", facts=facts, lost=count, rows=columns, state=state, changes=head + (changed or [])
    )


def _number(texts: int) -> str:
    return str(texts) if texts <= Counts.MOST else f"more than {Counts.MOST}"


def table_changes(before: Counts, now: Counts) -> Iterator[tuple[str, str, str]]:
    """Yield the differences of two readings: name, before, now."""
    if before.rows != now.rows:
        yield "rows", str(before.rows), str(now.rows)
    for name in dict.fromkeys([*before.columns, *now.columns]):
        was, is_now = before.columns.get(name), now.columns.get(name)
        if was is None or is_now is None:
            yield f"column '{name}'", "-" if was is None else "there", "-" if was else "there"
            continue
        if was.empty != is_now.empty:
            yield f"column '{name}': empty cells", str(was.empty), str(is_now.empty)
        if max(len(was.texts), len(is_now.texts)) > MOST_TEXTS:
            continue
        for text in sorted((was.texts ^ is_now.texts) - {None}, key=repr):
            shown = (text or b"").decode(errors="replace")[:40]
            there = ("-", "there") if text in is_now.texts else ("there", "-")
            yield (f"column '{name}': '{shown}'", *there)
