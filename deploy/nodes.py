"""The nodes of a federation: what each needs before it starts, and how it is started.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

import processes
from app_files import app_alone
from flower_cli import (
    BIN,
    CERTS,
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
    call,
    environment,
    flwr,
    node_statuses,
)

SUPERLINK = "superlink"
"""The name of the coordinator's process."""
PINNED = "pinned"
"""A file in the folder of a site that runs approved apps alone."""


APPROVED = FOLDER / "approved"
"""The approved apps of sites that pin their code; on machines of their own each has its own."""


def start_superlink(port: int, apart: bool = False) -> None:
    """Start the coordinator with TLS and keys for its SuperNodes; its tasks ``apart`` from it."""
    _start(
        SUPERLINK,
        [
            f"{BIN}/flower-superlink", "--host", HOST, "--port", str(port),
            "--ssl-ca-certfile", f"{CERTS}/ca.crt", "--ssl-certfile", f"{CERTS}/server.crt",
            "--ssl-keyfile", f"{CERTS}/server.key", "--enable-supernode-auth",
            "--database", f"{SERVER}/state.db", "--disable-runtime-dependency-installation",
        ],
        [f"{HOST}:{port}", "--root-certificates", f"{CERTS}/ca.crt"] if apart else [],
        SERVER,
        environment(SERVER, HOME),
    )  # fmt: skip


def start_supernode(name: str, port: int, own_port: int) -> None:
    """Start a site: its own key, its own Flower home, its own configuration.

    A site that pins its code finds nothing in its PATH but the launcher of approved apps, and its
    tasks run apart from it.
    """
    site = SITES / name
    env, pinned = environment(site / "flwr", site / "home"), (site / PINNED).exists()
    if pinned:
        env["PATH"] = str(APPROVED / "bin")
    _start(
        name,
        [
            f"{BIN}/flower-supernode", "--superlink", f"{HOST}:{port}",
            "--root-certificates", f"{CERTS}/ca.crt",
            "--auth-supernode-private-key", f"{CERTS}/sites/{name}",
            "--host", HOST, "--port", str(own_port), "--node-config", f"{site}/node.toml",
        ],
        [f"{HOST}:{own_port}", "--insecure"] if pinned else [],  # on loopback
        site,
        env,
    )  # fmt: skip


def _start(
    name: str, node: list[str], runtime: list[str], folder: Path, env: dict[str, str]
) -> None:
    """Start a node; with ``runtime`` apart from it what runs its tasks, and a secret of both."""
    if not runtime:
        processes.start(name, node, PIDS, LOGS / f"{name}.log", env)
        return
    shared = ["--superexec-auth-secret-file", str(make_secret(folder))]
    tasks = [f"{BIN}/flower-superexec", "--runtime-api-address", *runtime, *shared]
    pair = [sys.executable, str(Path(__file__).with_name("run_pair.py"))]
    processes.start(
        name,
        [*pair, "--", *node, "--isolation", "process", *shared, "--", *tasks],
        PIDS,
        LOGS / f"{name}.log",
        env,
    )


def make_secret(folder: Path) -> Path:
    """Return the file in ``folder`` that a node and what runs its tasks share; make it, if new."""
    secret = folder / "superexec.secret"
    if not secret.exists():
        with os.fdopen(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    return secret


def approve_app(names: list[str], root: Path = ROOT) -> None:
    """Approve the app in ``root`` as it is now at these sites; they run no other from then on."""
    with tempfile.TemporaryDirectory() as folder, app_alone(root) as source:
        call("flwr", "build", "--app", source, folder=Path(folder))
        (app,) = Path(folder).glob("*.fab")
        call("hdpfl-site", "approve", str(app), "--to", str(APPROVED), "--yes")
    for name in names:
        (SITES / name / PINNED).touch(mode=0o600)


def remove_site(name: str) -> None:
    """Take back what was made for a site that never started: its folder, its keys, its place."""
    note = SITES / name / "node-id"
    if note.exists():
        with contextlib.suppress(ProblemError):  # the SuperLink may be what failed
            flwr("supernode", "unregister", note.read_text(), LINK)
    shutil.rmtree(SITES / name, ignore_errors=True)
    for key in (CERTS / "sites" / name, CERTS / "sites" / f"{name}.pub"):
        key.unlink(missing_ok=True)


def make_certificates(names: list[str], *more: str) -> None:
    """Make the CA, the server's certificate and the keys of sites that have none.

    The certificate names this machine, and ``more`` by which the server is called.
    """
    new = [name for name in names if not (CERTS / "sites" / name).exists()]
    if new or not (CERTS / "server.crt").exists():
        hosts = [word for name in (HOST, "localhost", *more) for word in ("--host", name)]
        sites = [word for name in new for word in ("--site", name)]
        call("hdpfl", "certs", str(CERTS), *hosts, *sites)


def write_connection(address: str) -> None:
    """Write the SuperLink's address, ``HOST:PORT``, for Flower's commands."""
    certificate = json.dumps(f"{CERTS}/ca.crt")
    (SERVER / "config.toml").write_text(
        f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{address}"\n'
        f"root-certificates = {certificate}\n"
    )


def prepare_site(name: str, source: Path) -> None:
    """Copy a site's files, for its owner's eyes alone, and create its ledger.

    What is there already stays: a site's profile, records and ledger are its own. A ``node.toml``
    in ``source`` adds to the node's configuration.
    """
    site = SITES / name
    for folder in (site, site / "flwr", site / "home"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for file in source.iterdir():
        own = site / file.name
        if not file.is_file() or file.name == "node.toml":
            continue
        if not own.exists():
            shutil.copyfile(file, own)
            own.chmod(0o600)
        elif file.name == "profile.toml" and own.read_bytes() != file.read_bytes():
            print(f"{name}: its own profile stays as it is, unlike {file}: {own}")
    profile, more = site / "profile.toml", source / "node.toml"
    config = f"profile = {json.dumps(str(profile))}\n" + (more.read_text() if more.exists() else "")
    node = site / "node.toml"
    node.write_text(config)
    node.chmod(0o600)
    content = tomllib.loads(profile.read_text())
    if "ledger" in content and not (site / content["ledger"]["path"]).exists():
        call("hdpfl-site", "ledger", "init", "--profile", str(profile))


def register(names: list[str]) -> list[str]:
    """Register the public keys that are not yet; return the sites' node ids.

    Flower lists nodes without their names, so a site's id is noted when it is registered.
    """
    known, notes = node_statuses(), [SITES / name / "node-id" for name in names]
    for name, note in zip(names, notes, strict=True):
        if not note.exists() or note.read_text() not in known:
            key = f"{CERTS}/sites/{name}.pub"
            node = flwr("supernode", "register", key, LINK, "--name", name)
            note.write_text(str(node["node-id"]))
    return [note.read_text() for note in notes]
