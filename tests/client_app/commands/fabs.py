"""Small apps as Flower ships them, and what a SuperNode does with one."""

from __future__ import annotations

import hashlib
import importlib
import io
import sys
import zipfile
from types import ModuleType

MODULES = ("sent_app", "own_app")
CODE = "from flwr.clientapp import ClientApp\napp = ClientApp()\n"


def pyproject(module: str, version: str) -> str:
    return f"""
[project]
name = "hdpfl-flower"
version = "{version}"
[tool.flwr.app]
publisher = "hdpfl"
[tool.flwr.app.components]
serverapp = "{module}:app"
clientapp = "{module}:app"
"""


def bundle(module: str, version: str, **more: bytes) -> bytes:
    """Return an app as Flower ships it; ``more`` are modules, by name."""
    files = {"pyproject.toml": pyproject(module, version).encode(), f"{module}.py": CODE.encode()}
    return pack({**files, **{f"{name}.py": data for name, data in more.items()}})


def pack(files: dict[str, bytes], listed: dict[str, bytes] | None = None) -> bytes:
    """Return a bundle of ``files`` that lists ``listed``, or what it holds."""
    rows = [
        f"{name},{hashlib.sha256(data).hexdigest()},8" for name, data in (listed or files).items()
    ]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in {**files, ".info/CONTENT": "\n".join(rows).encode()}.items():
            archive.writestr(zipfile.ZipInfo(name), data)  # of 1980: the same bytes every time
    return stream.getvalue()


def supernode_runtime() -> ModuleType:
    return importlib.import_module("flwr.supernode.runtime.run_clientapp")


def run_what_is_sent(runtime: ModuleType, fab: bytes, version: str) -> str:
    """Install and load an app as a SuperNode does; returns the file of the code that was run."""
    runtime.install_from_fab(fab, skip_prompt=True)
    load = runtime.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    load("hdpfl/hdpfl-flower", version, hashlib.sha256(fab).hexdigest())
    (module,) = (sys.modules[module] for module in MODULES if module in sys.modules)
    return str(module.__file__)
