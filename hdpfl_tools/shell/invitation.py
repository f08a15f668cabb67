"""Invitation of a site: one signed file of all that it needs to join, and of nothing secret.

A ZIP file with ``manifest.json`` (facts, and the SHA-256 of every other file), ``signature`` (of
the manifest, ECDSA by the key of the federation's CA) and the files. The CA's certificate is one of
them, so that the signature proves who wrote the file only to a reader who has compared the CA's
fingerprint by another way.
"""

from __future__ import annotations

import hashlib
import io
import ipaddress
import json
import re
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hdpfl_flower import formats
from hdpfl_flower.config.named_files import is_path
from hdpfl_flower.config.tables_of_terms import OPEN, flattened
from hdpfl_flower.config.terms import MOST_CHARACTERS, MOST_TERMS
from hdpfl_flower.config.toml_text import BOM, form_fault
from hdpfl_flower.errors import DeploymentError
from hdpfl_flower.system.weight_files import DIGEST

CA, APP, TERMS, MORE = "ca.crt", "app.fab", "run.toml", "files/"
"""Files of an invitation; under ``MORE`` are other public ones, such as keys of sites."""
MANIFEST, SIGNATURE = "manifest.json", "signature"
SUFFIX: Final = ".invitation"
MOST_BYTES: Final = 2**26
"""Bytes of an invitation, and of all its files together."""
MOST_FILES: Final = 2**11
_MOST_LISTED, _MOST_MANIFEST = 2**8 * MOST_FILES, 2**20
"""Bytes of the ZIP file's list of its files, and of the manifest."""
_MORE = re.compile(rf"{MORE}[A-Za-z0-9_-][A-Za-z0-9._-]{{0,99}}")
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ADDRESS = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[([0-9A-Fa-f:.]+)\]):([0-9]{1,5})")
_SIGN = ec.ECDSA(hashes.SHA384())
_FACTS = ("site", "address", "coordinator", "purpose")


