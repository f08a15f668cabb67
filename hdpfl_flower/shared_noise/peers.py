"""A site's key for shared noise, and the keys of its peers, beside its ledger.

The folder ``LEDGER.peers`` holds ``own.key`` (0600: a private X25519 key and the beginning of the
ledger that it belongs to) and a file a peer, which the operator has added by ``hdpfl-site peers
add`` after a look at its fingerprint. The key belongs to one ledger: that ledger knows which rounds
it has masked, and a new ledger would mask other vectors by the same masks.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined, LedgerError, Reason
from hdpfl_flower.shared_noise.masks import pair_secret, public_of
from hdpfl_flower.shared_noise.members import fingerprint_of, members_of
from hdpfl_flower.system.files import replace_file, sync

SUFFIX: Final = ".peer"
"""Of a peer's file: one line, :data:`HEAD`, its name and its public key."""
HEAD: Final = "hdpfl-peer-1"
_KEY_HEAD, _OWN, _KEY_BYTES = "hdpfl-key-1", "own.key", 32
MOST_PEER_BYTES: Final = 1000
"""Bytes of a peer's file at most: others have sent it."""


class Secrets(Protocol):
    """Secrets of a site with the members of a run."""

    def number(self, terms: RunTerms) -> int:
        """Return the site's number among the members; raises ``Declined`` for a stranger."""

    def secrets(self, terms: RunTerms, numbers: tuple[int, ...]) -> dict[int, bytes]:
        """Return number → secret, of the other sites of a set; raises ``Declined``."""

    def blur(self) -> bytes:
        """Return the secret of the constant by which the site's weight is multiplied."""


@dataclass(frozen=True)
class Peer:
    """A site, as its file names it.

    Attributes:
        name: as its operator calls it.
        public_key: 32 bytes.
    """

    name: str
    public_key: bytes

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint, as runs and people name it."""
        return fingerprint_of(self.public_key)

    def line(self) -> str:
        """Return the file's text."""
        return f"{HEAD} {self.name} {self.public_key.hex()}\n"


def read_peer(path: Path) -> Peer:
    """Return the peer in a file.

    Raises:
        LedgerError: it is none, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            head, name, key = file.read(MOST_PEER_BYTES).decode("ascii").split()
        public_key = bytes.fromhex(key)
    except (OSError, ValueError):
        head, name, public_key = "", "", b""
    if head != HEAD or not is_name(name) or len(public_key) != _KEY_BYTES:
        raise LedgerError(
            f"{path} is not the file of a peer; let the peer's site write one: "
            "hdpfl-site peers show --to FILE"
        )
    return Peer(name, public_key)


def is_name(name: str) -> bool:
    """Return whether a peer may have a name: up to 100 letters, digits, '-', '_' and '.'."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    return 0 < len(name) <= 100 and plain.isascii() and plain.isalnum() and name[0] != "."


def folder_of(ledger: Path) -> Path:
    """Return the folder of keys beside a ledger."""
    return ledger.with_name(ledger.name + ".peers")


