"""Setup and runs in the containers of docker/compose.yml.

    python deploy/containers.py prepare SITE … | register SITE … | run [TERMS] | answers

Only ``prepare`` sees all volumes, once, before any program runs: it makes the files that each
container may see later, each in a separate volume. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from federation import DEMO, INTERRUPTED, conclude, submit
from flower_cli import CERTS, HOME, ROOT, SERVER, SITES, ProblemError, answers
from nodes import (
    PEERS,
    exchange_keys,
    make_certificates,
    make_secret,
    prepare_site,
    register,
    write_connection,
)

SUPERLINK = "superlink"
"""Name of the coordinator on its networks and in its certificate."""
PORT = 8000
KEYS, SECRETS, PUBLIC = HOME / "keys", HOME / "secrets", HOME / "public"
"""Volume folders: a node's key, a shared secret, public files."""
SEEN_AT = "/etc/hdpfl"
"""Folder of the public files in Prometheus' and Grafana's containers."""
AUTHORIZATION = "    authorization: {credentials_file: /etc/prometheus/hdpfl-site.token}\n"
"""Authorization of a site's Prometheus on a shared machine.

In containers a separate network replaces it.
"""


def main() -> int:
    """Run one command; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "register"):
        commands.add_parser(name).add_argument("sites", nargs="+")
    commands.add_parser("run").add_argument(
        "terms", type=Path, nargs="?", default=DEMO / "run.toml"
    )
    commands.add_parser("answers", help="end with 0 if the SuperLink of this container answers")
    words = parser.parse_args()
    os.umask(0o077)
    try:
        if words.command == "answers":
            return 0 if answers(PORT) else 1
        if words.command == "run":
            folder, ended = submit(words.terms)
            print(f"\nthe run's folder, in the volume of the runs: {folder}", flush=True)
            conclude(folder, ended)
        else:
            (prepare if words.command == "prepare" else introduce)(words.sites)
    except ProblemError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except OSError as problem:
        print(f"error: {problem.filename}: {problem.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def prepare(names: list[str]) -> None:
    """Make certificates, keys, secrets, sites' files and ledgers; keep existing ones.

    A site's key for shared noise lies in the volume of its ledger; the others get its public half.
    """
    make_certificates(names, SUPERLINK)
    for file in ("server.crt", "server.key"):
        _hand(CERTS / file, KEYS / SUPERLINK / file)
    make_secret(SECRETS / SUPERLINK)
    for name in names:
        _hand(CERTS / "sites" / name, KEYS / name / "node.key")
        make_secret(SECRETS / name)
        prepare_site(name, DEMO / name)
    exchange_keys(names)
    publish(names)
    print(f"prepared: {', '.join(names)}")


def publish(names: list[str]) -> None:
    """Write the public files: CA certificate, public keys, those of shared noise, monitoring.

    Prometheus and Grafana query the neighbouring containers by name, not this machine.
    """
    os.umask(0o022)
    for folder in ("sites", "peers"):
        (PUBLIC / folder).mkdir(exist_ok=True)
    peers = (f"peers/{file.name}" for file in PEERS.glob("*.peer"))
    for file in ("ca.crt", *(f"sites/{name}.pub" for name in names), *peers):
        _hand(CERTS / file, PUBLIC / file, 0o644)
    source = ROOT / "docker"
    shutil.copytree(source / "prometheus/rules", PUBLIC / "prometheus/rules", dirs_exist_ok=True)
    for place in ("coordinator", "site"):
        config = f"prometheus/{place}.yml"
        _rewrite(source / config, PUBLIC / config, "127.0.0.1:", "exporter:")
        if place == "site":
            _rewrite(PUBLIC / config, PUBLIC / config, AUTHORIZATION, "")
        grafana = f"grafana/{place}"
        data, provider = (
            "provisioning/datasources/prometheus.yml",
            "provisioning/dashboards/hdpfl.yml",
        )
        _rewrite(
            source / "grafana" / data, PUBLIC / grafana / data, "//127.0.0.1:", "//prometheus:"
        )
        _rewrite(
            source / "grafana" / provider,
            PUBLIC / grafana / provider,
            "/var/lib/grafana/dashboards",
            f"{SEEN_AT}/{grafana}/dashboards",
        )
        (PUBLIC / grafana / "dashboards").mkdir(exist_ok=True)
        dashboard = f"dashboards/{place}.json"
        shutil.copyfile(source / "grafana" / dashboard, PUBLIC / grafana / dashboard)


def introduce(names: list[str]) -> None:
    """Register the sites' keys at the SuperLink; keep registered ones."""
    for folder in (SERVER, *(SITES / name for name in names)):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_connection(f"{SUPERLINK}:{PORT}")
    for name, node in zip(names, register(names), strict=True):
        print(f"registered: {name}, node {node}")


def _hand(source: Path, target: Path, mode: int = 0o600) -> None:
    """Copy a file unless the target is already equal."""
    content = source.read_bytes()
    if not target.exists() or target.read_bytes() != content:
        target.unlink(missing_ok=True)
        target.touch(mode)
        target.write_bytes(content)


def _rewrite(source: Path, target: Path, old: str, new: str) -> None:
    """Copy a text with ``old`` replaced; raises ``ProblemError`` if absent."""
    text = source.read_text()
    if old not in text:
        raise ProblemError(f"{source} does not name {old}; correct deploy/containers.py with it")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text.replace(old, new))


if __name__ == "__main__":
    sys.exit(main())