@dataclass(frozen=True, repr=False)
class Invitation:
    """An invitation.

    Attributes:
        site: name under which the site is registered.
        address: HOST:PORT of the coordinator, for SuperNodes.
        coordinator: who asks, in the coordinator's words.
        purpose: of the run, likewise.
        files: name → content; ``CA``, ``APP`` and ``TERMS`` are there.

    Guarantees:
        ``site`` is safe as a file's name and ``address`` as a word of a shell; ``coordinator`` and
        ``purpose`` are one printable line each. Another one raises ``DeploymentError`` by its name.
    """

    site: str
    address: str
    coordinator: str
    purpose: str
    files: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if not _SITE.fullmatch(self.site):
            raise DeploymentError(
                "'site' is not a valid name of a site; a name has at most 100 characters: letters "
                "of A to Z, digits, '.', '_' and '-', and begins with a letter or a digit"
            )
        if not _is_address(self.address):
            raise DeploymentError(
                "'address' is not HOST:PORT, such as flower.example.org:8000 or [2001:db8::1]:8000"
            )
        for name in ("coordinator", "purpose"):
            text = getattr(self, name)
            if len(text) > MOST_CHARACTERS or not text.isprintable():
                raise DeploymentError(
                    f"'{name}' is not one line of at most {MOST_CHARACTERS} printable characters"
                )
            object.__setattr__(self, name, text.strip())

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the CA's public key, 32 hexadecimal digits."""
        key = _key_of(self.files[CA])
        encoded = key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return hashlib.sha256(encoded).hexdigest()[:32]

    def signed(self, ca_key: bytes) -> bytes:
        """Return the file.

        Args:
            ca_key: private key of the CA, PEM.

        Raises:
            DeploymentError: the key is none, or is not that of the certificate.
        """
        try:
            key = serialization.load_pem_private_key(ca_key, None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise DeploymentError("ca.key is damaged; restore it")
        if key.public_key() != _key_of(self.files[CA]):
            raise DeploymentError("ca.key and ca.crt belong to two federations; restore both")
        facts = {name: getattr(self, name) for name in _FACTS}
        digests = {name: _digest(content) for name, content in sorted(self.files.items())}
        manifest = json.dumps(
            {"format": formats.INVITATION.newest, **facts, "files": digests}, indent=1
        ).encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(MANIFEST, manifest)
            archive.writestr(SIGNATURE, key.sign(manifest, _SIGN))
            for name, content in sorted(self.files.items()):
                archive.writestr(name, content)
        return buffer.getvalue()


def read_invitation(path: Path) -> Invitation:
    """Return the invitation in a file, after every check of its contents.

    Raises:
        DeploymentError: it is not as its coordinator signed it, or the terms name a file of this
            machine. The file within it that was changed, is missing or was added is named where
            that can be told.
    """
    contents = _contents(path)
    manifest, signature = (contents.pop(name, b"") for name in (MANIFEST, SIGNATURE))
    try:
        facts = json.loads(manifest if len(manifest) <= _MOST_MANIFEST else b"")
        formats.INVITATION.check(facts["format"])
        digests = {str(name): str(digest) for name, digest in facts["files"].items()}
        texts = {name: str(facts[name]) for name in _FACTS}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise DeploymentError(
            f"{path}: '{MANIFEST}' is damaged or missing; ask for the file again"
        ) from None
    for name in sorted(digests.keys() | contents.keys()):
        if name not in contents or digests.get(name) != _digest(contents[name]):
            raise DeploymentError(
                f"{path}: '{name}' is not as the coordinator signed it; do not join, and ask for "
                "the file again"
            )
    if missing := {CA, APP, TERMS} - contents.keys():
        raise DeploymentError(f"{path}: '{min(missing)}' is missing; ask for the file again")
    if odd := [name for name in contents if not _is_known(name)]:
        raise DeploymentError(f"{path}: '{odd[0]}' does not belong in an invitation; do not join")
    try:
        _key_of(contents[CA]).verify(signature, manifest, _SIGN)
    except InvalidSignature:
        raise DeploymentError(
            f"{path}: '{MANIFEST}' is not as the coordinator signed it; do not join, and ask for "
            "the file again"
        ) from None
    try:
        invitation = Invitation(files=contents, **texts)
    except DeploymentError as error:
        raise DeploymentError(f"{path}: {error}; do not join, and ask for another file") from None
    if fault := _terms_fault(contents[TERMS]):
        raise DeploymentError(f"{path}: '{TERMS}' {fault}; do not join, and ask for another file")
    return invitation


def _contents(path: Path) -> dict[str, bytes]:
    """Return the files of a ZIP file, bounded in number and size before any is unpacked."""
    fault = "it is damaged"
    try:
        with path.open("rb") as file:
            content = file.read(min(path.stat().st_size, MOST_BYTES) + 1)
        if not (fault := _size_fault(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                entries = archive.infolist()
                if not (fault := _entries_fault(entries)):
                    return {entry.filename: _unpacked(archive, entry) for entry in entries}
    except OSError as error:
        fault = error.strerror or fault
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError):
        fault = "it is damaged"
    raise DeploymentError(
        f"{path} cannot be read as an invitation: {fault}; ask for the file again"
    )


def _size_fault(content: bytes) -> str:
    """Return why reading the list of a ZIP file's files would cost too much; empty: it does not."""
    if len(content) > MOST_BYTES:
        return "it is too large"
    end = content[-22:]  # the record of the list, without a comment; before it no 64-bit one
    if end[:4] != b"PK\5\6" or end[-2:] != b"\0\0" or content[-42:-38] == b"PK\6\7":
        return "it is damaged"
    listed = int.from_bytes(end[12:16], "little")
    return "it has too many files" if listed > _MOST_LISTED else ""


def _entries_fault(entries: list[zipfile.ZipInfo]) -> str:
    """Return why the files of a ZIP file are not unpacked; empty: they are."""
    if len(entries) > MOST_FILES or len({entry.filename for entry in entries}) < len(entries):
        return "it has too many files, or a file twice"
    if sum(entry.file_size for entry in entries) > MOST_BYTES:
        return "it is too large"
    # zipfile bounds what one read unpacks for these two alone.
    known = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    is_known = all(entry.compress_type in known for entry in entries)
    return "" if is_known else "a file in it is packed by another method than deflate"


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return a file of the size that the list says; a read without a size unpacks without bound."""
    with archive.open(entry) as file:
        return file.read(entry.file_size + 1)


def _terms_fault(content: bytes) -> str:
    """Return why terms are refused; empty: they can be read, and name no file of this machine."""
    if len(content) > MOST_TERMS:
        return f"is longer than {MOST_TERMS} bytes"
    try:
        text = content.decode().removeprefix(BOM)
        if fault := form_fault(text):
            return f"is not valid: {fault}"
        pairs = [*flattened(tomllib.loads(text))]
    except (ValueError, RecursionError):
        return "is not valid TOML"
    for key, value in pairs:
        is_weights = key in ("start", "backbone.weights") and isinstance(value, str)
        if (key == "schema" and is_path(value)) or (
            is_weights and value not in ("", OPEN) and not DIGEST.fullmatch(value)
        ):
            return f"names a file of this machine by '{key}'"
    return ""


def _is_address(text: str) -> bool:
    """Return whether a text is HOST:PORT; an IPv6 address stands in brackets."""
    matched = _ADDRESS.fullmatch(text)
    if matched is None or not 0 < int(matched[2]) < 2**16:
        return False
    try:
        return matched[1] is None or bool(ipaddress.IPv6Address(matched[1]))
    except ValueError:
        return False


def _is_known(name: str) -> bool:
    return name in (CA, APP, TERMS) or _MORE.fullmatch(name) is not None


def _key_of(certificate: bytes) -> ec.EllipticCurvePublicKey:
    try:
        key = x509.load_pem_x509_certificate(certificate).public_key()
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise DeploymentError(f"{CA} is not a certificate of 'hdpfl certs'; restore it")
    return key


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
