"""A copy of the app's own files: Flower walks all of an app's folder, the environment in it too.

In a checkout with its ``.venv`` that is 70,000 files, and four seconds for every ``flwr run``.
Standard library only.
"""

from __future__ import annotations

import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ALWAYS = ("pyproject.toml", ".gitignore")
"""What Flower reads beside the files that ``fab-include`` names."""


def copy_app(root: Path, folder: Path) -> None:
    """Copy what goes into the app of ``root`` to ``folder``: ``flwr build`` makes the same of both.

    Args:
        root: a folder with a ``pyproject.toml`` whose ``fab-include`` names every file of the app.
        folder: where the copy goes; it need not be there.
    """
    app = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    for pattern in (*ALWAYS, *(name.removeprefix("/") for name in app["fab-include"])):
        for file in root.glob(pattern):
            own = folder / file.relative_to(root)
            own.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, own)


@contextmanager
def app_alone(root: Path) -> Iterator[str]:
    """Yield a temporary folder with the app of ``root`` and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        # A temporary folder may have an underscore in its name: Flower builds no app there.
        copy_app(root, Path(folder) / "app")
        yield f"{folder}/app"
