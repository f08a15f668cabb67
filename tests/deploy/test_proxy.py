"""``deploy/proxy/nginx.conf``: sites see the fleet API and the health of a SuperLink, no more."""

from __future__ import annotations

import http.client
import http.server
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hdpfl_tools.coordinator.certificates import make_authority

CONFIG = (Path(__file__).parents[2] / "deploy" / "proxy" / "nginx.conf").read_text()
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")


@dataclass
class Proxy:
    """An nginx before a server that answers everything, and notes for what it was asked."""

    port: int
    ca: Path
    asked: list[str] = field(default_factory=list)

    def get(self, path: str, *, tls: bool = True) -> int:
        """Return the status of a request whose path is sent as it is written."""
        connection: http.client.HTTPConnection
        if tls:
            context = ssl.create_default_context(cafile=str(self.ca))
            connection = http.client.HTTPSConnection(
                "localhost", self.port, timeout=10, context=context
            )
        else:
            connection = http.client.HTTPConnection("localhost", self.port, timeout=10)
        try:
            connection.request("POST", path, b"{}")
            return connection.getresponse().status
        finally:
            connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    if NGINX is None:
        pytest.skip("nginx is not installed: the proxy's configuration is not tried")
    folder = tmp_path_factory.mktemp("proxy")
    made = make_authority(["localhost", "127.0.0.1"])
    for name, content in (
        ("ca.crt", made.ca.public), ("server.crt", made.server.public),
        ("server.key", made.server.private),
    ):  # fmt: skip
        (folder / name).write_bytes(content)
    found = Proxy(free_port(), folder / "ca.crt")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    backend = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    backend.socket = context.wrap_socket(backend.socket, server_side=True)
    threading.Thread(target=backend.serve_forever, daemon=True).start()
    site = CONFIG
    for old, new in (
        ("listen 8000", f"listen 127.0.0.1:{found.port}"),
        ("127.0.0.1:8443", f"127.0.0.1:{backend.server_address[1]}"),
        ("/etc/hdpfl", str(folder)),
    ):
        assert old in site
        site = site.replace(old, new)
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/log;\n"
        f"events {{}}\nhttp {{ access_log off;\n{temporary}{site}}}\n"
    )
    log = (folder / "said").open("wb")
    nginx = subprocess.Popen(
        [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")], stdout=log, stderr=log
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", found.port), 1).close()
                break
            except OSError:
                assert nginx.poll() is None, (folder / "said").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield found
    finally:
        nginx.terminate()
        nginx.wait(20)
        log.close()
        backend.shutdown()


@pytest.mark.parametrize("path", ["/health", "/v1/fleet/pull-messages", "/v1/fleet/register-node"])
def test_sites_reach_the_fleet_api_and_the_health(proxy: Proxy, path: str) -> None:
    assert proxy.get(path) == 200
    assert proxy.asked[-1] == path


@pytest.mark.parametrize(
    "path",
    [
        "/", "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/openapi.json",
        "/v1/fleet", "/health/x", "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet/x/../../control/start-run", "//v1/control/start-run", "/V1/fleet/x",
    ],
)  # fmt: skip
def test_nothing_else_is_passed_on(proxy: Proxy, path: str) -> None:
    before = len(proxy.asked)
    assert proxy.get(path) in (301, 400, 404)
    assert len(proxy.asked) == before


def test_a_path_is_passed_on_as_it_was_judged(proxy: Proxy) -> None:
    """Nobody behind the proxy gets to read a path in another way."""
    assert proxy.get("/v1/control/../fleet/pull-messages") == 200
    assert proxy.asked[-1] == "/v1/fleet/pull-messages"


def test_plain_http_is_refused(proxy: Proxy) -> None:
    before = len(proxy.asked)
    assert proxy.get("/health", tls=False) == 400
    assert len(proxy.asked) == before
