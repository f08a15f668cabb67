"""Local federation of real processes: SuperLink, SuperNodes, TLS and keys.

    python deploy/federation.py up | run | status | down

The same parts as in a deployment over machines, on loopback: every site has its own private key,
profile, records, ledger and Flower home. All files lie in ``$HDPFL_HOME/federation``. Standard
library only; the packages are not imported, their commands are called.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import processes
from app_files import app_alone
from flower_cli import (
    BIN,
    FLWR,
    FOLDER,
    HOME,
    HOST,
    LINK,
    LOGS,
    PIDS,
    ROOT,
    SERVER,
    SITES,
    ProblemError,
    answers,
    call,
    environment,
    flwr,
    listens,
    node_statuses,
)
from nodes import (
    PEERS,
    SUPERLINK,
    approve_app,
    exchange_keys,
    make_certificates,
    prepare_site,
    register,
    remove_site,
    start_superlink,
    start_supernode,
    write_connection,
)
from sites_check import check_ports, check_sites, site_names

from hdpfl_flower.config.toml_text import as_toml

DEMO = ROOT / "deploy" / "demo"
DEFAULT_PORT = 28300
"""Default port of the SuperLink; the SuperNodes use the next ones."""
READY_SECONDS, ONLINE_SECONDS = 300.0, 600.0
INTERRUPTED = 130


def main() -> int:
    """Run one command; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    up_parser = commands.add_parser("up", help="start what is not running")
    up_parser.add_argument("--sites", type=Path, default=DEMO, help="folder with a folder a site")
    up_parser.add_argument(
        "--pin", action="store_true", help="sites run the app as it is now, and no other"
    )
    up_parser.add_argument("--app", type=Path, default=ROOT, help="with --pin: the app's folder")
    run_parser = commands.add_parser("run", help="run the app on it and follow the log")
    run_parser.add_argument("--app", type=Path, default=ROOT, help="the app's folder")
    run_parser.add_argument("terms", type=Path, nargs="?", default=DEMO / "run.toml")
    commands.add_parser("status", help="say what is running")
    commands.add_parser("down", help="stop it; ledgers, models and runs stay")
    words = parser.parse_args()
    os.umask(0o077)  # of all that is written, by Flower, too
    try:
        if words.command == "run":
            run(words.terms, words.app.absolute())
        elif words.command == "status":
            status()
        else:
            with _alone():
                if words.command == "up":
                    up(words.sites.absolute(), words.pin, words.app.absolute())
                else:
                    down()
    except ProblemError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except OSError as problem:
        print(f"error: {problem.filename or FOLDER}: {problem.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ninterrupted; 'python {sys.argv[0]} status' says what runs", file=sys.stderr)
        return INTERRUPTED
    return 0


# --- up, down, status -----------------------------------------------------------------------


def up(source: Path, pin: bool = False, app: Path = ROOT) -> None:
    """Start the SuperLink and one SuperNode per folder in ``source``.

    Waits until all are online.

    Running processes stay unchanged. Names, ports, profiles and records are checked before
    any file is made; if it fails later, processes started by this call are stopped again, and sites
    that it made and did not start are removed (a started one may have released something). With
    ``pin`` the sites that it starts run only approved apps, and the present app is approved.
    """
    if not (BIN / "flower-superlink").exists():
        raise ProblemError(f"flower-superlink is not installed in {BIN}; run: make up")
    names = site_names(source)
    running = [name for name in (SUPERLINK, *names) if processes.find(name, PIDS)]
    killed = set(processes.names(PIDS)) - set(running)  # those that 'down' ended are not noted
    port = _port(SUPERLINK in running)
    ports = {name: port + number for number, name in enumerate((SUPERLINK, *names))}
    check_ports(ports[name] for name in ports if name not in running)
    check_sites([name for name in names if name not in running], source)
    for folder in (FOLDER, SITES, SERVER, LOGS, PIDS):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    started: list[str] = []
    new = [name for name in names if not (SITES / name / "profile.toml").exists()]
    try:
        if SUPERLINK not in running:
            write_connection(f"{HOST}:{port}")
        _prepare(names, source, [name for name in names if pin and name not in running], app)
        if SUPERLINK not in running:
            print(f"starting the SuperLink on {HOST}:{port}", flush=True)
            started.append(SUPERLINK)
            start_superlink(port)
            _wait(lambda: answers(port), READY_SECONDS, SUPERLINK)
        node_ids = register(names)
        _wait_for_the_killed({n: i for n, i in zip(names, node_ids, strict=True) if n in killed})
        for name in names:
            if name not in running:
                print(f"starting the SuperNode of {name}", flush=True)
                started.append(name)
                start_supernode(name, port, ports[name])
        _wait(lambda: all(listens(ports[name]) for name in started), ONLINE_SECONDS, *names)
        _wait(
            lambda: all(node_statuses().get(node) == "online" for node in node_ids),
            ONLINE_SECONDS,
            *names,
        )
    except BaseException:
        processes.stop([name for name in started if name != SUPERLINK], PIDS)
        for name in new:
            if name not in started:
                remove_site(name)
        processes.stop([SUPERLINK] if SUPERLINK in started else [], PIDS)
        raise
    print(f"{len(names)} sites are online: {', '.join(names)}")
    print(f"to look at it: {FLWR} list {LINK}")


