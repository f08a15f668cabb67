"""SHA-256 of the running app, to which approvals are bound.

Where a site's launcher pins apps (``hdpfl_tools/site/approval/launcher.py``) it is the bundle's,
which names the folder that the code runs from. Anywhere else it is computed from all files of the
packages, but for Python's own ``__pycache__``;
whoever sends other code there can send code that answers anything, so that only a pinned app makes
an approval binding.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path

PACKAGES = ("hdpfl_flower", "strategies", "client_app", "server_app")
_ROOT = Path(__file__).parents[2]


def app_digest(root: Path = _ROOT) -> str:
    """Return the SHA-256 (hexadecimal) of the app in ``root``."""
    return root.name if is_pinned(root) else _digest_of_files(root)


def is_pinned(root: Path = _ROOT) -> bool:
    """Return whether ``root`` is named by its approved bundle's SHA-256."""
    return root.parent.name == "apps" and re.fullmatch("[0-9a-f]{64}", root.name) is not None


@lru_cache(maxsize=4)
def _digest_of_files(root: Path) -> str:
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if "__pycache__" in path.parts or not path.is_file():
                continue
            content = path.read_bytes()
            # The length first: else bytes could move from one file to the next. No name holds \0.
            digest.update(b"%s\0%d\0" % (os.fsencode(path.relative_to(root)), len(content)))
            digest.update(content)
    return digest.hexdigest()