@dataclass(frozen=True, repr=False)
class Peers:
    """Keys of a deployed site: its own and those of the peers that its operator knows.

    Attributes:
        ledger: path of the ledger.
        begun: time of the ledger's first entry, to which the own key belongs.
    """

    ledger: Path
    begun: str

    @property
    def folder(self) -> Path:
        """Folder of the keys."""
        return folder_of(self.ledger)

    @property
    def has_own(self) -> bool:
        """Whether the site has made a key."""
        return (self.folder / _OWN).exists()

    def known(self) -> list[Peer]:
        """Return the added peers by name; raises ``LedgerError`` for a damaged file."""
        return [read_peer(path) for path in sorted(self.folder.glob(f"*{SUFFIX}"))]

    def own(self, *, make: bool = False) -> bytes:
        """Return the private key, 32 bytes.

        Args:
            make: whether to make one where there is none.

        Raises:
            LedgerError: there is none, others can read it, or it belongs to another ledger.
        """
        path = self.folder / _OWN
        try:
            head, key, begun = path.read_text("ascii").split()
            private_key, mode = bytes.fromhex(key), path.stat().st_mode
        except FileNotFoundError:
            if make:
                return self._made(path)
            raise LedgerError(
                "this site has no key for shared noise; make one: hdpfl-site peers show"
            ) from None
        except (OSError, ValueError):
            head, private_key, begun, mode = "", b"", "", 0
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise LedgerError(f"{path} can be read by others; run: chmod 600 {path}")
        if head != _KEY_HEAD or len(private_key) != _KEY_BYTES:
            raise LedgerError(f"{path} is damaged; restore it, or remove it for a new key")
        if begun != self.begun:
            raise LedgerError(
                f"{path} belongs to another ledger, and it has masked rounds of that ledger: "
                "remove it, and give a new key to all peers: hdpfl-site peers show"
            )
        return private_key

    def _made(self, path: Path) -> bytes:
        private_key = os.urandom(_KEY_BYTES)
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            text = f"{_KEY_HEAD} {private_key.hex()} {self.begun}\n"
            replace_file(path, text.encode(), durable=True)
            sync(self.folder)
        except OSError as error:
            raise LedgerError(f"{path} cannot be written: {error.strerror}") from None
        return private_key

    def add(self, peer: Peer) -> None:
        """Store a peer.

        Raises:
            LedgerError: its key is this site's or another peer's, or its name has another key.
        """
        for known in self.known():
            if known.name == peer.name and known != peer:
                raise LedgerError(
                    f"'{peer.name}' has another key here; ask its operator why it changed, then: "
                    f"hdpfl-site peers remove {peer.name}"
                )
            if known.public_key == peer.public_key and known.name != peer.name:
                raise LedgerError(
                    f"'{known.name}' has this key already, and two sites must not share a key"
                )
        if peer.public_key == public_of(self.own(make=True)):
            raise LedgerError("this is the site's own key")
        try:
            replace_file(self.folder / f"{peer.name}{SUFFIX}", peer.line().encode(), durable=True)
        except OSError as error:
            raise LedgerError(f"{self.folder} cannot be written: {error.strerror}") from None

    def remove(self, name: str) -> None:
        """Remove a peer; raises ``LedgerError`` if there is none of that name."""
        if not is_name(name) or not (self.folder / f"{name}{SUFFIX}").is_file():
            raise LedgerError(
                f"there is no peer '{name}' here; list the peers: hdpfl-site peers list"
            )
        (self.folder / f"{name}{SUFFIX}").unlink()

    def number(self, terms: RunTerms) -> int:
        """Return the site's number among the run's members.

        Raises:
            Declined: the members lack this site, or have one whose key is not here.
            LedgerError: there is no usable key.
        """
        members = members_of(terms.members)
        if not members:
            raise Declined(Reason.TERMS, "'members' is empty: no key of a member can be compared")
        own = fingerprint_of(public_of(self.own()))
        known = {peer.fingerprint for peer in self.known()} | {own}
        strangers = [name for name, key in members.items() if key not in known]
        if strangers:
            raise Declined(
                Reason.POLICY,
                f"'members' has keys that this site does not know, of: {', '.join(strangers)}; "
                "compare their fingerprints with their operators, then: hdpfl-site peers add FILE",
            )
        if own not in members.values():
            raise Declined(Reason.TERMS, "'members' does not list this site's key")
        return list(members.values()).index(own)

    def blur(self) -> bytes:
        """Return a secret of this site's key; raises as :meth:`own`."""
        return self.own()

    def secrets(self, terms: RunTerms, numbers: tuple[int, ...]) -> dict[int, bytes]:
        """Return number → secret, of the other sites of a set.

        Raises:
            Declined: as :meth:`number`, or the set names no member, or a key is of small order.
            LedgerError: there is no usable key.
        """
        own, number = self.own(), self.number(terms)
        members = list(members_of(terms.members).values())
        keys = {peer.fingerprint: peer.public_key for peer in self.known()}
        try:
            return {
                other: pair_secret(own, keys[members[other]])
                for other in numbers
                if other != number
            }
        except IndexError:
            raise Declined(Reason.TERMS, "the round's set names no member of the run") from None
        except ValueError:
            raise Declined(
                Reason.POLICY,
                "the key of a peer is not a valid key: remove the peer, and ask for its file again",
            ) from None
