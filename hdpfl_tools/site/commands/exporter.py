"""``hdpfl-site exporter``: the site's series for its own Prometheus."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Annotated, NoReturn

import typer

from hdpfl_flower.errors import DeploymentError, ProfileError
from hdpfl_flower.monitoring import series as metrics
from hdpfl_flower.monitoring.series import SITE_PORT, Reading
from hdpfl_flower.system.notice import send_notice
from hdpfl_flower.system.paths import expanded
from hdpfl_flower.system.printable import site_log
from hdpfl_tools.shell.prometheus import Address, Exporter, keep_writing, serve_until_ended
from hdpfl_tools.site.options import ProfileOption
from hdpfl_tools.site.reports.site_series import SiteSeries

log = site_log()

State = tuple[int, bool]
"""Requests that wait for a decision; whether another run like the last one fits."""
TELL_SECONDS = 30.0
"""Seconds between looks for something to tell the operator."""
OF_THE_GROUP = 0o640
"""File mode of a textfile: it holds the site's ε; node_exporter reads it as a group member."""
_SHORTEST, _LONGEST = 16, 1000
"""Characters of a token."""


def exporter(  # noqa: PLR0913, PLR0917 - options of a command line
    profile: ProfileOption = None,
    host: Annotated[str, typer.Option(help="Address at which the exporter listens.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port; 0: any free port.", min=0, max=65535)
    ] = SITE_PORT,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Host name that a request may use for this machine; may be repeated."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File of the token that a request must bear. Default: LEDGER.token. A "
            "missing file is made."
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Certificate for TLS, a PEM file.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None,
    clients: Annotated[
        Path | None, typer.Option(help="Certificate of the CA of permitted clients, a PEM file.")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Use plain HTTP and no token. Only for a network that nobody but this site uses.",
        ),
    ] = False,
    textfile: Annotated[
        Path | None, typer.Option(help="Write this .prom file once, and do not listen.")
    ] = None,
    every: Annotated[
        float,
        typer.Option(help="With --textfile: write it again after so many seconds; 0: once.", min=0),
    ] = 0.0,
) -> None:
    """Show this site's budget, releases, refusals and ledger to its own Prometheus.

    These values are private. By default the exporter listens only at this machine, and answers only
    requests that bear the token. Another --host needs --clients, so that each client must show a
    certificate, or --insecure. With either of them the exporter asks for a token only if
    --token-file names one.
    """
    if profile is None:
        raise ProfileError("no profile is named; add --profile PATH, or set HDPFL_PROFILE")
    series = SiteSeries(expanded(profile))
    exposition = Exporter("site", series.readings)
    if series.notify:
        notifier = SiteSeries(expanded(profile))  # two threads share no reader
        Thread(target=keep_telling, args=[notifier], daemon=True).start()
    if textfile is not None:
        keep_writing(exposition, textfile, every, mode=OF_THE_GROUP)
        return
    address = Address(host, port, certificate, key, clients, tuple(name or ()))
    check_private(address, insecure=insecure)
    said = ""
    if token_file is None and not (address.mutual or insecure):
        token_file = series.ledger.with_name(f"{series.ledger.name}.token")
    if token_file is not None:
        address = replace(address, token=read_token(expanded(token_file)))
        said = f"; the token is in {token_file}"
    serve_until_ended(exposition, address, lambda url: typer.echo(f"listening at {url}{said}"))


def keep_telling(series: SiteSeries) -> NoReturn:
    """Send a notice of each new state of the site that needs its operator."""
    told = (0, True)
    while True:
        now = state_of(series.readings(), told)
        for notice in notices_of(told, now):
            send_notice(series.notify, log, notice=notice)
        told = now
        time.sleep(TELL_SECONDS)


def state_of(readings: Iterable[Reading], before: State) -> State:
    """Return the requests that wait and whether a run still fits; unknown ones are as before."""
    now = {reading.series: reading.value for reading in readings}
    pending = int(now.get(metrics.PENDING_REQUESTS, before[0]))
    return pending, now.get(metrics.LEFT_LIKE_LAST, float(before[1])) >= 1


def notices_of(before: State, now: State) -> Iterator[str]:
    """Yield the names of the notices.

    >>> list(notices_of((0, True), (1, False)))
    ['request-pending', 'budget-low']
    """
    if now[0] > before[0]:
        yield "request-pending"
    if before[1] and not now[1]:
        yield "budget-low"


def read_token(path: Path) -> str:
    """Return the token in ``path``; a missing file is made, mode 0600.

    Raises:
        DeploymentError: the file cannot be read or made, is open to other users, or has no token.
    """
    try:
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(32))
        with path.open(encoding="ascii", errors="replace") as file:
            status, token = os.fstat(file.fileno()), file.read(_LONGEST + 1).strip()
    except OSError as error:
        raise DeploymentError(
            f"exporter: {path}: {error.strerror}; name a '--token-file'"
        ) from None
    # The group may read it: that of the site's Prometheus.
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise DeploymentError(
            f"exporter: other users can read or change {path}; remove it, and a new one "
            "will be made"
        )
    if not re.fullmatch(rf"[\x21-\x7e]{{{_SHORTEST},{_LONGEST}}}", token):
        raise DeploymentError(
            f"exporter: {path} holds no token of {_SHORTEST} to {_LONGEST} characters; remove it, "
            "and a new one will be made"
        )
    return token


def check_private(address: Address, *, insecure: bool) -> None:
    """Refuse an address that would expose the site's ε to others.

    Raises:
        DeploymentError: it is not this machine's own, and no client has to show a certificate.
    """
    if not (address.mutual or address.local or insecure):
        raise DeploymentError(
            "exporter: other machines can reach '--host', and the exporter shows private values; "
            "add --certificate, --key and --clients; or, on a network that nobody but this site "
            "uses, --insecure"
        )
