"""The two doors for any Flower app: the examples of ``docs/how-to/library.md``, on both engines."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from hdpfl_flower import Ledger
from tests.e2e.engines import BIN, ROOT, Done, Ray, flwr, free_ports, processes

pytestmark = [pytest.mark.engines]

CLIENTS, ROUNDS, EPSILON = 3, 3, 1.0
PYPROJECT = """
[project]
name = "any-app"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr", "hdpfl-flower"]

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "anyapp.server_app:app"
clientapp = "anyapp.client_app:app"
"""

RAISES = """\
    if str(context.node_config["partition-id"]) == "0":
        raise ValueError("PATIENT-123")
"""
"""Of the first client, whose replies must be as any other's."""


def example(name: str) -> str:
    """Return the example of that title on the page."""
    page = (ROOT / "docs" / "how-to" / "library.md").read_text()
    found = re.search(rf'```python title="{name}"\n(.*?)```', page, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return the folder of an app as ``flwr new`` lays it out, with a ledger for each client."""
    package = tmp_path / "app" / "anyapp"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").write_text("")
    for name in ("client_app.py", "server_app.py"):
        text = example(name)
        assert len([line for line in text.splitlines() if line.strip()]) <= 15
        text = text.replace("/tmp/ledgers", str(tmp_path / "ledgers"))
        text = text.replace("    arrays = message.content", f"{RAISES}    arrays = message.content")
        (package / name).write_text(text.replace("/tmp/model.npy", str(tmp_path / "model.npy")))
    for client in range(CLIENTS):
        path = tmp_path / "ledgers" / f"{client}.sqlite"
        path.parent.mkdir(exist_ok=True)
        # One run and a half: the second run of a client is declined.
        Ledger.create(path, 1.5 * EPSILON, 1e-4).close()
    return package.parent


def check(tmp_path: Path, first: Done) -> None:
    """Check a run of the app, after which no client has the budget for another."""
    assert "'loss'" not in first.stdout
    assert "PATIENT-123" not in first.stdout
    assert "weights: {" in first.stdout, first.stdout + first.stderr
    model = np.load(tmp_path / "model.npy")
    # Noise far above the signal, of the same level everywhere: σ = z·2 over the mean of three.
    assert 1 < model.std() < 100
    for client in range(CLIENTS):
        account = Ledger(tmp_path / "ledgers" / f"{client}.sqlite").account()
        assert account.spent() == (EPSILON, 1e-5)
        assert [release.status for release in account.releases.values()] == ["sent"] * ROUNDS


def test_under_ray(app: Path, ray: Ray, tmp_path: Path) -> None:
    size = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
    words = ["run", str(app), "--stream", "--federation-config", size]
    check(tmp_path, flwr(ray.home, ray._port, *words))


@pytest.fixture
def supernodes(tmp_path: Path) -> Iterator[Path]:
    """A SuperLink and a SuperNode a client; yields Flower's home with the connection ``any``."""
    home, port = tmp_path / "flwr", free_ports(CLIENTS + 1)
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "any"\n\n[superlink.any]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    environment = {
        "FLWR_HOME": str(home), "PATH": f"{BIN}:/usr/bin:/bin", "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }  # fmt: skip
    folder = tmp_path / "processes"
    folder.mkdir()
    commands = {
        "link": [f"{BIN}/flower-superlink", "--insecure", "--host", "127.0.0.1",
                 "--port", str(port), "--disable-runtime-dependency-installation"],
        **{
            f"node{i}": [
                f"{BIN}/flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}",
                "--host", "127.0.0.1", "--port", str(port + 1 + i),
                "--node-config", f"partition-id={i} num-partitions={CLIENTS}",
            ]
            for i in range(CLIENTS)
        },
    }  # fmt: skip
    try:
        for name, command in commands.items():
            processes.start(name, command, folder, folder / f"{name}.log", environment)
        wait_for(port)
        yield home
    finally:
        processes.stop(commands, folder)


def wait_for(port: int) -> None:
    """Wait until the SuperLink answers."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail("the SuperLink did not start within two minutes")


def test_on_supernodes(app: Path, supernodes: Path, tmp_path: Path) -> None:
    first, again = (flwr(supernodes, {}, "run", str(app), "any", "--stream") for _ in range(2))
    check(tmp_path, first)
    assert f"0 results and {CLIENTS} failures" in again.stdout
