"""A site's ``flwr-clientapp``: approved apps only, whichever app a server sends.

``hdpfl-site approve`` copies this file to ``bin/flwr-clientapp`` of the folder of approved apps.
flower-superexec starts the program of that name that it finds in ``PATH``. It imports nothing of
this package, which the app brings along. Why Flower's own check is not enough:
docs/concepts/threat-model.md.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.util
import os
import stat
import sys
from pathlib import Path
from typing import Any

APPROVED = Path(__file__).resolve().parents[1]
INSTALLS = "--allow-runtime-dependency-installation"
"""Flower option by which a server has packages installed."""
BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def main() -> None:
    """Answer one message by an approved app, or refuse it.

    Guarantees:
        Of an app whose SHA-256 was not approved no line runs, and nothing is unpacked. The server
        learns a constant text.
    """
    if INSTALLS in sys.argv:
        sys.exit(f"error: {INSTALLS} installs what a server names; start the SuperNode without it")
    importer = _load_importer()
    if sys.argv[1:2] == [importer.HOLD]:
        hold_imports(importer, sys.argv[2:])
        return
    place = None
    if app := only_app():
        home = os.environ.get("FLWR_HOME") or os.path.expanduser("~/.flwr")  # noqa: PTH111
        place = importer.find_place(home, f"{Path(__file__).stat().st_mtime_ns} {app}")
        if place and (status := importer.answer(place)) is not None:
            sys.exit(status)
    cli, runtime = _import_flower()
    pin(runtime)
    try:
        cli.flwr_clientapp()
    finally:
        importer.after_message(place)


def hold_imports(importer: Any, words: list[str]) -> None:
    """Import the one approved app; answer messages by its children (importer.py)."""
    app = only_app()
    if app is None or refusal(app):
        return
    serving = importer.Importer(words, lambda: only_app() == app)
    threads = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = "1"  # read at the import; no thread may exist before a fork
    cli, runtime = _import_flower()
    config = importlib.import_module("flwr.common.config").get_project_config(app)
    reference = config["tool"]["flwr"]["app"]["components"]["clientapp"]
    load = importlib.import_module("flwr.supercore.object_ref").load_app
    for name in getattr(load(reference, runtime.LoadClientAppError, app), "imported_later", ()):
        importlib.import_module(name)
    os.environ.pop(BLAS_THREADS)
    if threads is not None:
        os.environ[BLAS_THREADS] = threads
    if serving.serve():
        pin(runtime, app)
        importer.run_and_exit(cli.flwr_clientapp)


def only_app() -> Path | None:
    """Return the approved app's folder, if exactly one exists."""
    apps = APPROVED / "apps"
    found = [path for path in apps.glob("*") if not path.name.startswith(".")]
    return found[0] if len(found) == 1 else None


def _load_importer() -> Any:
    """Return the module ``lib/importer.py`` beside this script's folder."""
    path = APPROVED / "lib" / "importer.py"
    spec = importlib.util.spec_from_file_location("hdpfl_importer", path)  # its MODULE
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _import_flower() -> tuple[Any, Any]:
    """Return Flower's command line and runtime, imported without garbage collection.

    A tenth of a message's CPU time: it scans what is made, none of it garbage, again and again.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads it when it is imported
    gc.disable()
    try:
        cli = importlib.import_module("flwr.supernode.cli")
        return cli, importlib.import_module("flwr.supernode.runtime.run_clientapp")
    finally:
        gc.freeze()
        gc.enable()


def pin(runtime: Any, imported: Path | None = None) -> None:
    """Make Flower's ``runtime`` load approved apps, never the sent one.

    Args:
        runtime: the module that answers a message: ``flwr.supernode.runtime.run_clientapp``.
        imported: folder of the app whose modules this process has imported; no other may run here,
            since Python would take those modules for the other's.
    """
    sent, loader = [""], runtime.get_load_client_app_fn

    def note(content: bytes, **_: object) -> None:
        # Of the bytes that arrived, not a digest that the server names. Nothing is unpacked.
        sent[0] = hashlib.sha256(content).hexdigest()

    def load(*of_run: str) -> Any:
        folder = APPROVED / "apps" / sent[0]
        problem = refusal(folder)
        if not problem and imported not in (None, folder):
            problem = f"{folder.name} was approved a moment ago; the next message runs it"
        if problem:
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
            f"Once it is reviewed: hdpfl-site approve APP.fab --to {APPROVED}"
        )
    # Write access to one of these would allow other code in place of the approved.
    for path in (APPROVED, folder.parent, folder):
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others can write to {path}; run: chmod go-w {path}"
    return ""


if __name__ == "__main__":
    main()
