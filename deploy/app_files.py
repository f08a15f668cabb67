"""Copy of the app's own files, to keep Flower's scan small.

Flower walks all of an app's folder: with its ``.venv`` 70,000 files, four seconds per ``flwr run``.
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
"""Files that Flower reads besides those in ``fab-include``."""


def copy_app(root: Path, folder: Path) -> None:
    """Copy the app's files of ``root`` to ``folder``.

    ``flwr build`` makes the same of both.

    Args:
        root: a folder; ``fab-include`` in its ``pyproject.toml`` names every file of the app.
        folder: target of the copy; it need not exist.
    """
    app = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8-sig"))["tool"]["flwr"][
        "app"
    ]
    for pattern in (*ALWAYS, *(name.removeprefix("/") for name in app["fab-include"])):
        for file in root.glob(pattern):
            target = folder / file.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


@contextmanager
def app_alone(root: Path) -> Iterator[str]:
    """Yield a temporary folder with only the app of ``root``."""
    with tempfile.TemporaryDirectory() as folder:
        # A temporary folder may have an underscore in its name: Flower builds no app there.
        copy_app(root, Path(folder) / "app")
        yield f"{folder}/app"
