"""Four sites that pin their code, and a coordinator that ships a changed app."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.engines import (
    ROOT,
    SITES,
    Federation,
    command_of,
    processes,
    rounds_of,
    seeded_terms,
    to_toml,
)

pytestmark = [pytest.mark.engines, pytest.mark.wards]


PACKAGES = ("hdpfl_flower", "strategies", "client_app", "server_app")
MARK = (
    "import os, pathlib, sys\n"
    "_ran = 'ran-' + pathlib.Path(sys.argv[0]).name\n"
    "pathlib.Path(os.environ['FLWR_HOME'], _ran).touch(0o600)\n"
)
"""The first lines of every module of the changed app: they leave a file in the node's own home."""


def changed_app(folder: Path) -> Path:
    """Return a copy of the app, same name and version, in which every module leaves a mark."""
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    for path in folder.rglob("*.py"):
        source = path.read_text()
        future = "from __future__ import annotations\n"
        path.write_text(source.replace(future, future + MARK, 1) if future in source else MARK)
    return folder


def test_not_a_line_of_a_changed_app_runs(federation: Federation, tmp_path: Path) -> None:
    """It runs at the coordinator, which ships it, so it would have run at the sites, too."""
    terms = seeded_terms(rounds=1, **{"run-id": "changed"})
    config = tmp_path / "terms.toml"
    config.write_text(to_toml(terms.as_config()))
    app = changed_app(tmp_path / "app")
    words = ["run", str(app), "hdpfl", "--run-config", str(config), "--format", "json"]
    number = str(json.loads(federation.flwr(*words).stdout)["run-id"])
    wait_for_end(federation, number)
    ran = {str(path.relative_to(federation.folder)) for path in federation.folder.rglob("ran-*")}
    assert "superlink/ran-flwr-serverapp" in ran
    assert {path.split("/")[0] for path in ran} == {"superlink"}
    for site in map(str, range(SITES)):
        assert "error: the app of this run is not approved, SHA-256 " in federation.log(site)
        assert not (federation.folder / "sites" / site / "flwr" / "apps").exists()
    (event,) = rounds_of(federation.home / "runs" / "changed")
    assert event["accepted"] == []
    word = "the app was not loaded at the site: it may have approved another app"
    assert event["rejected"] == {str(site): word for site in range(SITES)}


AGENT = """
import json
from flwr.agentapp import AgentApp
app = AgentApp()
@app.main()
def main(agent, context):
    def call(name, **arguments):
        words = {"name": name, "call_id": name, "arguments": json.dumps(arguments)}
        return json.loads(agent.grid.call(words)["output"])
    nodes = call("get_nodes", sample_size=None)["nodes"]
    sent = call("push_messages", messages=[
        {"dst_node_id": node["id"], "payload": "hello", "reply_to_message_id": None}
        for node in nodes
    ])
    ids = [result["message_id"] for result in sent["results"]]
    answers = call("pull_messages", message_ids=ids, timeout=240)
    errors = [answer["error"] for answer in answers["messages"]]
    print("ERRORS", json.dumps(errors), "PENDING", len(answers["pending_message_ids"]))
"""
"""An ordinary app that is not approved, of the type whose program is flwr-agentapp."""
PROJECT = """
[project]
name = "agent"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "test"
[tool.flwr.app.components]
agentapp = "agent.app:app"
[tool.flwr.app.config]
"""
START = """
import hashlib, sys
from pathlib import Path
from flwr.cli.build import build_fab_from_disk
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import init_http_client_from_connection
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
fab = build_fab_from_disk(Path(sys.argv[1]))
request = StartRunRequest(
    fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab), user_prompt="count the nodes"
)
client = init_http_client_from_connection(read_superlink_connection("hdpfl"))
print(client.StartRun(request).run_id)
"""


def test_an_agent_app_silences_no_site(federation: Federation, tmp_path: Path) -> None:
    """The SuperLink's type of a task makes a node start another program than flwr-clientapp."""
    app = tmp_path / "agent"
    (app / "agent").mkdir(parents=True)
    (app / "agent" / "__init__.py").touch()
    (app / "agent" / "app.py").write_text(MARK + AGENT)
    (app / "pyproject.toml").write_text(PROJECT)
    more = {"FLWR_HOME": str(federation.folder / "superlink")}
    started = subprocess.run(
        [sys.executable, "-c", START, str(app)], env={**federation.environment, **more},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    number = started.stdout.split()[-1]
    wait_for_end(federation, number)
    said = federation.flwr("log", number, "hdpfl", "--show").stdout
    (line,) = [line for line in said.splitlines() if "ERRORS" in line and "PENDING" in line]
    loading = "An exception was raised when attempting to load `ClientApp`"
    assert line.partition("ERRORS ")[2] == f"{json.dumps([loading] * SITES)} PENDING 0"
    marks = {str(path.relative_to(federation.folder)) for path in federation.folder.rglob("ran-*")}
    assert not [path for path in marks if not path.startswith("superlink/")]
    for site in map(str, range(SITES)):
        assert "error: a server asked for flwr-agentapp" in federation.log(site)
    _, done = federation.run(seeded_terms(rounds=1, **{"run-id": "honest"}))
    assert done.returncode == 0, done.stderr
    (event,) = rounds_of(federation.home / "runs" / "honest")
    assert len(event["accepted"]) == SITES


def wait_for_end(federation: Federation, number: str) -> None:
    """Wait until the SuperLink says that a run has ended."""
    deadline, listed = time.monotonic() + 300, ["list", "hdpfl", "--run-id", number]
    while True:
        said = json.loads(federation.flwr(*listed, "--format", "json").stdout)["runs"][0]
        if said["status"].startswith("finished"):
            return
        assert time.monotonic() < deadline, said
        time.sleep(0.5)


def test_tasks_are_separate_and_need_the_secret(federation: Federation) -> None:
    """Under Flower's other isolation any user of the machine could take a site's task."""
    for port in range(federation.port + 1, federation.port + 1 + SITES):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request(
            "POST", "/v1/runtime/acquire-task", b"", {"Content-Type": "application/protobuf"}
        )
        assert connection.getresponse().status in (401, 403), port
        connection.close()


def test_no_secret_of_ours_stands_in_a_command_line(federation: Federation) -> None:
    """Flower's task token does, while its task runs: docs/how-to/deploy.md says what that means."""
    files = [*federation.folder.rglob("*.secret"), *federation.folder.rglob("*.key")]
    assert len(files) == 1 + SITES + 2
    words = {path.read_text().strip() for path in files}
    lines = [command_of(pid) for pid in processes.table()]
    mine = [line for line in lines if str(federation.folder) in line]
    assert len(mine) >= 3 * (SITES + 1)
    assert not [word for word in words for line in lines if word in line]
    logs = [path.read_text(errors="replace") for path in (federation.folder / "logs").iterdir()]
    assert not [word for word in words for log in logs if word in log]


def test_what_a_federation_writes_is_for_its_owner_alone(federation: Federation) -> None:
    public = (".crt", ".pub")
    mine = [
        path
        for path in federation.folder.rglob("*")
        if "approved" not in path.parts and path.suffix not in public
    ]
    assert [path for path in mine if not path.is_symlink() and path.stat().st_mode & 0o077] == []


def test_plain_http_is_refused(federation: Federation) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", federation.port, timeout=10)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.request("GET", "/health")
        connection.getresponse()
    connection.close()
