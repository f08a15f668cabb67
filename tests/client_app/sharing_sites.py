"""Deployed sites that share noise, each with the keys of the others, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from client_app.training import sum_part
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.shared_noise.masks import public_of
from hdpfl_flower.shared_noise.members import PART, fingerprint_of, write_set
from hdpfl_flower.shared_noise.peers import Peer, Peers
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from tests.client_app.messages import make_site, model_in, send, terms_of

Part = npt.NDArray[np.uint64]
EPSILONS = ("1.2345678", "0.7345678", "4.2345678", "1.2345678")
"""Of sites a to d, up to nine digits long: they are searched for in texts."""
ALLOWED = "[policy]\nshared-noise = true\n"


def peers_of(profile: Path) -> Peers:
    """Return the keys beside a profile's ledger."""
    ledger = profile.parent / "ledger.sqlite"
    with_account = Ledger(ledger)
    begun = with_account.account().begun
    with_account.close()
    return Peers(ledger, begun)


def make_sites(
    folder: Path,
    epsilons: Sequence[str] = EPSILONS,
    *,
    batch: str = "61",
    more: str = ALLOWED,
    rows: Sequence[int] = (61, 61, 61, 61, 61, 61),
) -> dict[str, Path]:
    """Return the profiles of sites by name, each knowing the keys of all others."""
    profiles = {}
    for number, epsilon in enumerate(epsilons):
        name = "abcdef"[number]
        profile = profiles[name] = make_site(folder / name, more=more, rows=rows[number])
        text = profile.read_text().replace("batch-size = 7", f"batch-size = {batch}")
        profile.write_text(text.replace("1.2345678", epsilon).replace("2.4691356", "9.4691356"))
        ledger = Ledger(profile.parent / "ledger.sqlite")
        ledger.raise_cap(float("inf") if epsilon == "inf" else 9.4691356, 1e-5)
        ledger.close()
        if epsilon == "inf":
            profile.write_text(profile.read_text().replace("9.4691356", "inf"))
    exchange(profiles)
    return profiles


def exchange(profiles: dict[str, Path]) -> None:
    """Give every site the public keys of all others."""
    keys = {name: public_of(peers_of(path).own(make=True)) for name, path in profiles.items()}
    for name, path in profiles.items():
        for other, key in keys.items():
            if other != name:
                peers_of(path).add(Peer(other, key))


def shared_terms(profiles: dict[str, Path], **more: Any) -> RunTerms:
    """Return the terms of a run whose members are these sites."""
    keys = {name: public_of(peers_of(path).own()) for name, path in profiles.items()}
    members = ",".join(f"{name}={fingerprint_of(key)}" for name, key in keys.items())
    return terms_of(**{"noise": "shared", "members": members, **more})


def ask_part(
    profile: Path,
    terms: RunTerms,
    numbers: Iterable[int] | str = (0, 1, 2, 3),
    server_round: int = 1,
    model: ArrayRecord | None = None,
) -> Message:
    """Ask a site for its part of a round's sum."""
    together = numbers if isinstance(numbers, str) else write_set([*numbers])
    content = server_wire.write_instructions(
        terms, server_round, model or model_in(terms, server_round), of_noise=together
    )
    return send({"profile": str(profile)}, wire.TRAIN, content)


def part_in(reply: Message) -> Part:
    """Return the masked part of a reply."""
    assert reply.has_content(), reply.error
    data = reply.content[PART][PART].data
    return server_wire.read_numbers(PART, reply.content, (len(data) - 128) // 8, "uint64")


def total_of(
    profiles: dict[str, Path],
    terms: RunTerms,
    numbers: Iterable[int] | None = None,
    server_round: int = 1,
) -> Part:
    """Return the sum of the parts of a round's sites, as the server computes it."""
    names = list(profiles)
    together = list(range(len(names)) if numbers is None else numbers)
    parts = [
        part_in(ask_part(profiles[names[number]], terms, together, server_round))
        for number in together
    ]
    total: Part = np.sum(parts, axis=0, dtype=np.uint64)
    return total


@contextmanager
def without_noise() -> Iterator[None]:
    """Let sites answer without their shares of the noise: for what lies below it."""
    silent = mock.patch.object(
        sum_part, "share_of_noise", lambda count, *_: np.zeros(count, np.uint64)
    )
    with silent:
        yield


@contextmanager
def encoded_parts() -> Iterator[list[Part]]:
    """Collect what sites encode, before noise and masks."""
    parts: list[Part] = []
    encode = sum_part.encode

    def noting(values: npt.NDArray[np.float64]) -> Part:
        parts.append(encode(values).copy())
        return parts[-1].copy()

    with mock.patch.object(sum_part, "encode", noting):
        yield parts


class Hospitals(LocalGrid):
    """Deployed sites by name, each with its own profile; some may be away in some rounds.

    Attributes:
        away: round → names of the sites that do not answer it.
        asked: round and name of each request for a part.
    """

    def __init__(self, profiles: dict[str, Path], away: dict[int, set[str]] | None = None) -> None:
        super().__init__(0)
        self.away, self.asked = away or {}, list[tuple[int, str]]()
        self.names = dict(enumerate(profiles, start=2))
        self._contexts: dict[int, Any] = {
            node: Context(1, node, {"profile": str(profiles[name])}, RecordDict(), {})
            for node, name in self.names.items()
        }

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=name) for node, name in self.names.items()]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        there = []
        for message in messages:
            name = self.names[message.metadata.dst_node_id]
            asked = wire.read_instructions(message.content)
            if message.metadata.message_type == wire.TRAIN:
                self.asked.append((asked.server_round, name))
            if name not in self.away.get(asked.server_round, set()):
                there.append(message)
        return super().send_and_receive(there, timeout=timeout)
