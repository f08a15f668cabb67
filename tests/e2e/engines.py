"""Flower's two engines as a user starts them, in folders and on ports of a test's own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import socket
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import Event, read_journal
from hdpfl_tools.simulation.sites import draw_profile
from hdpfl_tools.site.commands import main

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))

import processes as processes  # noqa: PLC0414 - tests take it from here
from app_files import app_alone

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MODULES = Path(__file__).parent / "modules"
"""What a user's own modules lie in, on the path of all processes."""
SITES = 4
Done = subprocess.CompletedProcess[str]


def seeded_terms(**changes: object) -> RunConfig:
    """Return terms that every engine can run in seconds, and whose every draw has a seed."""
    config: dict[str, object] = {
        "dataset": "digits", "rounds": 3, "min-sites": SITES, "evaluation": "none",
        "epsilons": "1,2,4,8", "batch-sizes": "32,64", "learning-rate": 0.5, "seed": 7,
    }  # fmt: skip
    return RunConfig.parse({**config, **changes})


def digest(folder: Path) -> str:
    """Return the SHA-256 of the final global model of a run: names, shapes and every bit."""
    found = hashlib.sha256()
    for name, array in sorted(load_file(folder / "model.safetensors").items()):
        found.update(f"{name}\n{array.dtype}\n{array.shape}\n".encode() + array.tobytes())
    return found.hexdigest()


def rounds_of(folder: Path) -> list[Event]:
    """Return the rounds in a run's journal."""
    return [event for event in read_journal(folder / "journal.jsonl") if event["event"] == "round"]


