"""Small apps as Flower ships them, and what a SuperNode does with one."""

from __future__ import annotations

import hashlib
import importlib
import io
import sys
import zipfile
from pathlib import Path
from types import ModuleType

from hdpfl_tools.site.approval.fab import CONTENT, Bundle, install

MODULES = ("sent_app", "own_app")
MODULE = "client_app.app"
"""Where an app that may be approved starts."""
CODE = "from flwr.clientapp import ClientApp\napp = ClientApp()\n"


def pyproject(module: str, version: str) -> str:
    return f"""
[project]
name = "hdpfl-flower"
version = "{version}"
[tool.flwr.app]
publisher = "hdpfl"
[tool.flwr.app.components]
serverapp = "{module.replace("client", "server")}:app"
clientapp = "{module}:app"
"""


def bundle(module: str, version: str, **more: bytes) -> bytes:
    """Return an app as Flower ships it; ``more`` are modules, by name."""
    modules = {module: CODE.encode(), **more}
    files = {f"{name.replace('.', '/')}.py": data for name, data in modules.items()}
    return pack({"pyproject.toml": pyproject(module, version).encode(), **files})


def pack(files: dict[str, bytes], listed: dict[str, bytes] | None = None) -> bytes:
    """Return a bundle of ``files`` that lists ``listed``, or what it holds."""
    rows = [
        f"{name},{hashlib.sha256(data).hexdigest()},{8 * len(data)}"
        for name, data in (listed or files).items()
    ]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in {**files, ".info/CONTENT": "\n".join(rows).encode()}.items():
            archive.writestr(zipfile.ZipInfo(name), data)  # of 1980: the same bytes every time
    return stream.getvalue()


def install_bundle(content: bytes, folder: Path) -> Path:
    """Write an app among the approved ones as it is, whether or not it could be approved."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name != CONTENT}
    return install(Bundle("hdpfl/x", "1", hashlib.sha256(content).hexdigest(), files), folder)


def supernode_runtime() -> ModuleType:
    return importlib.import_module("flwr.supernode.runtime.run_clientapp")


def run_what_is_sent(runtime: ModuleType, fab: bytes, version: str) -> str:
    """Install and load an app as a SuperNode does; returns the file of the code that was run."""
    runtime.install_from_fab(fab, skip_prompt=True)
    load = runtime.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    load("hdpfl/hdpfl-flower", version, hashlib.sha256(fab).hexdigest())
    (module,) = (sys.modules[module] for module in MODULES if module in sys.modules)
    return str(module.__file__)
