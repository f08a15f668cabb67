"""Keys of simulated sites for shared noise, drawn from the run's seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.shared_noise.masks import pair_secret, public_of
from hdpfl_tools.simulation.sites import SimulatedSite


@dataclass(frozen=True)
class SimulatedPeers:
    """Keys of a simulated site and of all others; see ``peers.Secrets``.

    Attributes:
        seed: of the simulation.
        index: of the site's partition.
        count: of partitions.
    """

    seed: int
    index: int
    count: int

    def number(self, terms: RunTerms) -> int:
        """Return the partition, which is the site's number; raises ``Declined``."""
        if terms.members:
            raise Declined(
                Reason.TERMS,
                "'members' lists keys, but simulated sites draw their own keys; leave it out",
            )
        return self.index

    def blur(self) -> bytes:
        """Return the site's key."""
        return private_key(self.seed, self.index)

    def secrets(self, terms: RunTerms, numbers: tuple[int, ...]) -> dict[int, bytes]:
        """Return number → secret, of the other sites of a set; raises ``Declined``."""
        if self.number(terms) < 0 or max(numbers) >= self.count:
            raise Declined(
                Reason.TERMS, "a name in the round's set is not the name of a simulated site"
            )
        others = [number for number in numbers if number != self.index]
        return {other: _secret(self.seed, *sorted((self.index, other))) for other in others}


def peers_of(site: SimulatedSite) -> SimulatedPeers:
    """Return the keys that the seed draws for a site."""
    return SimulatedPeers(site.config.simulation.seed, site.place.index, site.place.number)


def sites_of(site: SimulatedSite) -> int:
    """Return the number of all simulated sites."""
    return site.place.number


def private_key(seed: int, index: int) -> bytes:
    """Return the key of a simulated site, 32 bytes."""
    return hashlib.sha256(repr(("hdpfl simulated key", seed, index)).encode()).digest()


@lru_cache(maxsize=2**16)
def _secret(seed: int, first: int, second: int) -> bytes:
    return pair_secret(private_key(seed, first), public_of(private_key(seed, second)))
