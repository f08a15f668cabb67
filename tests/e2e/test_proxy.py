"""A site that reaches the coordinator through a forward proxy with credentials."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.engines import (
    BIN,
    SITES,
    Federation,
    free_ports,
    rounds_of,
    seeded_terms,
    write_seeded_site,
)
from tests.e2e.test_deployed import make_key, start_node, stop_node

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("tinyproxy") is None, reason="tinyproxy is not installed"),
]


@dataclass(frozen=True)
class Tinyproxy:
    """Debian's proxy: CONNECT to one port alone, for one user."""

    port: int
    log: Path

    def environment(self, password: str = "p4ss") -> dict[str, str]:
        url = f"http://site:{password}@127.0.0.1:{self.port}"
        # The SuperNode's own processes speak to one another at 127.0.0.1.
        own = "127.0.0.1"
        return {"HTTPS_PROXY": url, "https_proxy": url, "NO_PROXY": own, "no_proxy": own}

    @property
    def tunnels(self) -> int:
        return self.log.read_text().count("Established connection to host")


@pytest.fixture
def proxy(federation: Federation, tmp_path: Path) -> Iterator[Tinyproxy]:
    made = Tinyproxy(free_ports(1), tmp_path / "proxy.log")
    made.log.touch()
    (tmp_path / "proxy.conf").write_text(
        f'Port {made.port}\nListen 127.0.0.1\nTimeout 60\nMaxClients 50\nLogFile "{made.log}"\n'
        f"LogLevel Connect\nBasicAuth site p4ss\nConnectPort {federation.port}\n"
    )
    running = subprocess.Popen(["tinyproxy", "-d", "-c", str(tmp_path / "proxy.conf")])
    try:
        yield made
    finally:
        running.terminate()
        running.wait(20)


def test_a_site_takes_part_through_a_forward_proxy(
    federation: Federation, proxy: Tinyproxy, tmp_path: Path
) -> None:
    """Beside four sites without one; the proxy allows the SuperLink's port, and no other."""
    folder = tmp_path / "site"
    terms = seeded_terms(rounds=1, **{"run-id": "proxied", "min-sites": SITES + 1})
    drawn = seeded_terms(epsilons="2", **{"batch-sizes": "16"})
    write_seeded_site(folder, drawn, SITES, SITES + 1)
    (folder / "profile.toml").chmod(0o600)
    config = f"profile = {json.dumps(str(folder / 'profile.toml'))}\n"
    config += (folder / "node.toml").read_text()
    key = make_key(federation, "proxied")
    words = [f"{key}.pub", "hdpfl", "--name", "proxied", "--format", "json"]
    assert '"success": true' in federation.flwr("supernode", "register", *words).stdout
    node = start_node(federation, key, config, folder, 1, "localhost", **proxy.environment())
    try:
        run, done = federation.run(terms)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        stop_node(node)
    (event,) = rounds_of(run)
    assert len(event["accepted"]) == SITES + 1, (folder / "log").read_text()[-3000:]
    assert proxy.tunnels >= 1


def test_connect_names_a_refusing_proxy(federation: Federation, proxy: Tinyproxy) -> None:
    done = connect(federation, proxy.environment())
    assert done.returncode == 0, done.stderr
    assert f"answers through the proxy 127.0.0.1:{proxy.port}" in done.stdout
    done = connect(federation, proxy.environment(password="wr0ng"))
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert f"through the proxy 127.0.0.1:{proxy.port} (Tunnel connection failed: 40" in line
    assert "wr0ng" not in line


def connect(federation: Federation, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, str(BIN / "hdpfl-site"), "health", f"localhost:{federation.port}",
        "--root-certificates", str(federation.folder / "certs" / "ca.crt"),
    ]  # fmt: skip
    environment = {**os.environ, **more}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
