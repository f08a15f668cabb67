"""``hdpfl-site health``: one clear line for each thing that can be wrong with a connection."""

from __future__ import annotations

import http.server
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from time import monotonic, time
from typing import Any

import pytest

from hdpfl_flower.system.patient import Ear
from hdpfl_flower.system.task_programs import path_fault, task_programs
from hdpfl_tools.coordinator import certificates
from tests.hdpfl_tools.site.commands.conftest import Result, SiteFolder

Serve = Callable[..., int]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start an https server with a certificate of the CA in ``ca.crt``; return its port."""
    running: list[http.server.HTTPServer] = []

    def start(
        hosts: tuple[str, ...] = ("localhost",), *, status: int = 200, off: float = 0.0,
        tls: bool = True, ca: bool = True,
    ) -> int:  # fmt: skip
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()

            def date_time_string(self, timestamp: int | float | None = None) -> str:
                return formatdate(time() + off, usegmt=True)

            def log_message(self, *_: object) -> None: ...

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        made = certificates.make_authority(list(hosts))
        for name, content in (("crt", made.server.public), ("key", made.server.private)):
            (tmp_path / f"server.{name}").write_bytes(content)
        if ca:
            (tmp_path / "ca.crt").write_bytes(made.ca.public)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        running.append(server)
        return int(server.server_address[1])

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture
def connect(site: SiteFolder, tmp_path: Path) -> Callable[[int], Result]:
    return lambda port: site.bare(
        "health", f"localhost:{port}", "--root-certificates", tmp_path / "ca.crt"
    )


def test_the_right_coordinator_is_told_with_the_end_of_its_certificate(
    serve: Serve, connect: Callable[[int], Result]
) -> None:
    done = connect(serve())
    assert done.code == 0, done.err
    assert "answers; its certificate is valid until 20" in done.out
    assert "warning" not in done.out


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"hosts": ("other.example", "127.0.0.1")}, "does not name 'localhost'; use a name"),
        ({"ca": False}, "is not signed by this CA; get ca.crt"),
        ({"tls": False}, "does not speak TLS; a SuperLink needs"),
    ],
)
def test_a_wrong_coordinator_is_named_with_the_remedy(
    serve: Serve, connect: Callable[[int], Result], fault: dict[str, Any], words: str
) -> None:
    assert connect(serve()).code == 0
    assert words in connect(serve(**fault)).error()


class Tunnel(socketserver.StreamRequestHandler):
    """A forward proxy: CONNECT for one user, to any port of this machine."""

    def handle(self) -> None:
        line = self.rfile.readline().decode()
        headers = list(iter(lambda: self.rfile.readline().strip(), b""))
        if b"Proxy-Authorization: Basic c2l0ZTpwNHNz" not in headers:
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        port = int(line.split()[1].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as there:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self.server.tunnels.append(port)  # type: ignore[attr-defined]
            ways = {self.connection: there, there: self.connection}
            while True:
                for ready in select.select(list(ways), [], [], 20)[0]:
                    if not (data := ready.recv(65536)):
                        return
                    ways[ready].sendall(data)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[socketserver.ThreadingTCPServer]:
    for name in ("NO_PROXY", "no_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tunnel)
    server.tunnels = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_coordinator_behind_a_proxy_is_reached_with_its_credentials(
    serve: Serve, connect: Callable[[int], Result], proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, port = f"127.0.0.1:{proxy.server_address[1]}", serve()
    monkeypatch.setenv("HTTPS_PROXY", f"http://site:p4ss@{where}")
    done = connect(port)
    assert done.code == 0, done.err
    assert f"answers through the proxy {where}; its certificate is valid until 20" in done.out
    assert proxy.tunnels == [port]
    monkeypatch.setenv("NO_PROXY", "localhost")
    assert "through" not in connect(port).out
    assert proxy.tunnels == [port]


def test_a_proxy_that_refuses_is_named_with_the_remedy_and_without_the_password(
    serve: Serve, connect: Callable[[int], Result], proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"127.0.0.1:{proxy.server_address[1]}"
    monkeypatch.setenv("HTTPS_PROXY", f"http://site:WR0NG@{where}")
    done = connect(serve())
    assert done.code == 1
    assert f"cannot be reached through the proxy {where} (Tunnel connection failed: 407" in done.err
    assert "check the credentials in HTTPS_PROXY" in done.err
    assert "WR0NG" not in done.err and not proxy.tunnels


def test_the_node_is_well_while_it_hears_and_says_since_when_it_does_not(
    site: SiteFolder, tmp_path: Path
) -> None:
    note = tmp_path / "flwr" / "heard"
    ask = ("health", "--flwr-home", note.parent)
    said = site.bare(*ask).error()
    assert f"the node has heard nothing so far from its SuperLink ({note})" in said
    Ear(note).note()
    said = site.bare(*ask)
    assert said.code == 0
    assert "it runs any app that its coordinator sends" in said.out
    note.write_text(f"{monotonic() - 91}\n{monotonic()}\n\n")
    assert "nothing for 91 s" in site.bare(*ask).error()
    note.write_text(f"{monotonic()}\n{monotonic() - 92}\n\n")
    assert "flower-superexec has not asked the node for a task for 92 s" in site.bare(*ask).error()


def test_a_path_that_pins_some_programs_is_named_with_the_remedy(
    site: SiteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    approved, environment = tmp_path / "approved" / "bin", tmp_path / "venv" / "bin"
    for folder in (approved, environment, approved.parent / "apps"):
        folder.mkdir(parents=True)
    for folder, programs in ((approved, {"flwr-clientapp"}), (environment, task_programs())):
        for program in programs:
            (folder / program).touch(0o755)
    note = tmp_path / "flwr" / "heard"
    ask = ("health", "--flwr-home", note.parent)
    for path, fault in (
        (f"{environment}", ""),
        (f"{approved}", f"{approved} has no flwr-agentapp; run again: hdpfl-site approve"),
        (f"{approved}:{environment}", f"flwr-agentapp would start from {environment}/flwr-"),
        (f"{environment}:{approved}", f"is not approved; set PATH={approved}, with no other"),
    ):
        assert bool(path_fault(path)) == bool(fault)
        monkeypatch.setenv("PATH", path)
        Ear(note).note()
        said = site.bare(*ask)
        assert fault in said.err
        assert said.code == (1 if fault else 0)
    for program in task_programs() - {"flwr-clientapp"}:
        (approved / program).symlink_to("flwr-clientapp")
    monkeypatch.setenv("PATH", f"{approved}:{environment}")
    Ear(note).note()
    assert f"it runs only approved apps, by {approved}" in site.bare(*ask).out
