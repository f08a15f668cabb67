"""Export of readings to Prometheus: as text, as OpenMetrics with times, over HTTP, as a file.

Shared by the exporters of both command lines, which supply the readings.
"""

from __future__ import annotations

import ipaddress
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING

from hdpfl_flower.errors import DeploymentError
from hdpfl_flower.monitoring.series import Place, Reading, Series, series_at
from hdpfl_flower.system.extras import extra
from hdpfl_flower.system.files import replace_file

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

Read = Callable[[], Iterable[Reading]]


class Exporter:
    """Collector of prometheus-client that reads its values at every scrape.

    Guarantees:
        Exports series of its own place alone, whatever ``read`` returns. Calls ``read`` in one
        thread at a time.
    """

    def __init__(self, place: Place, read: Read) -> None:
        """Show what ``read`` returns, of the series of ``place``.

        Raises:
            InstallationError: prometheus-client is not installed.
        """
        with extra("metrics", "an exporter"):
            import prometheus_client  # noqa: F401
        self._mine, self._read, self._lock = frozenset(series_at(place)), read, Lock()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as prometheus-client asks for them."""
        with self._lock:
            found = [reading for reading in self._read() if reading.series in self._mine]
        yield from families(found)

    def registry(self) -> CollectorRegistry:
        """Return a registry of this collector alone, without those of process and platform."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def text(self) -> bytes:
        """Return the current values in Prometheus' text format."""
        from prometheus_client import generate_latest

        return bytes(generate_latest(self.registry()))

    def openmetrics(self) -> bytes:
        """Return the values, with their times if they have some, in OpenMetrics."""
        from prometheus_client.openmetrics.exposition import generate_latest

        return bytes(generate_latest(self.registry()))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Address:
    """Where an exporter answers.

    Attributes:
        host: address to listen at.
        port: TCP port.
        certificate: PEM file, to speak TLS; needs the next two.
        key: its private key.
        clients: PEM file of the authority whose certificates a client must show.
    """

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    clients: Path | None = None

    @property
    def mutual(self) -> bool:
        """Whether nobody without a certificate is answered; raises where files are missing.

        Raises:
            DeploymentError: one of the three files is named, and not all of them are there.
        """
        files = (self.certificate, self.key, self.clients)
        if not any(files):
            return False
        for option, path in zip(("--certificate", "--key", "--clients"), files, strict=True):
            if path is None or not path.is_file():
                raise DeploymentError(f"TLS needs all of its files; '{option}' names none")
        return True

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def families(readings: Iterable[Reading]) -> Iterator[Metric]:
    """Yield ``readings`` as Prometheus has them: a series at a time, its label sets together."""
    from prometheus_client import Metric

    found: dict[Series, dict[tuple[str, ...], list[Reading]]] = {}
    for reading in readings:
        found.setdefault(reading.series, {}).setdefault(reading.labels, []).append(reading)
    for series, by_labels in found.items():
        info = series.unit == "info"
        # In OpenMetrics a family's name lacks the suffix that its samples have.
        family = series.name.removesuffix("_info" if info else "_total")
        kind = "info" if info else "counter" if series.counter else "gauge"
        metric = Metric(family, series.meaning, kind, "" if info else series.unit)
        for labels, values in by_labels.items():
            named = dict(zip(series.labels, labels, strict=True))
            for reading in values:
                metric.add_sample(series.name, named, reading.value, reading.at)
        yield metric


def serve(exposition: Exporter, address: Address) -> tuple[Callable[[], None], str]:
    """Answer ``http(s)://<host>:<port>/metrics`` in a thread; return what stops it, and where.

    Raises:
        DeploymentError: the address cannot be listened at, or a TLS file is missing or wrong.
    """
    from prometheus_client import start_http_server

    mutual = address.mutual
    try:
        server, thread = start_http_server(
            address.port,
            address.host,
            exposition.registry(),
            certfile=str(address.certificate) if mutual else None,
            keyfile=str(address.key) if mutual else None,
            client_cafile=str(address.clients) if mutual else None,
            client_auth_required=mutual,
        )
    except OSError as error:
        where = f"{address.host}:{address.port}"
        raise DeploymentError(
            f"exporter: cannot listen at {where}: {error.strerror}; name another '--port', or "
            "correct the TLS files"
        ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop, f"{address.host}:{server.server_port}"


def serve_until_ended(
    exposition: Exporter, address: Address, report_url: Callable[[str], object]
) -> None:
    """Answer until SIGTERM or Ctrl-C; ``report_url`` receives the URL, once it answers.

    Raises:
        DeploymentError: see :func:`serve`.
    """
    ended = Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    stop, at = serve(exposition, address)
    try:
        report_url(f"{'https' if address.mutual else 'http'}://{at}/metrics")
        ended.wait()
    finally:
        stop()


def write_textfile(exposition: Exporter, path: Path, *, mode: int) -> None:
    """Write the current values to ``path`` for node_exporter's textfile collector, all or nothing.

    ``prometheus_client.write_to_textfile`` cannot set the file's permissions: it follows the umask,
    and a site's file is for its owner and group alone.

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
    """Write ``path`` now, and again each ``every`` seconds for ever; 0: once."""
    write_textfile(exposition, path, mode=mode)
    while every:
        time.sleep(every)
        write_textfile(exposition, path, mode=mode)
