"""Preparation and start of a federation's nodes.

Standard library only.
"""

from __future__ import annotations

import contextlib
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

from hdpfl_flower.config.toml_text import as_toml

SUPERLINK = "superlink"
"""Name of the coordinator's process."""
PINNED = "pinned"
"""Marker file of a site that runs only approved apps."""

PEERS = CERTS / "peers"
"""Files of the sites' public keys for shared noise."""
APPROVED = FOLDER / "approved"
"""Approved apps of sites that pin their code, shared on this machine."""


def start_superlink(port: int) -> None:
    """Start the coordinator with TLS and keys, its tasks apart."""
    _start(
        SUPERLINK,
        [
            f"{BIN}/flower-superlink",
            "--host",
            HOST,
            "--port",
            str(port),
            "--ssl-ca-certfile",
            f"{CERTS}/ca.crt",
            "--ssl-certfile",
            f"{CERTS}/server.crt",
            "--ssl-keyfile",
            f"{CERTS}/server.key",
            "--enable-supernode-auth",
            "--database",
            f"{SERVER}/state.db",
            "--disable-runtime-dependency-installation",
        ],
        [f"{HOST}:{port}", "--root-certificates", f"{CERTS}/ca.crt"],
        SERVER,
        environment(SERVER, HOME),
    )


def start_supernode(name: str, port: int, own_port: int) -> None:
    """Start a site with its own key, Flower home and configuration.

    A site that pins its code finds only the launcher of approved apps in its PATH, and its
    tasks run apart from it.
    """
    site = SITES / name
    env, pinned = environment(site / "flwr", site / "home"), (site / PINNED).exists()
    if pinned:
        env["PATH"] = str(APPROVED / "bin")
    _start(
        name,
        [
            f"{BIN}/hdpfl-patient",
            f"{BIN}/flower-supernode",
            "--superlink",
            f"{HOST}:{port}",
            "--root-certificates",
            f"{CERTS}/ca.crt",
            "--auth-supernode-private-key",
            f"{CERTS}/sites/{name}",
            "--host",
            HOST,
            "--port",
            str(own_port),
            "--node-config",
            f"{site}/node.toml",
        ],
        [f"{HOST}:{own_port}", "--insecure"] if pinned else [],  # on loopback
        site,
        env,
    )


def _start(
    name: str, node: list[str], runtime: list[str], folder: Path, env: dict[str, str]
) -> None:
    """Start a node, and with ``runtime`` a task process sharing a secret."""
    if not runtime:
        processes.start(name, node, PIDS, LOGS / f"{name}.log", env)
        return
    shared = ["--superexec-auth-secret-file", str(make_secret(folder))]
    patient = [f"{BIN}/hdpfl-patient", f"{BIN}/flower-superexec"]
    tasks = [*patient, "--runtime-api-address", *runtime, *shared]
    pair = [sys.executable, str(Path(__file__).with_name("run_pair.py"))]
    processes.start(
        name,
        [*pair, "--", *node, "--isolation", "process", *shared, "--", *tasks],
        PIDS,
        LOGS / f"{name}.log",
        env,
    )


