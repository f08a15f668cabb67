"""``hdpfl invite``: one signed file by which a site joins."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.config.named_files import as_one_file
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import DeploymentError
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.fingerprints import spoken
from hdpfl_tools.coordinator.certificates import hosts_of
from hdpfl_tools.shell.invitation import APP, CA, MORE, SUFFIX, TERMS, Invitation


def invite(
    site: Annotated[str, typer.Argument(help="The name under which the site is registered.")],
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The address at which sites call the server.")
    ],
    app: Annotated[Path, typer.Option(metavar="APP.fab", help="The bundle that flwr build wrote.")],
    terms: Annotated[
        Path, typer.Option("--terms", "--run-config", help="The public terms of the planned run.")
    ],
    certs: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder that hdpfl certs made.")
    ] = Path("certs"),
    with_: Annotated[
        list[Path],
        typer.Option(
            "--with", help=("Another public file to add, such as a site's key; may be repeated.")
        ),
    ] = [],  # noqa: B006
    to: Annotated[
        Path | None,
        typer.Option("--to", "--out", help="The file to write; default: SITE.invitation."),
    ] = None,
) -> None:
    """Write a signed file with which a site joins: address, CA, app, terms and other public files.

    Nothing in the file is secret. The site checks the file and makes its own key with:
    hdpfl-site join FILE.
    """
    config = RunConfig.load(terms)
    host = address.rpartition(":")[0].strip("[]")
    if host not in hosts_of(_read(certs / "server.crt")):
        raise DeploymentError(
            f"--address: the server's certificate does not name '{host}'; use a name that is in "
            f"it, or add this one: hdpfl certs {certs} --host {host} --renew"
        )
    text = as_one_file(terms)
    files = {
        CA: _read(certs / "ca.crt"),
        APP: _read(app),
        TERMS: text.encode(),
        **{f"{MORE}{path.name}": _read(path) for path in with_},
    }
    asked = config.terms.coordinator, config.terms.purpose
    invitation = Invitation(site, address, *asked, files)
    content = invitation.signed(_read(certs / "ca.key"))
    path = to or Path(f"{site}{SUFFIX}")
    if path.exists():
        raise DeploymentError(f"{path} exists already; name another file with --to")
    replace_file(path, content, mode=0o644)
    typer.echo(
        f"{path}: send it to {site}, where the operator calls: hdpfl-site join "
        f"{shlex.quote(path.name)}"
    )
    typer.echo(f"read this out on the telephone: {spoken(invitation.fingerprint)}")
    read = tomllib.loads(text)
    for key in ("start", "backbone.weights"):
        if str(read.get(key, "")).startswith("sha256:"):
            typer.echo(f"also send the file of weights that '{key}' names")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DeploymentError(f"{path} cannot be read: {error.strerror}") from None
