"""Fingerprints of the nodes' public keys, as OpenSSH prints them."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache

FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
"""SHA-256 of a public key in OpenSSH's form, in base64 without padding."""


@lru_cache(maxsize=4096)
def fingerprint_of(public_key: bytes) -> str:
    """Return the fingerprint of a key in PEM, as Flower registers it; empty for other bytes.

    It is that of ``ssh-keygen -lf KEY.pub``. A simulated node has no key.

    >>> fingerprint_of(b"32 random bytes of a simulation")
    ''
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
    )

    try:
        key = load_pem_public_key(public_key)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    if not isinstance(key, EllipticCurvePublicKey):  # the only ones that Flower registers
        return ""
    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def listed(text: str) -> list[str]:
    """Return the parts of a list between commas.

    >>> listed(" a, b,")
    ['a', 'b']
    """
    return [stripped for entry in text.split(",") if (stripped := entry.strip())]


def check_listed(text: str) -> str:
    """Return a list of fingerprints in one form.

    Raises:
        ValueError: a part is none, or stands there twice.
    """
    parts = listed(text)
    if wrong := [entry for entry in parts if not FINGERPRINT.fullmatch(entry)]:
        raise ValueError(
            f"lists {len(wrong)} that are no fingerprint: write SHA256: and 43 characters each, "
            "as ssh-keygen -lf SITE.pub prints them, between commas"
        )
    if len({*parts}) < len(parts):
        raise ValueError("lists a fingerprint twice; remove one")
    return ",".join(parts)
