"""``hdpfl-site report``: what this site promises and has spent, for a data-protection officer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from client_app.commands.options import ProfileOption, open_profile, write_file
from client_app.reports.facts import Source, as_json, gather
from client_app.reports.layout import as_markdown, as_text
from client_app.reports.ledger_view import ledger_paths, read_copy, read_ledger
from client_app.reports.wording import TITLE, failed, sections
from hdpfl_flower.errors import LedgerError


def report(
    profile: ProfileOption = None,
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger's file alone, in place of a profile.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="As Markdown, with a row for every release.")
    ] = False,
    html: Annotated[
        bool,
        typer.Option("--html", help="As a page for a board: in short first; prints on A4."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write; else the terminal.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Print the site's privacy report.

    In plain words: what is promised, what was spent and released, whether the ledger agrees
    when everything is computed again, and what is not covered. With --ledger it is made from the
    ledger's file alone, which is only read. Exit status 1 if the ledger contradicts the promise.
    """
    if json + markdown + html > 1:
        raise typer.BadParameter("--json, --markdown and --html exclude each other")
    facts = gather(_source(profile, ledger))
    if json:
        text = as_json(facts) + "\n"
    elif html:
        from client_app.reports.page import as_html  # jinja2, for this form alone

        text = as_html(TITLE, facts, sections(facts, every_release=False))
    elif markdown:
        text = as_markdown(TITLE, sections(facts, every_release=True))
    else:
        text = as_text(TITLE, sections(facts, every_release=False))
    if out is None:
        sys.stdout.write(text)
    else:
        write_file(out, text.encode(), force=force)
        typer.echo(f"wrote {out}")
    if wrong := failed(facts):
        raise LedgerError(
            f"the ledger contradicts what is promised: not '{wrong[0]}'; see 'Assumptions "
            "checked' in the report, and rely on none of its numbers"
        )


def _source(profile: Path | None, ledger: Path | None) -> Source:
    """Return the ledger that is named, and the profile if that is what names it."""
    if ledger is not None:
        path = ledger.expanduser()
        return Source(read_copy(path), path, None)
    site = open_profile(profile)
    return Source(read_ledger(site), ledger_paths(site).path, site)
