"""``hdpfl-site report``: promises and spent budget, for a data-protection officer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.errors import LedgerError
from hdpfl_flower.system.paths import expanded
from hdpfl_tools.site.options import ProfileOption, open_profile, write_file
from hdpfl_tools.site.reports.facts import Source, as_json, gather
from hdpfl_tools.site.reports.ledger_view import ledger_paths, read_copy, read_ledger
from hdpfl_tools.site.reports.rendering import as_html, as_text, failed


def report(
    profile: ProfileOption = None,
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger's file, in place of a profile.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        bool,
        typer.Option(
            "--html",
            help="Print the complete report as an HTML page for A4; the short one comes first.",
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: the terminal.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Print the site's privacy report.

    Without --html the report is short. With --html it is complete: the promise, the costs and the
    releases, the result of computing everything in the ledger again, and the limits of the promise.
    With --ledger the report is made only from the ledger's file, which the command does not change.
    The exit status is 1 if the ledger contradicts the promise.
    """
    if json and html:
        raise typer.BadParameter("--json and --html exclude each other")
    facts = gather(_source(profile, ledger))
    text = as_json(facts) + "\n" if json else as_html(facts) if html else as_text(facts)
    if out is None:
        sys.stdout.write(text)
    else:
        write_file(out, text.encode(), force=force)
        typer.echo(f"wrote {out}")
    if wrong := failed(facts):
        raise LedgerError(
            f"the ledger contradicts what is promised: not '{wrong[0]}'; see 'Assumptions "
            "checked' of --html, and rely on none of its numbers"
        )


def _source(profile: Path | None, ledger: Path | None) -> Source:
    """Return the named ledger, and the profile if that names it."""
    if ledger is not None:
        path = expanded(ledger)
        return Source(read_copy(path), path, None)
    site = open_profile(profile)
    return Source(read_ledger(site), ledger_paths(site).path, site)