def down() -> None:
    """Stop the SuperNodes, then the SuperLink, with their children."""
    names = processes.names(PIDS)
    stopped = processes.stop([name for name in names if name != SUPERLINK], PIDS)
    stopped += processes.stop([SUPERLINK], PIDS)
    print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


def status() -> None:
    """Print each process and the place of its log."""
    for name in (SUPERLINK, *_sites()):
        pid = processes.find(name, PIDS)
        print(f"{name:<14} {f'runs, pid {pid}' if pid else 'does not run':<20} {LOGS}/{name}.log")


# --- run ------------------------------------------------------------------------------------


def run(terms: Path, app: Path = ROOT) -> None:
    """Run the app under ``terms``, follow its log, and print paths."""
    if not processes.find(SUPERLINK, PIDS):
        raise ProblemError("the federation is not running; start it with: make up")
    folder, ended = submit(terms, app)
    print(f"\nlogs: {LOGS}\nthe run's folder: {folder}", flush=True)
    conclude(folder, ended)
    for site in _sites():
        print(f"{site}: {BIN}/hdpfl-site report --profile {SITES / site / 'profile.toml'}")


def submit(terms: Path, root: Path = ROOT) -> tuple[Path, dict[str, Any]]:
    """Run ``root``'s app under ``terms``; return its folder and Flower's record.

    ``flwr run`` reports success as soon as the run is accepted; its end is queried here.
    """
    with app_alone(root) as app:
        # Beside that copy of the app, which is this call's own: two may submit at once.
        config, run_id = _named_terms(terms, Path(app).parent)
        try:
            call("hdpfl", "check", str(config), "--app", str(root), folder=root)
        except ProblemError as problem:
            raise ProblemError(str(problem).replace(str(config), str(terms))) from None
        number = str(flwr("run", app, LINK, "--run-config", str(config))["run-id"])
    print(f"run {run_id} has started (Flower's id {number}); Ctrl-C leaves it running", flush=True)
    try:
        command = [f"{BIN}/flwr", "log", number, LINK]
        subprocess.run(command, env=environment(SERVER, HOME), check=False)
        return HOME / "runs" / run_id, _end_of(number, HOME / "runs" / run_id)
    except KeyboardInterrupt:
        print(
            f"\nthe run continues; to follow it: {FLWR} log {number} {LINK}\n"
            f"to stop it: {FLWR} stop {number} {LINK}"
        )
        raise SystemExit(INTERRUPTED) from None


def conclude(folder: Path, ended: dict[str, Any]) -> None:
    """Print the promises of the run in ``folder``; raises ``ProblemError`` if failed."""
    if ended["status"] != "finished:completed":
        said = f"the run ended as {ended['status']}: {ended['status-details']}"
        raise ProblemError(said + _to_resume(folder))
    for line in promises(folder):
        print(line)


def _to_resume(folder: Path) -> str:
    """Return the command that resumes the run in ``folder``, if it can be."""
    if not (folder / "checkpoint.safetensors").exists():
        return ""
    return (
        f"; to resume it, with the SuperLink running: FLWR_HOME={SERVER} {BIN}/hdpfl resume "
        f"{folder} {LINK} --app {ROOT}"
    )


def promises(folder: Path) -> Iterator[str]:
    """Yield the privacy promises in ``folder``'s result, and sites without privacy."""
    result = folder / "result.json"  # in another place if the terms set 'runs-dir'
    promise = json.loads(result.read_text()).get("privacy") if result.is_file() else None
    if not promise:
        return
    yield f"protected: {promise['unit']}; {promise['trust']}"
    for level in promise.get("levels", []):
        if level["sites"] and level["promise"] != "no privacy":
            sites = f"{level['sites']} site" + "s" * (level["sites"] > 1)
            yield f"{sites}: {level['promise']}, ε at most {level['epsilon']:g}"
    if without := promise.get("no privacy"):
        yield f"no privacy: {', '.join(without)} (opted out)"


