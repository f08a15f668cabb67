"""Export of readings to Prometheus, by HTTP or file, as text or as OpenMetrics with times.

Shared by the exporters of both command lines, which supply the readings.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from hdpfl_flower.errors import DeploymentError
from hdpfl_flower.monitoring.series import Place, Reading, Series, series_at
from hdpfl_flower.system.extras import extra
from hdpfl_flower.system.files import replace_file

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import CollectorRegistry, Metric

Read = Callable[[], Iterable[Reading]]


class Exporter:
    """Prometheus collector that reads its values at every scrape.

    Guarantees:
        Exports only series of its own place, for any result of ``read``. Calls ``read`` in one
        thread at a time.
    """

    def __init__(self, place: Place, read: Read) -> None:
        """Show the readings of ``read`` in the series of ``place``.

        Raises:
            InstallationError: prometheus-client is not installed.
        """
        with extra("metrics", "an exporter"):
            import prometheus_client  # noqa: F401
        self._mine, self._read, self._lock = frozenset(series_at(place)), read, Lock()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics in prometheus-client's form."""
        with self._lock:
            readings = [reading for reading in self._read() if reading.series in self._mine]
        yield from families(readings)

    def registry(self) -> CollectorRegistry:
        """Return a registry of this collector only, without process and platform."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def text(self) -> bytes:
        """Return the current values in Prometheus' text format."""
        from prometheus_client import generate_latest

        return bytes(generate_latest(self.registry()))

    def openmetrics(self) -> bytes:
        """Return the values in OpenMetrics, with times if known."""
        from prometheus_client.openmetrics.exposition import generate_latest

        return bytes(generate_latest(self.registry()))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Address:
    """Address of an exporter.

    Attributes:
        host: address to listen at.
        port: TCP port.
        certificate: PEM file, for TLS; needs the next two.
        key: its private key.
        clients: PEM file of the authority of the clients' certificates.
        names: further names of this machine that requests may use.
        token: required from each request; empty: none.
    """

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    clients: Path | None = None
    names: tuple[str, ...] = ()
    token: str = field(default="", repr=False)

    @property
    def mutual(self) -> bool:
        """Whether a client certificate is required; raises without its files.

        Raises:
            DeploymentError: one of the three files is named, but not all of them exist.
        """
        files = (self.certificate, self.key, self.clients)
        if not any(files):
            return False
        for option, path in zip(("--certificate", "--key", "--clients"), files, strict=True):
            if path is None or not path.is_file():
                raise DeploymentError(
                    f"TLS needs all of its files, but '{option}' names none; add it"
                )
        return True

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return _is_loopback(self.host)

    def is_asked_as(self, host: str) -> bool:
        """Return whether a Host header names this address.

        A web page can make its own name resolve to this machine (DNS rebinding), and sends
        that name. An IP address is not a name: it counts if other machines may ask at all.
        """
        match = re.fullmatch(r"\[?([^][@/]+?)\]?(:[0-9]+)?", host)
        name = match[1].lower() if match else ""
        if name in {self.host.lower(), *map(str.lower, self.names)}:
            return True
        return _is_loopback(name) or (not self.local and _is_ip(name))


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_ip(host) and ipaddress.ip_address(host).is_loopback)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


LONGEST = 200
"""Maximum characters of a label's value."""


def _shown(label: str) -> str:
    return label[:LONGEST].encode(errors="backslashreplace").decode()


