"""A site's programs for Flower's tasks: approved ClientApps only, whatever a server sends.

``hdpfl-site approve`` copies this file to ``bin/flwr-clientapp`` of the folder of approved apps,
and links to it the name of every other program that a task can start. flower-superexec starts the
program of a task's type, and the server states that type. It imports nothing of this package, which
the app brings along. Why Flower's own check is not enough: docs/concepts/threat-model.md.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import stat
import sys
from pathlib import Path
from typing import Any

APPROVED = Path(__file__).resolve().parents[1]
PROGRAM = "flwr-clientapp"
"""Only program name under which an approved app runs."""
INSTALLS = "--allow-runtime-dependency-installation"
"""Flower option by which a server has packages installed."""


def main() -> None:
    """Answer one message by an approved app, or by a refusal.

    Guarantees:
        No line of an app without an approved SHA-256 runs, and nothing is unpacked or installed.
        A message of any type of task gets an answer, so that the node never waits for one. The
        server learns a constant text.
    """
    program = Path(sys.argv[0]).name
    fault = (
        "" if program == PROGRAM else f"a server asked for {program}, but only {PROGRAM} runs here"
    )
    if INSTALLS in sys.argv:
        sys.argv.remove(INSTALLS)
        fault = f"{INSTALLS} installs what a server names; start the SuperNode without it"
    cli, runtime = _import_flower()
    pin(runtime, fault)
    cli.flwr_clientapp()


def _import_flower() -> tuple[Any, Any]:
    """Return Flower's command line and runtime, imported without garbage collection.

    The collector scans all imported objects, none of them garbage, again and again: a tenth of a
    message's CPU time.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads it when it is imported
    gc.disable()
    try:
        cli = importlib.import_module("flwr.supernode.cli")
        return cli, importlib.import_module("flwr.supernode.runtime.run_clientapp")
    finally:
        gc.freeze()
        gc.enable()


def pin(runtime: Any, fault: str = "") -> None:
    """Make Flower's ``runtime`` load approved apps, never the sent one.

    Args:
        runtime: the module that answers a message: ``flwr.supernode.runtime.run_clientapp``.
        fault: a reason to refuse every app, for the site's log.
    """
    sent, loader = [""], runtime.get_load_client_app_fn

    def note(content: bytes, **_: object) -> None:
        # Of the bytes that arrived, not a digest that the server names. Nothing is unpacked.
        sent[0] = hashlib.sha256(content).hexdigest()

    def load(*of_run: str) -> Any:
        folder = APPROVED / "apps" / sent[0]
        if problem := fault or refusal(folder):
            print(f"error: {problem}", file=sys.stderr, flush=True)
            raise runtime.LoadClientAppError("not approved")
        return loader(default_app_ref="", app_path=str(folder), multi_app=True)(*of_run)

    runtime.install_from_fab = note
    runtime.get_load_client_app_fn = lambda **_: load


def refusal(folder: Path) -> str:
    """Return a reason against the app in ``folder`` (SHA-256 name), or empty."""
    if not folder.is_dir():
        return (
            f"the app of this run is not approved, SHA-256 {folder.name}; nothing of it was run. "
            f"After a review: hdpfl-site approve APP.fab --to {APPROVED}"
        )
    # Write access to one of these would allow other code in place of the approved.
    for path in (APPROVED, folder.parent, folder):
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others can write to {path}; run: chmod go-w {path}"
    return ""


if __name__ == "__main__":
    main()