def _named_terms(terms: Path, folder: Path) -> tuple[Path, str]:
    """Return a copy of ``terms`` in ``folder`` with a run id for the run's folder, and that id."""
    config = dict(_flat(tomllib.loads(terms.read_text(encoding="utf-8-sig"))))

    def found(path: str) -> str:
        """Return a path from the terms' folder; the ServerApp, which reads it, starts elsewhere."""
        return str(terms.absolute().parent / Path(path).expanduser())

    schema = str(config.get("schema", ""))
    if schema.endswith(".toml") and not any(mark in schema for mark in "=\n"):
        config["schema"] = found(schema)
    for key in ("start", "backbone.weights"):
        path = str(config.get(key, ""))
        if path and not path.startswith("sha256:"):
            config[key] = found(path)
    new_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    peers = sorted(map(str, PEERS.glob("*.peer")))
    if config.get("noise") == "shared" and not config.get("members") and peers:
        config |= tomllib.loads(call("hdpfl", "members", *peers))
    resumed = Path(str(config.get("resume-from", ""))).name  # a resumed run has an id already
    config["run-id"] = config.get("run-id") or ("" if resumed else new_id)
    copy = folder / "run.toml"  # JSON's numbers, texts, true and false are also valid TOML
    copy.write_text(
        "".join(f"{key} = {as_toml(value)}\n" for key, value in config.items()), encoding="utf-8"
    )
    return copy, str(config["run-id"] or resumed)


def _flat(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield run config keys as Flower names them, with dotted tables."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", inner) for name, inner in _flat(value))
        else:
            yield key, value


def _end_of(number: str, folder: Path) -> dict[str, Any]:
    """Return Flower's record of the run in ``folder``, once it has ended."""
    while True:
        try:
            record: dict[str, Any] = flwr("list", LINK, "--run-id", number)["runs"][0]
        except ProblemError as problem:  # the SuperLink has died
            raise ProblemError(f"{problem}{_to_resume(folder)}") from None
        if record["status"].startswith("finished"):
            return record
        time.sleep(2)


# --- parts ----------------------------------------------------------------------------------


def _prepare(names: list[str], source: Path, pinned: list[str], app: Path) -> None:
    """Prepare the nodes before their start; ``pinned`` sites run approved apps."""
    make_certificates(names)
    for name in names:
        prepare_site(name, source / name)
    exchange_keys(names)
    if pinned:
        approve_app(pinned, app)


def _sites() -> list[str]:
    """Return the names of the existing sites, which have a profile."""
    return sorted(path.parent.name for path in SITES.glob("[!.]*/profile.toml"))


def _alone() -> AbstractContextManager[object]:
    """Lock the folder for one command; freed with the process."""
    FOLDER.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (FOLDER / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ProblemError("another 'up' or 'down' is at work; wait for it") from None
    return lock


def _port(running: bool) -> int:
    """Return the SuperLink's port: the running or the configured one."""
    config = SERVER / "config.toml"
    if running:
        address = tomllib.loads(config.read_text())["superlink"][LINK]["address"]
        return int(address.rpartition(":")[2])
    text = os.environ.get("HDPFL_FEDERATION_PORT") or str(DEFAULT_PORT)
    if not text.isdecimal() or not 1024 <= int(text) < 65000:
        raise ProblemError("HDPFL_FEDERATION_PORT must be a whole number from 1024 to 64999")
    return int(text)


def _wait_for_the_killed(sites: dict[str, str]) -> None:
    """Wait until the SuperLink misses these nodes (name → id) and admits others."""
    statuses = node_statuses() if sites else {}
    taken = {name: node for name, node in sites.items() if statuses.get(node) == "online"}
    if taken:
        print(f"{', '.join(taken)}: killed; within a minute the SuperLink lets it in again")
        _wait(
            lambda: all(node_statuses().get(i) != "online" for i in taken.values()),
            ONLINE_SECONDS,
            SUPERLINK,
        )


def _wait(ready: Callable[[], bool], seconds: float, *names: str) -> None:
    """Wait until ``ready()``; raises if a process ends or time is up."""
    deadline = time.monotonic() + seconds
    while not ready():
        for name in names:
            if processes.find(name, PIDS) is None:
                raise ProblemError(f"{name} ended at once; its log says why: {LOGS}/{name}.log")
        if time.monotonic() > deadline:
            raise ProblemError(f"{', '.join(names)}: not ready after {seconds:g} s; see {LOGS}")
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
