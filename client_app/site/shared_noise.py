"""Keys and checks of a site with shared noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from client_app.site.site import Site
from hdpfl_flower import wire
from hdpfl_flower.errors import Declined, Reason, WireError
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.shared_noise.masks import add_masks
from hdpfl_flower.shared_noise.members import check_sharing, members_of, read_set
from hdpfl_flower.shared_noise.peers import Peers, Secrets
from hdpfl_flower.shared_noise.ring import (
    GRID,
    LEAST_NOISE,
    LIMIT,
    encode,
    scale_of,
    share_of_noise,
)
from hdpfl_flower.shared_noise.rules import colluders_of
from hdpfl_flower.system.tools import tool
from hdpfl_flower.wire import Instructions


def secrets_of(site: Site) -> Secrets:
    """Return the keys of the site and its peers.

    A simulation draws those of sites without a profile of their own from its seed. Raises as
    ``site.ledger``.
    """
    if site.profile.simulated:
        peers: Secrets = tool("simulation.shared_keys").peers_of(site)
        return peers
    return Peers(site.ledger.path, site.ledger.account().begun)


def members(site: Site) -> int:
    """Return the number of members that share a run's noise."""
    named = len(members_of(site.terms.members))
    if named or not site.simulated:
        return named
    return int(tool("simulation.shared_keys").sites_of(site))


def check_run(site: Site) -> None:
    """Refuse members, colluders or a size beyond the share.

    No record is read and nothing is charged.

    Raises:
        Declined: a member's key is not here, the run grants fewer colluders than the profile asks
            for, or the site's part would not fit into the ring.
        LedgerError: the site has no usable key, or no usable ledger.
    """
    terms, policy = site.terms, site.profile.policy
    secrets_of(site).number(terms)
    if colluders_of(terms, members(site)) < policy.least_colluders:
        raise Declined(Reason.POLICY, "'colluders' is below 'policy.least-colluders'")
    plan = site.paid_plan.plan
    quietest = max(plan.noise_multiplier, LEAST_NOISE)
    # Twice the expected batch: beyond it a sum is clamped, which costs accuracy and no privacy.
    if 2 * plan.divisor / quietest > LIMIT * GRID:
        raise Declined(Reason.PROFILE, "'training.batch-size' is too large for the ring of the sum")


@dataclass(frozen=True, repr=False)
class SumSet:
    """Members of a sum, as one of them sees them.

    Attributes:
        own: the site's number.
        honest: n − t, the members that are assumed to be honest.
        secrets: shared with each other member, for the masks.
    """

    own: int
    honest: int
    secrets: Mapping[int, bytes]

    @classmethod
    def of(cls, site: Site, text: str) -> Self:
        """Return the set of a message's head.

        Raises:
            Declined: it lacks this site or is too small, or has a member without a key here.
            WireError: the text is none of a set.
        """
        terms, peers = site.terms, secrets_of(site)
        try:
            numbers = read_set(text) if text else ()
        except ValueError:
            fault = "instructions: the sites of the sum are not written as a set"
            raise WireError(fault) from None
        own, colluders = peers.number(terms), colluders_of(terms, members(site))
        least = max(terms.least_members, site.profile.policy.least_members)
        if fault := check_sharing(numbers, own, colluders, least):
            raise Declined(Reason.TERMS, fault)
        return cls(own, len(numbers) - colluders, peers.secrets(terms, numbers))


def masked_part(
    site: Site,
    instructions: Instructions,
    exact: Callable[[], npt.NDArray[np.float64]],
    noise_multiplier: float,
    noise: RandomStream,
) -> Callable[[], bytes]:
    """Return the work of a masked part of a sum of vectors.

    Args:
        site: member of the sum.
        instructions: of the request, which names the members and whose digest makes the masks.
        exact: the vector's computation, shape ``(n,)``; a record moves it by at most 1.
        noise_multiplier: z of the site.
        noise: of this release alone.

    Raises:
        Declined: as :meth:`SumSet.of`; or the site holds small counts back, which a sum hides.

    Guarantees:
        As ``SumPart.run``: one Gaussian mechanism of the multiplier z.
    """
    if site.profile.policy.min_count:
        raise Declined(
            Reason.POLICY,
            "'policy.min-count' is for the counts of this site, but noise = 'shared' sums the "
            "counts of all sites; set it to 0 to allow such a run",
        )
    shared_by = SumSet.of(site, instructions.of_noise)

    def work() -> bytes:
        vector = exact()
        size = len(vector)
        part = encode(vector * scale_of(max(noise_multiplier, LEAST_NOISE), 1.0, size))
        part += share_of_noise(size, shared_by.honest, noise)
        add_masks(part, shared_by.secrets, shared_by.own, instructions.digest)
        return wire.encode(part, "uint64")

    return work
