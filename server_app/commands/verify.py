"""``hdpfl verify``: a site's signed report, checked offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client_app.reports.signature import beside, check


def verify(
    report: Annotated[Path, typer.Argument(help="The file; its signature is REPORT.sig.")],
    key: Annotated[
        Path | None, typer.Option(help="The site's public key; else REPORT.pub, beside it.")
    ] = None,
) -> None:
    """Verify a report that a site signed, offline; exit 1 if a byte was changed.

    Of the report or of its signature, which hdpfl-site report --sign made.
    """
    found = check(report, key or beside(report)[1])
    known = "" if key else "; this key came with the report: is it the one that the site told you?"
    typer.echo(f"verified: {report} is, to the byte, what the key {found} signed{known}")
