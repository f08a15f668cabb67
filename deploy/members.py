"""The members of a federation: what each needs before it starts, and how it is started.

Standard library only.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import processes
from flower import (
    BIN,
    CERTS,
    HOME,
    HOST,
    LINK,
    LOGS,
    PIDS,
    SERVER,
    SITES,
    call,
    environment,
    flwr,
    nodes,
)

SUPERLINK = "superlink"
"""The name of the coordinator's process."""


def start_superlink(port: int) -> None:
    """Start the coordinator with TLS and with keys for its SuperNodes."""
    processes.start(
        SUPERLINK,
        [
            f"{BIN}/flower-superlink", "--host", HOST, "--port", str(port),
            "--ssl-ca-certfile", f"{CERTS}/ca.crt", "--ssl-certfile", f"{CERTS}/server.crt",
            "--ssl-keyfile", f"{CERTS}/server.key", "--enable-supernode-auth",
            "--database", f"{SERVER}/state.db", "--disable-runtime-dependency-installation",
        ],
        PIDS,
        LOGS / f"{SUPERLINK}.log",
        environment(SERVER, HOME),
    )  # fmt: skip


def start_supernode(name: str, port: int, own_port: int) -> None:
    """Start a site: its own key, its own Flower home, its own configuration."""
    site = SITES / name
    processes.start(
        name,
        [
            f"{BIN}/flower-supernode", "--superlink", f"{HOST}:{port}",
            "--root-certificates", f"{CERTS}/ca.crt",
            "--auth-supernode-private-key", f"{CERTS}/sites/{name}",
            "--host", HOST, "--port", str(own_port), "--node-config", f"{site}/node.toml",
        ],
        PIDS,
        LOGS / f"{name}.log",
        environment(site / "flwr", site / "home"),
    )  # fmt: skip


def make_certificates(names: list[str]) -> None:
    """Make the CA, the server's certificate and the keys of sites that have none."""
    new = [name for name in names if not (CERTS / "sites" / name).exists()]
    if new or not (CERTS / "server.crt").exists():
        sites = [word for name in new for word in ("--site", name)]
        call("hdpfl", "certs", str(CERTS), "--host", HOST, "--host", "localhost", *sites)


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
    (site / "node.toml").write_text(config)
    content = tomllib.loads(profile.read_text())
    if "ledger" in content and not (site / content["ledger"]["path"]).exists():
        call("hdpfl-site", "ledger", "init", "--profile", str(profile))


def register(names: list[str]) -> list[str]:
    """Register the public keys that are not yet; return the sites' node ids.

    Flower lists nodes without their names, so a site's id is noted when it is registered.
    """
    known, notes = nodes(), [SITES / name / "node-id" for name in names]
    for name, note in zip(names, notes, strict=True):
        if not note.exists() or note.read_text() not in known:
            key = f"{CERTS}/sites/{name}.pub"
            node = flwr("supernode", "register", key, LINK, "--name", name)
            note.write_text(str(node["node-id"]))
    return [note.read_text() for note in notes]
