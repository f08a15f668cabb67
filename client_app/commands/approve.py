"""``hdpfl-site approve``: which run may use this site, or which app may work here at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import client_app
from client_app.approval.fab import Bundle, install, read_bundle
from client_app.commands.options import ProfileOption, open_profile
from client_app.commands.requests import ByOption, approve_run
from client_app.site.app_digest import PACKAGES
from hdpfl_flower.errors import DeploymentError
from hdpfl_flower.system.printable import printable

SHIPPED = (".py", ".toml")


def approve(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN | APP.fab",
            help="A run, or the digits that 'requests' prints; with --to an app of 'flwr build'.",
        ),
    ],
    profile: ProfileOption = None,
    by: ByOption = "",
    to: Annotated[
        Path | None,
        typer.Option("--to", "--out", metavar="DIR", help="App: folder of the approved apps."),
    ] = None,
    sha256: Annotated[
        str, typer.Option(help="App: what its SHA-256 must be, as the coordinator named it.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Approve a run, or with --to an app.

    A run: prints its terms, its price and what it discloses, and asks. The ledger records who
    approved which terms; other terms, or another app, wait for approval again.

    An app, bit by bit: lists the files that differ from the package installed here, and asks. Run
    it as the administrator: the user whom the SuperNode runs as must not be able to write to DIR.
    """
    if to is not None:
        _approve_app(Path(what), to, sha256, yes=yes)
    elif sha256:
        raise DeploymentError("'--sha256' is of an app: add --to DIR, or leave it out for a run")
    else:
        approve_run(open_profile(profile), what, by, yes=yes)


def _approve_app(app: Path, to: Path, sha256: str, *, yes: bool) -> None:
    bundle = read_bundle(app)
    if sha256 and sha256.strip().lower() != bundle.sha256:
        raise DeploymentError(
            f"{app} is another app: its SHA-256 is {bundle.sha256}; ask the coordinator which "
            "one is meant"
        )
    typer.echo(printable(f"{bundle.app} {bundle.version}, {len(bundle.files)} files"))
    typer.echo(f"SHA-256 {bundle.sha256}")
    found = list(differences(bundle))
    typer.echo(f"unlike the package installed here: {len(found) or 'nothing'}")
    for line in found:
        typer.echo(f"  {printable(line)}")
    if not yes and not typer.confirm("It will read this site's records. Approve it?"):
        raise DeploymentError("nothing was approved")
    folder = to.expanduser().absolute()
    launcher = install(bundle, folder)
    typer.echo(f"approved: {folder / 'apps' / bundle.sha256}")
    if others := len(list((folder / "apps").glob("[!.]*"))) - 1:
        typer.echo(
            f"other apps approved here: {others}; with several, each message imports its app anew, "
            f"which takes 2 s: remove from {folder / 'apps'} those that no run uses"
        )
    typer.echo(f"start the SuperNode and its flower-superexec with PATH={launcher.parent}")
    if os.geteuid() != 0:
        typer.echo(f"warning: this user can change {folder}; run the SuperNode as another one")


def differences(bundle: Bundle) -> Iterator[str]:
    """Yield, a line a file, how the app differs from the package that is installed here."""
    mine, sent = dict(_installed()), bundle.files
    for name in sorted(mine.keys() | sent.keys()):
        if name not in mine:
            if name.split("/")[0] in PACKAGES or name.endswith(".py"):
                yield f"added    {name}"
        elif name not in sent:
            yield f"missing  {name}"
        elif sent[name] != mine[name]:
            yield f"changed  {name}"


def _installed() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the installed packages as a bundle names them."""
    root = Path(client_app.__file__).parents[1]
    for package in PACKAGES:
        for path in (root / package).rglob("*"):
            if path.suffix in SHIPPED and path.is_file():
                yield path.relative_to(root).as_posix(), path.read_bytes()