def free_ports(count: int) -> int:
    """Return the first of ``count`` ports that are free now, below those the system gives out.

    Each of pytest's workers has a range of its own, so that no two find the same ports free.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    lowest = 20000 + 2000 * worker
    for first in random.SystemRandom().sample(range(lowest, lowest + 2000, 10), 200):
        if all(_is_free(first + i) for i in range(count)):
            return first
    raise RuntimeError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def to_toml(config: dict[str, Any], head: str = "") -> str:
    """Return TOML text: plain keys first, then tables; JSON's and TOML's words are the same."""
    plain = [f"{k} = {json.dumps(v)}" for k, v in config.items() if not isinstance(v, dict)]
    inner = {f"{head}{k}": v for k, v in config.items() if isinstance(v, dict)}
    tables = [f"\n[{name}]\n{to_toml(v, f'{name}.')}" for name, v in inner.items()]
    return "\n".join((*plain, *tables)) + "\n"


def write_seeded_site(folder: Path, terms: RunConfig, index: int, number: int) -> None:
    """Write the profile that a simulation would draw for this site, and which site it is."""
    profile = draw_profile(terms, index, number)
    drawn = profile.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"disclose"}
    )
    folder.mkdir(parents=True)
    (folder / "profile.toml").write_text(to_toml({"disclose": list(profile.disclose), **drawn}))
    (folder / "node.toml").write_text(f"partition-id = {index}\nnum-partitions = {number}\n")


@dataclass(frozen=True)
class Federation:
    """``deploy/federation.py`` with a home and ports of its own."""

    home: Path
    port: int
    python: str = sys.executable
    """Of the environment from which it starts what does not run."""

    @property
    def folder(self) -> Path:
        return self.home / "federation"

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "HDPFL_HOME": str(self.home),
            "HDPFL_FEDERATION_PORT": str(self.port),
            "PYTHONPATH": with_modules(),
        }
        return {**os.environ, **own}

    def command(self, *words: str | Path) -> list[str]:
        return [self.python, str(ROOT / "deploy" / "federation.py"), *map(str, words)]

    def call(self, *words: str | Path) -> Done:
        return subprocess.run(
            self.command(*words), env=self.environment, cwd=self.home,
            capture_output=True, text=True, check=False, timeout=1200,
        )  # fmt: skip

    def run(self, terms: RunConfig) -> tuple[Path, Done]:
        """Run ``terms`` to the end; return the run's folder."""
        return self.home / "runs" / terms.terms.run_id, self.call(
            "run", self.write(terms.as_config())
        )

    def write(self, config: dict[str, Any]) -> Path:
        path = self.home / "terms.toml"
        path.write_text(to_toml(config))
        return path

    def flwr(self, *words: str) -> Done:
        return flwr(self.folder / "superlink", {}, *words)

    def hdpfl(self, *words: str | Path) -> Done:
        """Run an ``hdpfl`` command as the coordinator's operator does, away from the app."""
        own = {"FLWR_HOME": str(self.folder / "superlink"), "COLUMNS": "200"}
        return subprocess.run(
            [str(BIN / "hdpfl"), *map(str, words)], env={**self.environment, **own},
            cwd=self.home, capture_output=True, text=True, check=False, timeout=1800,
        )  # fmt: skip

    def hdpfl_site(self, site: str, *words: str) -> str:
        """Return what a command of the site's operator prints, called in this process."""
        out, err = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            patch.setattr(sys, "argv", ["hdpfl-site", *words, "--profile", str(self.profile(site))])
            patch.setenv("HDPFL_HOME", str(self.home))
            main()
        assert not end.value.code, err.getvalue()
        return out.getvalue()

    def profile(self, site: str) -> Path:
        return self.folder / "sites" / site / "profile.toml"

    def log(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")


@dataclass(frozen=True)
class Ray:
    """``flwr run`` on the SuperLink that it starts by itself, with a home and a port of its own."""

    home: Path
    port: int

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    def run(self, terms: RunConfig, sites: int) -> tuple[Path, Done]:
        done = self.call(terms.updated(runs_dir=str(self.runs)).as_config(), sites, "--stream")
        return self.runs / terms.terms.run_id, done

    def call(self, config: dict[str, Any], sites: int, *more: str) -> Done:
        """Run the app; without ``--stream`` the command ends when the run was taken."""
        path = self.home / "terms.toml"
        path.write_text(to_toml(config))
        size = f"num-supernodes={sites} client-resources-num-cpus=1"
        with app_alone(ROOT) as app:
            words = ["run", app, *more, "--federation-config", size, "--run-config", str(path)]
            done = flwr(self.home, self._port, *words)
        assert done.returncode == 0, done.stdout + done.stderr  # the run was not taken
        return done

    def resume(self, folder: Path) -> Done:
        """Resume the run of ``folder`` with ``hdpfl resume``, and wait for its end."""
        return _called("hdpfl", self.home, self._port, "resume", str(folder))

    def last_run(self) -> dict[str, Any]:
        """Return Flower's own record of the last run."""
        runs: list[dict[str, Any]] = json.loads(
            flwr(self.home, self._port, "list", "--format", "json").stdout
        )["runs"]
        return max(runs, key=lambda run: run["pending-at"])

    def superlinks(self) -> dict[int, str]:
        """Return the SuperLink that ``flwr run`` started: its process and when it was born."""
        table = processes.table()
        mine = f"--log-file {self.home}"
        return {pid: living.birth for pid, living in table.items() if mine in command_of(pid)}

    def simulations(self) -> list[int]:
        """Return the processes of the runs that are under way: server, sites and Ray's driver."""
        family = processes._family(self.superlinks())
        return [pid for pid in family if "flwr-simulation" in command_of(pid)]

    def stop(self) -> None:
        """Stop the SuperLink that ``flwr run`` started and all it started, and nothing else."""
        for pid, birth in self.superlinks().items():
            (self.home / "ray.json").write_text(json.dumps({"pid": pid, "birth": birth}))
            processes.stop(["ray"], self.home)

    @property
    def _port(self) -> dict[str, str]:
        return {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self.port)}


def with_modules() -> str:
    """Return ``PYTHONPATH`` with the tests' own strategies and models before what is set."""
    return os.pathsep.join(filter(None, [str(MODULES), os.environ.get("PYTHONPATH")]))


def flwr(home: Path, more: dict[str, str], *words: str) -> Done:
    """Run a ``flwr`` command with its own Flower home."""
    return _called("flwr", home, more, *words)


def _called(program: str, home: Path, more: dict[str, str], *words: str) -> Done:
    environment = {
        **os.environ,
        "PYTHONPATH": with_modules(),
        **more,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    for _ in range(5):
        done = subprocess.run(
            [str(BIN / program), *words], env=environment, cwd=ROOT,
            capture_output=True, text=True, check=False, timeout=1200,
        )  # fmt: skip
        # Flower kills its local SuperLink after 15 s; on a busy machine it needs more at first.
        if "Failed to start local SuperLink" not in done.stderr:
            break
        # Killed while it made its database, it fails at every later start.
        if "exited with code" in done.stderr:
            (home / "local-superlink" / "state.db").unlink(missing_ok=True)
    return done


def command_of(pid: int) -> str:
    """Return a process's command line, blanks between the words."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except FileNotFoundError:  # gone, or no Linux
        words = ["ps", "-o", "args=", "-p", str(pid)]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def toml_of(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds."""
    return tomllib.loads(path.read_text())
