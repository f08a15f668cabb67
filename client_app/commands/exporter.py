"""``hdpfl-site exporter``: this site's own series for this site's own Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client_app.commands.options import ProfileOption
from client_app.commands.site_series import SiteSeries
from hdpfl_flower.errors import DeploymentError, ProfileError
from hdpfl_flower.monitoring.prometheus import Address, Exporter, keep_writing, serve_until_ended
from hdpfl_flower.monitoring.series import SITE_PORT

OF_THE_GROUP = 0o640
"""Of a textfile: it holds the site's ε; node_exporter reads it as a member of the file's group."""


def exporter(  # noqa: PLR0913, PLR0917 - options of a command line
    profile: ProfileOption = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = SITE_PORT,
    certificate: Annotated[Path | None, typer.Option(help="PEM, to speak TLS.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    clients: Annotated[
        Path | None, typer.Option(help="PEM of the authority of those who may ask.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Answer anybody who reaches another address.")
    ] = False,
    textfile: Annotated[
        Path | None, typer.Option(help="Write this .prom file once, and listen nowhere.")
    ] = None,
    every: Annotated[
        float, typer.Option(help="With --textfile: again after these seconds; 0: once.", min=0)
    ] = 0.0,
) -> None:
    """Show this site's budget, releases, refusals and ledger to its own Prometheus.

    They are private: it answers this machine alone, unless those who ask show a certificate.
    """
    if profile is None:
        raise ProfileError("no profile is named; add --profile PATH, or set HDPFL_PROFILE")
    exposition = Exporter("site", SiteSeries(profile.expanduser()).readings)
    if textfile is not None:
        keep_writing(exposition, textfile, every, mode=OF_THE_GROUP)
        return
    address = Address(host, port, certificate, key, clients)
    check_private(address, insecure=insecure)
    serve_until_ended(exposition, address, lambda url: typer.echo(f"listening at {url}"))


def check_private(address: Address, *, insecure: bool) -> None:
    """Refuse an address at which others could read the site's ε.

    Raises:
        DeploymentError: it is not this machine's own, and no client has to show a certificate.
    """
    if not (address.mutual or address.local or insecure):
        raise DeploymentError(
            "exporter: '--host' is reached from other machines, and what is shown is private; add "
            "--certificate, --key and --clients, or, on a network of this site alone, --insecure"
        )
