"""``hdpfl-site join``: from a coordinator's invitation to a site that waits for its first run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.toml_text import as_toml
from hdpfl_flower.errors import DataError, DeploymentError, HDPFLError
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.fingerprints import spoken
from hdpfl_flower.system.printable import printable
from hdpfl_tools.shell.invitation import APP, CA, MORE, TERMS, Invitation, read_invitation
from hdpfl_tools.shell.site_keys import make_site_keys, node_fingerprint
from hdpfl_tools.site.commands.health import health
from hdpfl_tools.site.commands.plan import plan
from hdpfl_tools.site.commands.profile import new
from hdpfl_tools.site.service_files import PORT, Services, plain_word

KEY, PUBLIC = "node.key", "node.key.pub"
PROFILE, SECRET = "profile.toml", "superexec.secret"


class Start(StrEnum):
    """Programs that start a site's node."""

    SYSTEMD = "systemd"
    COMPOSE = "compose"


def join(  # noqa: PLR0913, PLR0917 - options of a command line
    invitation: Annotated[Path, typer.Argument(help="The file that the coordinator sent.")],
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the site. Default: the site's name."),
    ] = None,
    fingerprint: Annotated[
        str,
        typer.Option(
            help="The fingerprint that the coordinator read out; then the command does not "
            "ask for it."
        ),
    ] = "",
    data: Annotated[
        Path | None,
        typer.Option(help="The records; with this option the command writes a first profile."),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            help="About how many records are for training. The number is public: round it.", min=1
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of one run.")] = None,
    cap: Annotated[float | None, typer.Option(help="ε of all runs together.")] = None,
    id_: Annotated[str, typer.Option("--id", help="Column that names the person.")] = "",
    start: Annotated[
        Start, typer.Option(help="Write units of systemd for this user, or a Compose file.")
    ] = Start.SYSTEMD,
    port: Annotated[
        int,
        typer.Option(
            help="Port of this machine that the units of node and tasks use between them. Each "
            "site of one machine needs its own.",
            min=1024,
            max=65535,
        ),
    ] = PORT,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not ask the coordinator for its health.")
    ] = False,
) -> None:
    """Check an invitation, write the files of a site's node, and test the connection.

    The command writes the node's key, the profile (with --data), and units of systemd or a Compose
    file. It prints the price of the run and the next steps. It refuses an invitation that is not as
    its coordinator signed it. It replaces no file, so a second call resumes where the first one
    ended. It sends nothing but a question for the coordinator's health.
    """
    asked = read_invitation(invitation)
    _compare(asked, fingerprint)
    home = folder or Path(asked.site)
    plain_word(home.absolute())  # before anything is written
    terms = _unpack(asked, home)
    public = _node_key(asked, home)
    if data is not None and not (home / PROFILE).exists():
        new(home / PROFILE, data, id_, terms, records, epsilon, cap, name=asked.site)
    if (home / PROFILE).exists():
        typer.echo("")
        with contextlib.suppress(typer.Exit):  # it has said that the run does not fit
            plan(terms, home / PROFILE)
        typer.echo("")
    if not offline:
        _test_connection(asked.address, home / CA)
    typer.echo(f"send to the coordinator: {home / PUBLIC}; read out: {node_fingerprint(public)}")
    for name in asked.files:
        if name.startswith(MORE):
            typer.echo(f"the invitation also held: {home / name}")
    typer.echo("next:")
    for number, step in enumerate(_next_steps(asked, home, start, port), start=1):
        typer.echo(f"{number}. {step}")


def _compare(asked: Invitation, fingerprint: str) -> None:
    """Show the coordinator; raise ``DeploymentError`` unless the fingerprint was compared."""
    typer.echo(f"{'site':<12}{asked.site}")
    for word, text in (("who asks", asked.coordinator), ("purpose", asked.purpose)):
        typer.echo(f"{word:<12}{printable(text) or 'not said'}  (in the coordinator's words)")
    typer.echo(f"{'address':<12}{printable(asked.address)}")
    typer.echo(f"{'fingerprint':<12}{spoken(asked.fingerprint)}")
    heard = "".join(fingerprint.split()).lower()
    if heard and heard != asked.fingerprint:
        raise DeploymentError(
            "the fingerprint of the invitation is not that of '--fingerprint'; do not join, and "
            "ask the coordinator by telephone"
        )
    if not heard and not typer.confirm(
        "Did the coordinator read out this fingerprint, by a number that did not come with the "
        "file?"
    ):
        raise DeploymentError(
            "nothing was written; first call the coordinator and compare the fingerprint"
        )


def _unpack(asked: Invitation, home: Path) -> Path:
    """Write the files of the invitation; return that of the terms."""
    node = f"profile = {as_toml(str(home.absolute() / PROFILE))}\n".encode()
    for name, content in {**asked.files, "node.toml": node}.items():
        _write_once(home / name, content)
    if not (home / SECRET).exists():
        _write_once(home / SECRET, os.urandom(32), 0o600)
    config = RunConfig.load(home / TERMS, mailed=True)
    typer.echo(f"{'terms':<12}{printable(config.terms.strategy)}, {config.terms.rounds} rounds")
    return home / TERMS


def _write_once(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a new file; an equal one stays, another one is refused."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists():
            if path.read_bytes() != content:
                raise DataError(
                    f"{path} exists already with other content; move it away, or name another "
                    "--folder"
                )
            return
        replace_file(path, content, mode=mode)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from None


def _node_key(asked: Invitation, home: Path) -> bytes:
    """Return the public key of the node, whose private key is made once, and first."""
    path = home / KEY
    if not path.exists():
        _write_once(path, make_site_keys(asked.site).private, 0o600)
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise DataError(f"{path} is not a key without a password; move it away") from None
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write_once(home / PUBLIC, public + f" {asked.site}\n".encode())
    return public


def _test_connection(address: str, ca: Path) -> None:
    try:
        health(address, ca, None)
    except HDPFLError as fault:
        typer.echo(f"warning: {fault}; then: hdpfl-site health {address} --root-certificates {ca}")


def _next_steps(asked: Invitation, home: Path, start: Start, port: int) -> list[str]:
    """Write how node and tasks start; return the steps to the first message."""
    profile = home / PROFILE
    if not profile.exists():
        return [
            f"hdpfl-site join … --folder {_words(home)} --data EXPORT: this writes a first profile"
        ]
    at = f"--profile {_words(profile)}"
    digest = hashlib.sha256(asked.files[APP]).hexdigest()
    services = Services(asked.site, asked.address, home.absolute(), profile.absolute(), port)
    steps = [
        f"read {_words(profile)}, and correct it; then: hdpfl-site ledger --init {at}",
        f"hdpfl-site profile check --terms {_words(home / TERMS)} {at}",
    ]
    if start is Start.COMPOSE:
        path = home / "compose.yml"
        _write_once(path, services.compose().encode(), 0o600)
        return [*steps, f"docker compose -f {_words(path)} up -d"]
    units = {home / "units" / name: text for name, text in services.units().items()}
    for path, text in units.items():
        _write_once(path, text.encode())
    approved = home / "approved"
    return [
        *steps,
        f"hdpfl-site approve {_words(home / APP)} --to {_words(approved)} --sha256 {digest}",
        f"systemctl --user enable --now {_words(*(path.absolute() for path in units))}",
        "loginctl enable-linger: the units run while this user is not logged in",
    ]


def _words(*paths: Path) -> str:
    """Return paths as words of a shell."""
    return shlex.join(str(path) for path in paths)
