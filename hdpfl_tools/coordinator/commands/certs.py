"""``hdpfl certs``: TLS for the coordinator, key pairs for sites."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.errors import DeploymentError

AUTHORITY = ("ca.key", "ca.crt", "server.key", "server.crt")
"""Files of the coordinator, in the order of writing."""

RENEWED_BY = ["ca.key", "ca.crt"]
"""Files needed to renew the server's certificate."""

_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def certs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to make, or to add to.")
    ],
    host: Annotated[
        list[str],
        typer.Option(
            help=("A DNS name or address by which sites call the server; may be repeated.")
        ),
    ] = [],  # noqa: B006
    site: Annotated[list[str], typer.Option(help="A site's name; may be repeated.")] = [],  # noqa: B006
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help=("Sign a new server certificate with its present names and each --host."),
        ),
    ] = False,
) -> None:
    """Make a CA, the server's certificate and a key pair for each site.

    The command never overwrites a file. In a folder that it made before, it adds sites. With
    --renew the same CA signs a new server certificate. The former certificate and its key stay as
    server.crt.old and server.key.old, and the sites change nothing.
    """
    sites = folder / "sites"
    _check_names(sites, site)
    files = _renewed(folder, host) if renew else _authority_files(folder, host)
    if not files and not site:
        from hdpfl_tools.coordinator.certificates import valid_until

        end = valid_until((folder / "server.crt").read_bytes())
        typer.echo(f"{folder} is complete; name a new site with --site to add its keys")
        typer.echo(f"{folder}/server.crt is valid until {end:%Y-%m-%d}")
        return
    files.update(_site_files(sites, site))
    try:
        for path in [path for path in files if renew and path.exists()]:
            path.replace(path.with_name(f"{path.name}.old"))
        for directory in (folder, sites):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, content in files.items():
            _write_new(path, content)
    except OSError as error:
        raise DeploymentError(f"{error.filename} cannot be written: {error.strerror}") from None
    _tell(folder, [path.name for path in files if path.parent == folder], site)


def _check_names(sites: Path, names: list[str]) -> None:
    """Raise ``DeploymentError`` for a name that no new site can have."""
    for name in names:
        if not _SITE_NAME.fullmatch(name) or name.endswith(".pub"):
            raise DeploymentError(
                f"'--site {name}' may hold only letters, digits, '-', '_' and '.', and must "
                "start with a letter or a digit"
            )
        if names.count(name) > 1:
            raise DeploymentError(f"'--site {name}' is given twice; name each site once")
        for path in (sites / name, sites / f"{name}.pub"):
            if path.exists():
                raise DeploymentError(
                    f"{path} exists already and is not overwritten; choose another name, or leave "
                    f"out '--site {name}'"
                )


def _renewed(folder: Path, hosts: list[str]) -> dict[Path, bytes]:
    """Return a new server certificate and key by the same CA."""
    from hdpfl_tools.coordinator.certificates import hosts_of, renew_server

    missing = [name for name in ("ca.key", "server.crt") if not (folder / name).exists()]
    if missing:
        raise DeploymentError(
            f"{folder} has no {missing[0]}; bring back the file that 'hdpfl certs' made"
        )
    names = [*hosts_of((folder / "server.crt").read_bytes()), *hosts]
    pair = renew_server((folder / "ca.key").read_bytes(), names)
    return {folder / "server.key": pair.private, folder / "server.crt": pair.public}


def _authority_files(folder: Path, hosts: list[str]) -> dict[Path, bytes]:
    """Return the coordinator's files to write; none if they exist."""
    from hdpfl_tools.coordinator.certificates import make_authority, missing_hosts, renew_server

    present = [name for name in AUTHORITY if (folder / name).exists()]
    # Nothing yet, or the CA alone: a pair that was moved away is made anew, and sites keep their
    # ca.crt.
    if present in ([], RENEWED_BY):
        if not hosts:
            raise DeploymentError(
                "no '--host' is given; name every DNS name and address by which sites call the "
                "server, e.g. --host flower.example.org --host 127.0.0.1"
            )
        if present:
            pair = renew_server((folder / "ca.key").read_bytes(), hosts)
            return {folder / "server.key": pair.private, folder / "server.crt": pair.public}
        authority = make_authority(hosts)
        ca, server = authority.ca, authority.server
        contents = (ca.private, ca.public, server.private, server.public)
        return {folder / name: content for name, content in zip(AUTHORITY, contents, strict=True)}
    if len(present) < len(AUTHORITY):
        missing = ", ".join(name for name in AUTHORITY if name not in present)
        raise DeploymentError(
            f"{folder} holds only a part of a set: {missing} is missing; restore it, or name "
            "another folder"
        )
    missing_names = missing_hosts((folder / "server.crt").read_bytes(), hosts)
    if missing_names:
        raise DeploymentError(
            f"the certificate in {folder} does not name {', '.join(missing_names)}, and it is "
            "not overwritten; add --renew"
        )
    return {}


def _site_files(folder: Path, names: list[str]) -> dict[Path, bytes]:
    from hdpfl_tools.shell.site_keys import make_site_keys

    files = {}
    for name in names:
        pair = make_site_keys(name)
        files[folder / name], files[folder / f"{name}.pub"] = pair.private, pair.public
    return files


def _write_new(path: Path, content: bytes) -> None:
    """Write a new file, mode 0600 unless it is public."""
    public = path.suffix in (".crt", ".pub")
    # O_EXCL: a key that appeared since the check is not overwritten. The mode is there before the
    # content.
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    with os.fdopen(os.open(path, flags, 0o644 if public else 0o600), "wb") as file:
        file.write(content)


def _tell(folder: Path, written: list[str], sites: list[str]) -> None:
    if "ca.crt" in written:
        typer.echo(f"{folder}/ca.crt: give it to everyone who calls the server")
    if written:
        typer.echo(f"{folder}/server.crt, server.key: give them only to the SuperLink")
    if "ca.key" in written:
        typer.echo(
            f"{folder}/ca.key: it signs the next server certificate; keep it off the network"
        )
    for name in sites:
        typer.echo(
            f"{folder}/sites/{name}: give it only to the site {name}; {name}.pub registers the site"
        )
