"""Two invited hospitals from their invitations to their reports, by the commands of the pages.

The units of the coordinator and those that ``hdpfl-site join`` writes start what they say.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.engines import BIN, ROOT, app_alone, free_ports, processes
from tests.hdpfl_tools.site.commands.conftest import SCHEMA

pytestmark = [pytest.mark.engines]

HOSPITALS = ("hospital-a", "hospital-b")
RUN = """
run-id = "invited-1"
schema = "schema.toml"
dataset = "site"
purpose = "Risk of readmission"
coordinator = "Dr. Ada"
evaluation = "none"
min-sites = 2
rounds = 2
"""


@dataclass(frozen=True)
class Machine:
    """Commands and services of the coordinator and of two hospitals, on loopback.

    Attributes:
        folder: in which all of them work.
        port: of the SuperLink; the hospitals' nodes have the next ones.
    """

    folder: Path
    port: int

    def __call__(self, line: str, given: str = "") -> str:
        """Return the output of a command line, typed as it stands."""
        own = {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200",
            "FLWR_HOME": str(self.folder / "flwr"), "HDPFL_HOME": str(self.folder),
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        }  # fmt: skip
        done = subprocess.run(
            shlex.split(line), cwd=self.folder, env={**os.environ, **own}, input=given,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    def start(self, unit: Path, **replaced: str) -> None:
        """Start a unit as systemd does, after its checks; another text stands for each path."""
        text = unit.read_text().replace("\\\n", " ")
        for old, new in replaced.items():
            text = text.replace(PLACES[old], new)
        env = dict(
            word.partition("=")[::2]
            for line in re.findall(r"^Environment=(.*)$", text, re.M)
            for word in shlex.split(line)
        )
        env |= {"HOME": str(self.folder)}
        for line in re.findall(r"^ExecStartPre=(.*)$", text, re.M):
            subprocess.run(shlex.split(line), env=env, check=True, capture_output=True, timeout=60)
        (command,) = re.findall(r"^ExecStart=(.*)$", text, re.M)
        log = self.folder / f"{unit.stem}.log"
        processes.start(unit.stem, shlex.split(command), self.folder / "pids", log, env)

    def coordinate(self) -> None:
        """Start the SuperLink and its tasks by the coordinator's units."""
        own = {
            "programs": str(BIN), "port": str(self.port), "keys": str(self.folder / "certs"),
            "credentials": str(self.folder / "certs"), "state": str(self.folder / "superlink"),
        }  # fmt: skip
        for name in ("hdpfl-superlink", "hdpfl-superlink-tasks"):
            self.start(ROOT / "deploy" / "systemd" / f"{name}.service", **own)
            until(self._answers, self.logs)

    def _answers(self) -> bool:
        at = f"localhost:{self.port} --root-certificates certs/ca.crt"
        try:
            return "answers" in self(f"hdpfl-site health {at}")
        except AssertionError:
            return False

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in self.folder.glob("*.log"))


PLACES = {"programs": "/srv/hdpfl/venv/bin", "port": "8443", "keys": "/etc/hdpfl",
          "credentials": "%d", "state": "/var/lib/hdpfl"}  # fmt: skip
"""Of the coordinator's units."""


def until(done: Callable[[], bool], otherwise: Callable[[], str], seconds: float = 120) -> None:
    """Wait until ``done()``."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, otherwise()
        time.sleep(1)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine whose processes end with the test."""
    for name in ("pids", "flwr", "superlink-node"):
        (tmp_path / name).mkdir(mode=0o700)
    machine = Machine(tmp_path, free_ports(3))
    try:
        yield machine
    finally:
        pids = tmp_path / "pids"
        processes.stop(processes.names(pids), pids)


@pytest.fixture
def app() -> Iterator[str]:
    """The app's folder, the same for its build and its run."""
    with app_alone(ROOT) as folder:
        yield folder


def test_invited_hospitals_go_from_their_invitations_to_a_report(
    machine: Machine, app: str
) -> None:
    folder, address = machine.folder, f"localhost:{machine.port}"
    machine("hdpfl certs certs --host localhost")
    (folder / "certs" / "superexec.secret").write_bytes(os.urandom(32))
    (folder / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "hdpfl"\n[superlink.hdpfl]\naddress = "{address}"\n'
        f'root-certificates = "{folder}/certs/ca.crt"\n'
    )
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "run.toml").write_text(RUN)
    machine(f"flwr build --app {app}")
    (fab,) = folder.glob("*.fab")
    machine.coordinate()
    typed: dict[str, list[str]] = {name: [] for name in HOSPITALS}
    for number, name in enumerate(HOSPITALS):
        said = machine(f"hdpfl invite {name} --address {address} --app {fab.name} --terms run.toml")
        heard = said.rpartition("telephone: ")[2].strip()
        rows = "".join(f"{(i + number) % 2},{i % 10},x\n" for i in range(80))
        (folder / f"{name}.csv").write_text(f"y,a,c\n{rows}")

        def at_site(line: str, given: str = "", name: str = name) -> str:
            typed[name].append(line)
            return machine(line, given)

        said = at_site(
            f"hdpfl-site join {name}.invitation --data {name}.csv --records 60 --epsilon 2 "
            f"--cap 8 --fingerprint '{heard}' --port {machine.port + 1 + number}"
        )
        assert f"{address} answers" in said
        machine(f"flwr supernode register {name}/node.key.pub hdpfl --name {name}")
        follow(said, at_site, machine)
    machine(f"hdpfl check run.toml --app {app} --to sent.toml")
    started = machine(f"flwr run {app} hdpfl --run-config sent.toml --format json")
    run_id = json.loads(started)["run-id"]
    for name in HOSPITALS:
        at = f"--profile {name}/profile.toml"
        asks = f"hdpfl-site requests {at}"
        until(lambda asks=asks: "Risk of readmission" in machine(asks), machine.logs)
        typed[name] += [asks, f"hdpfl-site approve 1 --yes {at}"]
        machine(typed[name][-1])
    status = f"flwr list hdpfl --run-id {run_id} --format json"
    until(
        lambda: json.loads(machine(status))["runs"][0]["status"].startswith("finished"),
        machine.logs,
    )
    assert json.loads(machine(status))["runs"][0]["status"] == "finished:completed", machine.logs()
    for name in HOSPITALS:
        typed[name].append(
            f"hdpfl-site report --html --out {name}.html --profile {name}/profile.toml"
        )
        machine(typed[name][-1])
        page = (folder / f"{name}.html").read_text()
        assert all(text in page for text in (name, "invited-1", "Risk of readmission"))
        assert len(typed[name]) <= 9, typed[name]


def follow(said: str, at_site: Callable[[str, str], str], machine: Machine) -> None:
    """Do the next steps that ``join`` printed."""
    steps = [line.partition(". ")[2] for line in said.splitlines() if re.match(r"\d\. ", line)]
    assert len(steps) == 5, said
    for step in steps:
        line = step.rpartition("then: ")[2]
        if line.startswith("hdpfl-site"):
            at_site(line, "y\n")  # whether the app may read this site's records
        for unit in shlex.split(line)[4:] if line.startswith("systemctl --user enable") else ():
            if "exporter" not in unit:
                machine.start(Path(unit))