def families(readings: Iterable[Reading]) -> Iterator[Metric]:
    """Yield ``readings`` in Prometheus' form, grouped by series.

    Labels are cut to :data:`LONGEST` characters, and lone surrogates are spelled out, which a
    ledger or a folder's name may hold and UTF-8 cannot. Among labels shown alike, the last counts.
    """
    from prometheus_client import Metric

    by_series: dict[Series, dict[tuple[str, ...], list[Reading]]] = {}
    for reading in readings:
        by_series.setdefault(reading.series, {}).setdefault(reading.labels, []).append(reading)
    for series, by_labels in by_series.items():
        info = series.unit == "info"
        # In OpenMetrics a family's name lacks the suffix of its samples.
        family = series.name.removesuffix("_info" if info else "_total")
        kind = "info" if info else "counter" if series.counter else "gauge"
        metric = Metric(family, series.meaning, kind, "" if info else series.unit)
        shown = {tuple(map(_shown, labels)): values for labels, values in by_labels.items()}
        for labels, values in shown.items():
            named = dict(zip(series.labels, labels, strict=True))
            for reading in values:
                metric.add_sample(series.name, named, reading.value, reading.at)
        yield metric


def serve(exposition: Exporter, address: Address) -> tuple[Callable[[], None], str]:
    """Serve ``http(s)://<host>:<port>/metrics`` in a thread; return its stop and its address.

    Raises:
        DeploymentError: the address cannot be bound, or a TLS file is missing or wrong.
    """
    from prometheus_client import make_wsgi_app
    from prometheus_client.exposition import ThreadingWSGIServer

    try:
        family, *_, resolved = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        kind = type("Server", (ThreadingWSGIServer,), {"address_family": family})
        app = _guarded(make_wsgi_app(exposition.registry()), address)
        tls = _tls(address)
        server: WSGIServer = make_server(str(resolved[0]), address.port, app, kind, _SilentHandler)
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
    except OSError as error:
        where = f"{address.host}:{address.port}"
        raise DeploymentError(
            f"exporter: cannot listen at {where}: {error.strerror}; name another '--port', or "
            "correct the TLS files"
        ) from None
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop, f"{address.host}:{server.server_port}"


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log no request."""


def _guarded(app: WSGIApplication, address: Address) -> WSGIApplication:
    """Return ``app`` behind checks of the Host header and token."""
    wanted = f"Bearer {address.token}".encode()

    def guarded(request: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if not address.is_asked_as(request.get("HTTP_HOST", "")):
            start("403 Forbidden", [])
            return [b"the Host header names another machine; add its name with --name\n"]
        borne = request.get("HTTP_AUTHORIZATION", "").encode()
        if address.token and not hmac.compare_digest(borne, wanted):
            start("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
            return [b"the token is missing or wrong\n"]
        return app(request, start)

    return guarded


def _tls(address: Address) -> ssl.SSLContext | None:
    if not address.mutual:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=address.clients)
    context.load_cert_chain(str(address.certificate), address.key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def serve_until_ended(
    exposition: Exporter, address: Address, report_url: Callable[[str], object]
) -> None:
    """Serve until SIGTERM or Ctrl-C; pass the URL to ``report_url``.

    Raises:
        DeploymentError: see :func:`serve`.
    """
    ended = Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    stop, authority = serve(exposition, address)
    try:
        report_url(f"{'https' if address.mutual else 'http'}://{authority}/metrics")
        ended.wait()
    finally:
        stop()


def write_textfile(exposition: Exporter, path: Path, *, mode: int) -> None:
    """Write the values atomically for node_exporter's textfile collector.

    ``prometheus_client.write_to_textfile`` cannot set the file's permissions: it follows the umask,
    and a site's file is only for its owner and group.

    Raises:
        DeploymentError: its name does not end in ``.prom``, or it cannot be written.
    """
    if path.suffix != ".prom":
        raise DeploymentError("'--textfile' must end in .prom: node_exporter reads no other file")
    try:
        replace_file(path, exposition.text(), mode=mode)
    except OSError as error:
        raise DeploymentError(f"{path} cannot be written: {error.strerror}") from None


def keep_writing(exposition: Exporter, path: Path, every: float, *, mode: int) -> None:
    """Write ``path`` every ``every`` seconds for ever; 0: once."""
    write_textfile(exposition, path, mode=mode)
    while every:
        time.sleep(every)
        write_textfile(exposition, path, mode=mode)
