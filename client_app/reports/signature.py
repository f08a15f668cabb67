"""Signature of a report by the site's own key (Ed25519), checked offline.

``REPORT.sig`` is the bare signature of all bytes of the report, ``REPORT.pub`` the public key in
PEM, so that other tools can check it, too::

    openssl pkeyutl -verify -pubin -inkey R.pub -rawin -in R -sigfile R.sig
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from hdpfl_flower.errors import DataError


def key_path(ledger: Path) -> Path:
    """Return the file of the site's signing key, beside its ledger."""
    return ledger.with_name(f"{ledger.name}.signing-key")


def beside(report: Path) -> tuple[Path, Path]:
    """Return the files of a report's signature and public key."""
    return report.with_name(f"{report.name}.sig"), report.with_name(f"{report.name}.pub")


def signed(content: bytes, key_file: Path) -> tuple[bytes, bytes]:
    """Return the signature of ``content``, and the public key in PEM.

    The key is made, mode 0600, where there is none.

    Raises:
        DataError: the key cannot be read or made.
    """
    with contextlib.suppress(FileExistsError):
        _make(key_file)
    try:
        key = load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise DataError(f"{key_file} is no Ed25519 key that this user can read; restore it")
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return key.sign(content), public


def _make(path: Path) -> None:
    content = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    try:
        # Never over a key that is there: recipients know its public half.
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from None


def fingerprint(public: bytes) -> str:
    """Return the first half of the SHA-256 of a public key in PEM, as text.

    Raises:
        DataError: it is no such key.
    """
    raw = _public(public).public_bytes(Encoding.Raw, PublicFormat.Raw)
    digits = hashlib.sha256(raw).hexdigest()[:32]
    return " ".join(digits[at : at + 4] for at in range(0, 32, 4))


def check(report: Path, public_file: Path) -> str:
    """Return the fingerprint of the key by which ``report`` is signed.

    Raises:
        DataError: a file is missing, or report and signature are not of that key.
    """
    signature_file = beside(report)[0]
    read = {}
    for path in (report, signature_file, public_file):
        try:
            read[path] = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
    try:
        _public(read[public_file]).verify(read[signature_file], read[report])
    except InvalidSignature:
        raise DataError(
            f"{report} is NOT as it was signed by this key: the report, its signature or the key "
            "was changed; ask the site for all three again"
        ) from None
    return fingerprint(read[public_file])


def _public(pem: bytes) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise DataError("the public key is no Ed25519 key in PEM; ask the site for it again")
    return key
