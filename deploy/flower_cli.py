"""Location of a local federation, and calls of Flower's commands.

Standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).absolute().parents[1]
BIN = Path(sys.executable).parent
HOME = Path(os.environ.get("HDPFL_HOME") or "~/.hdpfl").expanduser().absolute()
FOLDER = HOME / "federation"
CERTS, SITES, SERVER = FOLDER / "certs", FOLDER / "sites", FOLDER / "superlink"
LOGS, PIDS = FOLDER / "logs", FOLDER / "pids"

HOST = "127.0.0.1"
LINK = "hdpfl"
"""Name of the connection in Flower's configuration."""
FLWR = f"FLWR_HOME={SERVER} {BIN}/flwr"
"""User's call of Flower's own command on this federation."""


class ProblemError(Exception):
    """Problem that the user can correct, in one line."""


def environment(flwr_home: Path, hdpfl_home: Path) -> dict[str, str]:
    """Return a process environment without the caller's Flower settings."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "HDPFL_"))}
    return {
        **inherited,
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        "HDPFL_HOME": str(hdpfl_home),
        "FLWR_HOME": str(flwr_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        "NO_PROXY": f"{HOST},localhost",
        "no_proxy": f"{HOST},localhost",
    }


def call(command: str, *words: str, folder: Path | None = None) -> str:
    """Return what a command in ``folder`` prints; raises ``ProblemError`` with its error."""
    done = captured(command, *words, folder=folder)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"'{command}' failed"]
        raise ProblemError(lines[-1].removeprefix("error: "))
    return done.stdout


def flwr(*words: str) -> dict[str, Any]:
    """Return the JSON printed by a ``flwr`` command.

    Its exit status is not reliable.

    Raises:
        ProblemError: it printed none, or reports a failure.
    """
    done = captured("flwr", *words, "--format", "json")
    try:
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        text = " ".join((done.stderr or done.stdout).split())
        raise ProblemError(f"'flwr {words[0]}' printed no answer: {text}") from None
    if not answer.get("success"):
        text = " ".join(str(answer.get("error-message", answer)).split())
        raise ProblemError(f"'flwr {words[0]}' failed: {text}")
    return answer


def node_statuses() -> dict[str, str]:
    """Return the status of every registered node by its id."""
    return {node["node-id"]: node["status"] for node in flwr("supernode", "list", LINK)["nodes"]}


def answers(port: int) -> bool:
    """Return whether a SuperLink with our certificate answers at ``port``."""
    context = ssl.create_default_context(cafile=f"{CERTS}/ca.crt")
    connection = http.client.HTTPSConnection(HOST, port, timeout=2, context=context)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def listens(port: int) -> bool:
    """Return whether a process listens at ``port``, cheaper than by Flower."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def check_free(port: int) -> None:
    """Raise ``ProblemError`` if ``port`` is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise ProblemError(
                f"port {port} is in use; set HDPFL_FEDERATION_PORT to the first of some free ports "
                "(one for the SuperLink and one a site)"
            ) from None


def captured(
    command: str, *words: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder``; return its output and exit status."""
    return subprocess.run(
        [f"{BIN}/{command}", *words],
        cwd=folder,
        env=environment(SERVER, HOME),
        capture_output=True,
        text=True,
        check=False,
    )
