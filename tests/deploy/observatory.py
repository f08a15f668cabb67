"""A federation that is watched: production sites, both exporters, and a real Prometheus."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_tools.coordinator.certificates import make_authority
from hdpfl_tools.simulation.drawn_records import simulated_records
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.simulation.sites import InProcessContext
from server_app.run.rounds import run

ROOT = Path(__file__).parents[2]
BINARIES = ("prometheus", "promtool")
PROFILE = """
approval = "standing"
[budget]
epsilon = {cap}
delta = 1e-4
[run]
epsilon = {epsilon}
delta = 1e-5
[training]
batch-size = {batch}
declared-records = {records}
device = "cpu"
torch-threads = 1
[data]
format = "npz"
path = "records.npz"
[ledger]
path = "ledger.sqlite"
anchor = "ledger.anchor"
"""
EPSILONS, BATCHES = (0.4, 1.0, 2.0, 4.0, 8.0), (16, 32, 16, 32, 32)
WATCHED = 2
"""The site whose own exporter is asked; its cap pays for one run and a sixth."""
FAILING, BROKEN = (4, 1), (6, 0)
"""A round, and a site of that round: its records cannot be read; it sends NaN."""
FEDERATION, CLUSTERED, REFUSED = "federation-1", "clustered-1", "too-long-1"


class Sites(LocalGrid):
    """Deployed sites in this process, each with its own profile, ledger and records."""

    def __init__(self, folders: list[Path]) -> None:
        super().__init__(len(folders))
        for folder, node in zip(folders, self._contexts, strict=True):
            config = {"profile": str(folder / "profile.toml")}
            self._contexts[node] = InProcessContext(1, node, config, RecordDict(), {})

    def reply(self, message: Message, context: Context) -> Message:
        """Return a site's own answer; but one fails in a round, and one sends NaN in another."""
        answer = super().reply(message, context)
        if not answer.has_content() or "update" not in answer.content:
            return answer
        asked = wire.read_instructions(message.content).server_round, context.node_id - 2
        if asked == FAILING:
            return wire.refusal(wire.FAILED, message)
        if asked == BROKEN:
            size = answer.content["update"]["update"].shape
            spoilt = Array(np.full(size, np.nan, np.float32))
            answer.content["update"] = ArrayRecord({"update": spoilt})
        return answer


