"""A site's own ``flwr-clientapp``: runs approved apps alone, whatever a server sends.

``hdpfl-site approve`` copies this file to ``bin/flwr-clientapp`` of the folder of approved apps.
flower-superexec starts the program of that name that it finds in ``PATH``. It imports nothing of
this package, which the app brings along. Why Flower's own check is not enough:
docs/concepts/threat-model.md.
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
INSTALLS = "--allow-runtime-dependency-installation"
"""Flower's option that lets a server have packages of its choice installed."""


def main() -> None:
    """Answer one message by an approved app, or refuse it.

    Guarantees:
        Of an app whose SHA-256 was not approved no line runs, and nothing is unpacked. The server
        learns a constant text.
    """
    if INSTALLS in sys.argv:
        sys.exit(f"error: {INSTALLS} installs what a server names; start the SuperNode without it")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads it when it is imported
    cli, runtime = _import_flower()
    pin(runtime)
    cli.flwr_clientapp()


def _import_flower() -> tuple[Any, Any]:
    """Return Flower's command line and runtime, imported with the garbage collector at rest.

    A tenth of a message's CPU time: it scans what is made, none of it garbage, again and again.
    """
    gc.disable()
    try:
        cli = importlib.import_module("flwr.supernode.cli")
        return cli, importlib.import_module("flwr.supernode.runtime.run_clientapp")
    finally:
        gc.freeze()
        gc.enable()


def pin(runtime: Any) -> None:
    """Make Flower's ``runtime`` load approved apps in place of what is sent.

    Args:
        runtime: the module that answers a message: ``flwr.supernode.runtime.run_clientapp``.
    """
    sent, loader = [""], runtime.get_load_client_app_fn

    def note(content: bytes, **_: object) -> None:
        # Of the bytes that arrived, not a digest that the server names. Nothing is unpacked.
        sent[0] = hashlib.sha256(content).hexdigest()

    def load(*of_run: str) -> Any:
        folder = APPROVED / "apps" / sent[0]
        if problem := refusal(folder):
            print(f"error: {problem}", file=sys.stderr, flush=True)
            raise runtime.LoadClientAppError("not approved")
        return loader(default_app_ref="", app_path=str(folder), multi_app=True)(*of_run)

    runtime.install_from_fab = note
    runtime.get_load_client_app_fn = lambda **_: load


def refusal(folder: Path) -> str:
    """Return why the app in ``folder``, named by its SHA-256, may not run; empty if it may."""
    if not folder.is_dir():
        return (
            f"the app of this run is not approved, SHA-256 {folder.name}; nothing of it was run. "
            f"Once it is reviewed: hdpfl-site approve APP.fab --to {APPROVED}"
        )
    # Whoever may write to one of these could put other code in the place of what was approved.
    for path in (APPROVED, folder.parent, folder):
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others can write to {path}; run: chmod go-w {path}"
    return ""


if __name__ == "__main__":
    main()
