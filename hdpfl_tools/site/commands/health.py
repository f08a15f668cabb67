"""``hdpfl-site health``: whether the node answers, or could reach its SuperLink at all.

With an address, the one command of a site that talks to another machine: it asks the coordinator
for its health, once.
"""

from __future__ import annotations

import http.client
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.errors import DeploymentError
from hdpfl_flower.system.paths import expanded
from hdpfl_flower.system.patient import DEAF, heard_ago, heard_file
from hdpfl_flower.system.task_programs import path_fault
from hdpfl_tools.shell.proxies import VARIABLE, proxy_for

SECONDS = 20.0
"""Patience with the network."""
AHEAD_SECONDS, BEHIND_SECONDS = 5.0, 300.0
"""Clock difference from which Flower's SuperLink refuses a node."""
WARN_DAYS = 30
_PLAIN_HTTP = ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "HTTP_REQUEST")
_EXPIRED, _NOT_YET, _NAMES = 10, 9, (62, 64)
"""OpenSSL's X509_V_ERR_…: CERT_HAS_EXPIRED, CERT_NOT_YET_VALID, HOSTNAME_MISMATCH, IP_…"""


def health(
    superlink: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT",
            help="Ask this coordinator; for use before the node starts.",
            show_default=False,
        ),
    ] = "",
    root_certificates: Annotated[
        Path | None, typer.Option(metavar="CA.CRT", help="The certificate of the federation's CA.")
    ] = None,
    flwr_home: Annotated[
        Path | None,
        typer.Option(
            envvar="FLWR_HOME", help="The Flower home of a node that hdpfl-patient started."
        ),
    ] = None,
) -> None:
    """Check that the node hears from its SuperLink; or ask a SuperLink and compare clocks.

    Without HOST:PORT the exit status is 1 if for 90 seconds the node has heard nothing, or
    flower-superexec has not asked it for a task, or if the PATH of the node or of this command pins
    only a part of Flower's programs. With HOST:PORT it is 1 if the coordinator cannot be reached,
    its certificate is not right, or the clocks differ too much. The command uses the forward proxy
    in HTTPS_PROXY, except for the hosts in NO_PROXY. An error is one line, for the log or the probe
    that starts the SuperNode.
    """
    if not superlink:
        _of_the_node(heard_file(flwr_home))
    elif root_certificates is None:
        raise DeploymentError(f"name the CA of {superlink}: --root-certificates ca.crt")
    else:
        _of_the_superlink(superlink, root_certificates)


def _of_the_node(note: Path) -> None:
    ago = heard_ago(note)
    if ago is None or ago.superlink > DEAF:
        heard = "nothing so far" if ago is None else f"nothing for {ago.superlink:.0f} s"
        raise DeploymentError(
            f"the node has heard {heard} from its SuperLink ({note}); start it again with "
            "hdpfl-patient, and see: hdpfl-site health HOST:PORT"
        )
    if ago.tasks > DEAF:
        raise DeploymentError(
            f"flower-superexec has not asked the node for a task for {ago.tasks:.0f} s, so no "
            "message is answered; start flower-superexec again, or the node that starts it, and "
            "see its log"
        )
    if fault := path_fault() or (ago.pinned and path_fault(ago.pinned)):
        raise DeploymentError(fault)
    typer.echo(f"the node heard from its SuperLink {ago.superlink:.0f} s ago")
    typer.echo(
        f"it runs only approved apps, by {ago.pinned}"
        if ago.pinned
        else "it runs any app that its coordinator sends: hdpfl-site approve APP.fab --to …"
    )


def _of_the_superlink(superlink: str, root_certificates: Path) -> None:
    # From the right: an IPv6 address has colons of its own.
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdecimal() or "/" in superlink:
        raise DeploymentError(f"'{superlink}' is not HOST:PORT, such as flower.example.org:8000")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=str(expanded(root_certificates)))
    except OSError as error:  # also of a file that holds no certificate
        reason = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise DeploymentError(f"{root_certificates} cannot be read: {reason}") from None
    proxy = proxy_for(host)
    first = (proxy.host, proxy.port) if proxy else (host, int(port))
    connection = http.client.HTTPSConnection(*first, timeout=SECONDS, context=context)
    if proxy:
        connection.set_tunnel(host, int(port), proxy.headers)
    try:
        connection.connect()
        end = _end_of(connection.sock)
        connection.request("GET", "/health")
        reply = connection.getresponse()
    except ssl.SSLCertVerificationError as error:
        raise DeploymentError(_certificate_problem(error, superlink, host)) from None
    except ssl.SSLError as error:
        plain = error.reason in _PLAIN_HTTP
        raise DeploymentError(
            f"{superlink} does not speak TLS{'' if plain else f' as it should ({error.reason})'}; "
            "a SuperLink needs --ssl-certfile, and a proxy needs 'listen … ssl'"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if proxy:
            raise DeploymentError(
                f"{superlink} cannot be reached through the proxy {proxy} ({reason}); let the "
                f"proxy allow CONNECT to this address, check the credentials in {VARIABLE}, or "
                "name the host in NO_PROXY"
            ) from None
        raise DeploymentError(
            f"{superlink} does not answer ({reason}); check address, port and firewall"
        ) from None
    finally:
        connection.close()
    if reply.status >= 400:
        raise DeploymentError(
            f"{superlink} answers {reply.status} to /health: it is not a SuperLink, or it is a "
            "proxy that does not reach the SuperLink"
        )
    _compare_clocks(reply.headers.get("Date", ""))
    through = f" through the proxy {proxy}" if proxy else ""
    typer.echo(f"{superlink} answers{through}; its certificate is valid until {end:%Y-%m-%d}")
    if (left := (end - datetime.now(UTC)).days) < WARN_DAYS:
        typer.echo(f"warning: the certificate ends in {left} days; the coordinator should renew it")


def _end_of(sock: object) -> datetime:
    """Return when the certificate of the other side ends."""
    certificate = sock.getpeercert() if isinstance(sock, ssl.SSLSocket) else None
    end = str((certificate or {}).get("notAfter", ""))
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(end), UTC)


def _certificate_problem(error: ssl.SSLCertVerificationError, superlink: str, host: str) -> str:
    now = f"by this machine's clock, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if error.verify_code == _EXPIRED:
        return f"the certificate of {superlink} has expired {now}; the coordinator must renew it"
    if error.verify_code == _NOT_YET:
        return f"the certificate of {superlink} is not valid yet {now}; set the clock"
    if error.verify_code in _NAMES:
        return (
            f"the certificate of {superlink} does not name '{host}'; use a name that the "
            f"certificate has, or let the coordinator make it again: hdpfl certs DIR --host {host}"
        )
    return (
        f"the certificate of {superlink} is not signed by this CA; get ca.crt from the "
        "coordinator again, and compare its fingerprint by another way"
    )


def _compare_clocks(date: str) -> None:
    try:
        theirs = parsedate_to_datetime(date)
    except ValueError:
        return
    ahead = (datetime.now(UTC) - theirs).total_seconds()
    if not -BEHIND_SECONDS < ahead < AHEAD_SECONDS:
        raise DeploymentError(
            f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} "
            "the coordinator's: the SuperLink will refuse this node; set both clocks by NTP"
        )