@dataclass(frozen=True)
class Watched:
    """What is running: where Prometheus answers, and where the runs and sites lie."""

    url: str
    runs: Path
    sites: list[Path]

    def ask(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """Return the samples that Prometheus finds for ``expr`` now, or at a time."""
        words = {"query": expr} | ({} if at is None else {"time": f"{at:.3f}"})
        found: list[dict[str, Any]] = fetch(self.url, "query", **words)["result"]
        return found


def fetch(url: str, what: str, **words: str) -> Any:
    """Return the data of Prometheus' answer."""
    with urllib.request.urlopen(
        f"{url}/api/v1/{what}?{urllib.parse.urlencode(words)}", timeout=30
    ) as reply:
        answer = json.load(reply)
    assert answer["status"] == "success", answer
    return answer["data"]


def missing() -> str:
    """Return which of Prometheus' programs are not there."""
    return " and ".join(name for name in BINARIES if shutil.which(name) is None)


def wait_for(what: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until ``what`` gives something true; an answer that fails counts as none."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            if what():
                return
        time.sleep(0.2)
    raise TimeoutError


@contextlib.contextmanager
def process(*words: object, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program; its standard output is a pipe, its errors go to ``log``."""
    with log.open("w") as errors:
        running = subprocess.Popen(
            [*map(str, words)], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            yield running
        finally:
            running.terminate()
            running.wait(30)


@contextlib.contextmanager
def exporter(main: str, *words: object, log: Path) -> Iterator[str]:
    """Run an exporter at a free port; yields its ``host:port``."""
    code = f"from {main} import main; main()"
    with process(sys.executable, "-c", code, "exporter", "--port", 0, *words, log=log) as running:
        line = running.stdout.readline() if running.stdout else ""
        assert line.startswith("listening at http://"), (line, log.read_text())
        yield line.split("//")[1].split("/")[0]


@contextlib.contextmanager
def prometheus(folder: Path, config: str = "") -> Iterator[str]:
    """Run Prometheus on ``folder``; yields its URL once it answers."""
    folder.mkdir(exist_ok=True)
    (folder / "prometheus.yml").write_text(config)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    words = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with process("prometheus", *words, log=folder / "log"):
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: fetch(url, "query", query="1"))
        yield url


def config_of(coordinator: str, site: str, token: Path) -> str:
    """Return the committed configurations as one, asking these two, every second."""
    jobs = "".join(
        f"  - job_name: {job}\n    static_configs: [{{targets: ['{target}']}}]\n"
        for job, target in (("hdpfl", coordinator), ("hdpfl-site", site))
    )
    jobs += f"    authorization: {{credentials_file: '{token}'}}\n"  # of the last, the site's
    rules = [f"'{ROOT}/docker/prometheus/rules/{name}.yml'" for name in ("coordinator", "site")]
    return (
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{', '.join(rules)}]\nscrape_configs:\n{jobs}"
    )


def terms_of(runs: Path, **more: object) -> RunConfig:
    """Return the terms of the federation of production sites."""
    config: dict[str, object] = {
        "run-id": FEDERATION, "strategy": "robust-hdp", "dataset": "digits", "learning-rate": 0.5,
        "rounds": 8, "runs-dir": str(runs), "min-sites": len(EPSILONS),
    }  # fmt: skip
    return RunConfig.parse({**config, **more})


def make_sites(folder: Path, terms: RunConfig) -> list[Path]:
    """Write the sites: profiles, ledgers, and a share of the digits each."""
    folders = []
    for index, (epsilon, batch) in enumerate(zip(EPSILONS, BATCHES, strict=True)):
        site = folder / str(index)
        site.mkdir(parents=True)
        records = simulated_records(terms, index, len(EPSILONS))[0]
        np.savez(site / "records.npz", x=records.features, y=records.targets)
        cap = epsilon * 7 / 6
        profile = site / "profile.toml"
        profile.write_text(
            PROFILE.format(cap=cap, epsilon=epsilon, batch=batch, records=len(records))
        )
        profile.chmod(0o600)
        Ledger.create(site / "ledger.sqlite", cap, 1e-4, site / "ledger.anchor").close()
        folders.append(site)
    return folders


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """Make sites, watch one of them and the coordinator; nothing has run yet."""
    runs, sites = folder / "runs", make_sites(folder / "sites", terms_of(folder / "runs"))
    runs.mkdir()
    profile, certificate = sites[WATCHED] / "profile.toml", folder / "ca.crt"
    certificate.write_bytes(make_authority(["localhost"]).ca.public)
    look = ["--runs-dir", runs, "--watch", certificate]
    with (
        exporter("hdpfl_tools.coordinator.commands", *look, log=folder / "exporter.log") as ours,
        exporter(
            "hdpfl_tools.site.commands", "--profile", profile, log=folder / "site.log"
        ) as theirs,
        prometheus(
            folder / "prometheus", config_of(ours, theirs, sites[WATCHED] / "ledger.sqlite.token")
        ) as url,
    ):
        watched = Watched(url, runs, sites)
        wait_for(lambda: watched.ask("hdpfl_ledger_intact_bool"))
        yield watched


def run_all(here: Watched, rounds: int, pause: float) -> None:
    """Run a federation, one that finds clusters, a regression, and one that every site declines.

    Args:
        here: what is watched.
        rounds: of the first.
        pause: seconds between its rounds: real ones take longer than these.
    """
    grid = Sites(here.sites)
    run(grid, terms_of(here.runs, rounds=rounds), lambda _: time.sleep(pause))
    clustered = terms_of(
        here.runs, rounds=6, strategy="r-dpcfl", epsilons="20", groups="rotation:3:3",
        **{"r-dpcfl.clusters": 2, "run-id": CLUSTERED, "batch-sizes": "32"},
    )  # fmt: skip
    run_in_process(clustered, 6, lambda _: time.sleep(pause / 2))
    own, at = here.runs.with_name("own.npz"), np.linspace(0, 1, 600)[:, None]
    np.savez(own, x=at, y=at[:, 0] / 2 + 0.25)
    regression = {"run-id": "regression-1", "dataset": f"file:{own}", "strategy": "fedavg",
                  "task": {"kind": "regression", "shape": "1"}}  # fmt: skip
    run_in_process(terms_of(here.runs, rounds=2, **regression), 5)
    with contextlib.suppress(StrategyError):  # 5,000 rounds are more than the sites' policy allows
        run(grid, terms_of(here.runs, rounds=5000, **{"run-id": REFUSED}))
    grid.close()
    events = read_journal(here.runs / FEDERATION / "journal.jsonl")
    last = [event["metrics"]["accuracy"] for event in events if "metrics" in event][-1]
    wait_for(lambda: any(
        float(sample["value"][1]) == last
        for sample in here.ask(f'hdpfl_model_accuracy_ratio{{run="{FEDERATION}"}}')
    ))  # fmt: skip
    wait_for(lambda: here.ask("sum(increase(hdpfl_refused_requests_total[5m])) > 0"))
    wait_for(lambda: here.ask(f'hdpfl_run_no_quorum_rounds_total{{run="{REFUSED}"}} == 3'))
