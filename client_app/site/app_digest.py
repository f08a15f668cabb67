"""SHA-256 of the app that is running: what an approval of a run is bound to, beside the terms.

At a site whose launcher pins apps (``client_app/approval/launcher.py``) it is the bundle's, which
names the folder that the code runs from. Anywhere else it is computed from the package's files;
whoever sends other code there can send code that answers anything, so that only a pinned app makes
an approval binding.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

PACKAGES = ("hdpfl_flower", "strategies", "client_app", "server_app")
_ROOT = Path(__file__).parents[2]


def app_digest(root: Path = _ROOT) -> str:
    """Return the SHA-256, hexadecimal, of the app in ``root``; by default of the one that runs."""
    return root.name if is_pinned(root) else _digest_of_files(root)


def is_pinned(root: Path = _ROOT) -> bool:
    """Return whether ``root`` is a folder of approved apps, named by the SHA-256 of its bundle."""
    return root.parent.name == "apps" and re.fullmatch("[0-9a-f]{64}", root.name) is not None


@lru_cache(maxsize=4)
def _digest_of_files(root: Path) -> str:
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            content = path.read_bytes()
            # The length first: else bytes could move from one file to the next.
            digest.update(f"{path.relative_to(root)}\n{len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()