def make_secret(folder: Path) -> Path:
    """Return the secret in ``folder`` for a node and its tasks, made if new."""
    secret = folder / "superexec.secret"
    if not secret.exists():
        with os.fdopen(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    return secret


def approve_app(names: list[str], root: Path = ROOT) -> None:
    """Approve only the present app in ``root`` at these sites."""
    with tempfile.TemporaryDirectory() as folder, app_alone(root) as source:
        call("flwr", "build", "--app", source, folder=Path(folder))
        (app,) = Path(folder).glob("*.fab")
        call("hdpfl-site", "approve", str(app), "--to", str(APPROVED), "--yes")
    for name in names:
        (SITES / name / PINNED).touch(mode=0o600)


def remove_site(name: str) -> None:
    """Remove the folder, keys and registration of a never started site, at the others too."""
    note = SITES / name / "node-id"
    if note.exists():
        with contextlib.suppress(ProblemError):  # the SuperLink itself may have failed
            flwr("supernode", "unregister", note.read_text(), LINK)
    shutil.rmtree(SITES / name, ignore_errors=True)
    for key in (CERTS / "sites" / name, CERTS / "sites" / f"{name}.pub"):
        key.unlink(missing_ok=True)
    for peer in FOLDER.rglob(f"{name}.peer"):
        peer.unlink()


def make_certificates(names: list[str], *more: str) -> None:
    """Make the CA, the server's certificate and missing site keys.

    The certificate names this machine, and ``more`` names of the server.
    """
    new = [name for name in names if not (CERTS / "sites" / name).exists()]
    if new or not (CERTS / "server.crt").exists():
        hosts = [word for name in (HOST, "localhost", *more) for word in ("--host", name)]
        sites = [word for name in new for word in ("--site", name)]
        call("hdpfl", "certs", str(CERTS), *hosts, *sites)


def write_connection(address: str) -> None:
    """Write the SuperLink's address, ``HOST:PORT``, for Flower's commands."""
    certificate = as_toml(f"{CERTS}/ca.crt")
    (SERVER / "config.toml").write_text(
        f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{address}"\n'
        f"root-certificates = {certificate}\n"
    )


def prepare_site(name: str, source: Path) -> None:
    """Copy a site's files, readable only by its owner, and create its ledger.

    Existing files stay: a site's profile, records and ledger are its own. A ``node.toml``
    in ``source`` adds to the node's configuration.
    """
    site = SITES / name
    for folder in (site, site / "flwr", site / "home"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for file in source.iterdir():
        target = site / file.name
        if not file.is_file() or file.name == "node.toml":
            continue
        if not target.exists():
            shutil.copyfile(file, target)
            target.chmod(0o600)
        elif file.name == "profile.toml" and target.read_bytes() != file.read_bytes():
            print(f"{name}: its own profile stays as it is, unlike {file}: {target}")
    profile, more = site / "profile.toml", source / "node.toml"
    config = f"profile = {as_toml(str(profile))}\n" + (more.read_text() if more.exists() else "")
    node = site / "node.toml"
    node.write_text(config, encoding="utf-8")
    node.chmod(0o600)
    content = tomllib.loads(profile.read_text(encoding="utf-8-sig"))
    if "ledger" in content and not (site / content["ledger"]["path"]).exists():
        call("hdpfl-site", "ledger", "--init", "--profile", str(profile))


def exchange_keys(names: list[str]) -> None:
    """Make the sites' keys for shared noise and add each to the others, as their operators would.

    Of sites with a ledger whose profile allows it; a site keeps the keys that it has.
    """
    sharing = {}
    for name in names:
        profile = SITES / name / "profile.toml"
        content = tomllib.loads(profile.read_text(encoding="utf-8-sig"))
        if "ledger" in content and content.get("policy", {}).get("shared-noise"):
            keys = Path(f"{SITES / name / content['ledger']['path']}.peers")
            sharing[name] = (profile, keys)
    PEERS.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, (profile, _) in sharing.items():
        to = PEERS / f"{name}.peer"
        if not to.exists():
            show = ["peers", "show", "--name", name, "--to", str(to)]
            call("hdpfl-site", *show, "--profile", str(profile))
    for name, (profile, keys) in sharing.items():
        files = [
            str(PEERS / f"{other}.peer")
            for other in sharing
            if other != name and not (keys / f"{other}.peer").exists()
        ]
        if files:
            call("hdpfl-site", "peers", "add", *files, "--yes", "--profile", str(profile))


def register(names: list[str]) -> list[str]:
    """Register missing public keys; return the sites' node ids.

    Flower lists nodes without their names, so a site's id is noted when it is registered.
    """
    statuses, notes = node_statuses(), [SITES / name / "node-id" for name in names]
    for name, note in zip(names, notes, strict=True):
        if not note.exists() or note.read_text() not in statuses:
            key = f"{CERTS}/sites/{name}.pub"
            node = flwr("supernode", "register", key, LINK, "--name", name)
            note.write_text(str(node["node-id"]))
    return [note.read_text() for note in notes]
