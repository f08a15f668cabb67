"""Key pairs of nodes in OpenSSH's formats."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True, repr=False)
class Pair:
    """Private key with its public part, as files hold them."""

    private: bytes
    public: bytes


def make_site_keys(site: str) -> Pair:
    """Return a new key pair in OpenSSH's formats, for SuperNodes."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return Pair(private, public + f" {site}\n".encode())


def node_fingerprint(public: bytes) -> str:
    """Return the fingerprint of a public key, as ``ssh-keygen -lf`` prints it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
