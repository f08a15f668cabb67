"""Pairwise masks that vanish in the sum of a set of sites.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017),
without its shares of secrets: each pair of sites expands a common key into a mask, which one adds
and the other subtracts. A set with a missing site has no sum, and its round is lost.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.shared_noise.ring import Ring

_LABEL = b"hdpfl shared noise 1"
_AT_ONCE = 2**18
"""Numbers of a mask made at once: they stay in a core's cache."""


def pair_secret(private_key: bytes, public_key: bytes) -> bytes:
    """Return the secret of two sites, by X25519; both compute the same.

    Args:
        private_key: own, 32 bytes.
        public_key: of the other, 32 bytes.

    Raises:
        ValueError: the public key is of small order, so that anybody knows the secret.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    own = X25519PrivateKey.from_private_bytes(private_key)
    return own.exchange(X25519PublicKey.from_public_bytes(public_key))


def public_of(private_key: bytes) -> bytes:
    """Return the public key of a private one, each 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def add_masks(part: Ring, secrets: Mapping[int, bytes], own: int, request: str) -> None:
    """Add the masks of a round to a site's part, in place.

    Args:
        part: of the sum, shape ``(d,)``.
        secrets: number of every other site of the set → secret with it.
        own: the site's number.
        request: digest of the request: terms, round, model and set. A site answers a request once,
            so that no mask hides two vectors.

    Guarantees:
        Over all sites of the set, under one request, the masks sum to 0. To whoever knows none of
        the secrets of two of its sites, their parts are uniform but for their sum, unless AES-256,
        HKDF with SHA-256 or X25519 is broken.
    """
    for number in sorted(secrets):
        stream = RandomStream(_mask_key(secrets[number], sorted((own, number)), request))
        for start in range(0, len(part), _AT_ONCE):
            some = part[start : start + _AT_ONCE]
            mask = np.frombuffer(stream.bytes(8 * len(some)), "<u8")
            # Unsigned integers wrap: this is arithmetic modulo 2⁶⁴.
            (np.add if own < number else np.subtract)(some, mask, out=some)


def _mask_key(secret: bytes, pair: list[int], request: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    context = b"|".join([_LABEL, f"{pair[0]}-{pair[1]}".encode(), request.encode()])
    return HKDF(SHA256(), length=32, salt=None, info=context).derive(secret)
