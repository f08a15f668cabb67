"""Public files of weights, known by SHA-256: a start of a run, or a frozen backbone.

A file lies in ``$HDPFL_HOME/weights`` under its digest. Terms carry the digest, never a path or a
number: no server can name a file at a site, and a site reads only files that its operator added.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from hdpfl_flower.errors import DataError
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.paths import home

DIGEST = re.compile("sha256:[0-9a-f]{64}")
MOST_BYTES = 4_000_000_000


def weight_file(digest: str) -> Path:
    """Return the place of the file with that digest, there or not."""
    return home() / "weights" / digest.removeprefix("sha256:")


def add_weights(path: Path) -> str:
    """Copy a file to its place; return its digest, ``sha256:`` and 64 digits.

    Raises:
        DataError: the file is missing, or too large.
    """
    content = _read(path)
    digest = digest_of(content)
    place = weight_file(digest)
    if not place.is_file():
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(place, content)
    return digest


def read_file(digest: str) -> bytes:
    """Return the content of the file with that digest.

    Raises:
        DataError: the file is not at its place, or its content has another digest.
    """
    place = weight_file(digest)
    content = _read(place)
    if digest_of(content) != digest:
        raise DataError(f"{place} has another digest than its name; add the file again")
    return content


def digest_of(content: bytes) -> str:
    """Return ``sha256:`` and 64 digits."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(f"weights: {path} is larger than {MOST_BYTES:,} bytes")
        return path.read_bytes()
    except OSError:
        raise DataError(
            f"weights: there is no file {path} that this user can read; correct the path, or name "
            "the digest, 'sha256:…', of a file added with: hdpfl-site approve FILE"
        ) from None
