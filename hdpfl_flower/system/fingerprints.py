"""Fingerprints of public keys: as OpenSSH prints them, and as people read them out."""

from __future__ import annotations

import re

FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
"""SHA-256 of a public key in OpenSSH's form, in base64 without padding."""


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
            f"lists {len(wrong)} that are not fingerprints: write SHA256: and 43 characters each, "
            "as ssh-keygen -lf SITE.pub prints them, between commas"
        )
    if len({*parts}) < len(parts):
        raise ValueError("lists a fingerprint twice; remove one")
    return ",".join(parts)


def spoken(fingerprint: str) -> str:
    """Return a fingerprint in groups of four, to be compared on the telephone.

    >>> spoken("00112233445566778899aabbccddeeff")
    '0011 2233 4455 6677 8899 aabb ccdd eeff'
    """
    return " ".join(fingerprint[i : i + 4] for i in range(0, len(fingerprint), 4))
