"""The doors for any Flower app: the examples of ``docs/how-to/library.md``, on both engines."""

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


def test_the_example_gains_by_its_two_lines(ray: Ray) -> None:
    """Eight clients of ε .3 to 8: accuracy .56 ± .07 and .79 ± .03 in five runs of each."""
    size = "num-supernodes=8 client-resources-num-cpus=1"
    accuracy = {}
    for weights in ("examples", "noise-aware"):
        keys = f'weights="{weights}"'
        words = ["run", str(ROOT / "examples" / "eight-clients"), "--stream"]
        done = flwr(ray.home, ray._port, *words, "--federation-config", size, "--run-config", keys)
        found = re.search(r"accuracy: (\S+)", done.stdout)
        assert found is not None, done.stdout + done.stderr
        accuracy[weights] = float(found[1])
    ledgers = sorted((ray.home / "eight-clients").glob("*.sqlite"))
    assert len(ledgers) == 8
    for ledger in ledgers:
        account = Ledger(ledger).account()
        assert len(account.plans) == 2
        assert [release.status for release in account.releases.values()] == ["sent"] * 20
    assert accuracy["noise-aware"] > accuracy["examples"] + 0.03


NORMED = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from hdpfl_flower import NoiseAware
from sklearn.datasets import load_digits

app = ClientApp()
server = ServerApp()


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )


def records(partition):
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    return x[partition::4], y[partition::4]


@app.train()
def train(message, context):
    network = model()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = records(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(network.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(RecordDict(content), reply_to=message)


@server.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0)
    if context.run_config["aware"]:
        strategy = NoiseAware(strategy)
    arrays = ArrayRecord(model().state_dict())
    result = strategy.start(grid, arrays, num_rounds=5)
    network = model()
    network.load_state_dict(result.arrays.to_torch_state_dict())
    x, y = records(3)
    print("accuracy:", float((network.eval()(x).argmax(1) == y).float().mean()))
"""
"""An app of four clients whose model has BatchNorm, as Flower's templates write it."""


def test_an_app_with_batch_norm_learns_under_both(ray: Ray, tmp_path: Path) -> None:
    package = tmp_path / "normed" / "anyapp"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(
        PYPROJECT.replace("server_app:app", "app:server").replace("client_app:app", "app:app")
        + "\n[tool.flwr.app.config]\naware = false\n"
    )
    (package / "__init__.py").write_text("")
    (package / "app.py").write_text(NORMED)
    accuracy = []
    for aware in ("false", "true"):
        words = ["run", str(package.parent), "--stream", "--run-config", f"aware={aware}"]
        size = "num-supernodes=3 client-resources-num-cpus=1"
        done = flwr(ray.home, ray._port, *words, "--federation-config", size)
        found = re.search(r"accuracy: (\S+)", done.stdout)
        assert found is not None, done.stdout + done.stderr
        accuracy.append(float(found[1]))
    assert min(accuracy) > 0.85
    assert abs(accuracy[0] - accuracy[1]) < 0.05


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
