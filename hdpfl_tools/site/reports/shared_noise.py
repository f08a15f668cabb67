"""A site's words on shared noise: members with known keys, promise if more sites collude, noise."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.accounting import Gaussians, Steps, epsilon_of, event_of
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases.of_run import sent_kinds
from hdpfl_flower.shared_noise.masks import public_of
from hdpfl_flower.shared_noise.members import fingerprint_of, members_of
from hdpfl_flower.shared_noise.peers import Peers
from hdpfl_flower.shared_noise.rules import colluders_of
from hdpfl_tools.site.reports.formatting import ceil_digits
from hdpfl_tools.site.reports.ledger_view import ledger_paths, read_ledger

REMEDY = "add unknown keys with 'hdpfl-site peers add FILE'; otherwise the site declines the run"


@dataclass(frozen=True, repr=False)
class SharedPromise:
    """Promise of a site in a run with shared noise.

    Attributes:
        members: n, this site counted.
        colluders: t.
        epsilon: ε against the server and any t other members.
        beyond: number of colluding members, more than t → ε against them and the server.
    """

    members: int
    colluders: int
    epsilon: float
    beyond: dict[int, float]

    def sentence(self) -> str:
        """Return the promise in one sentence; each ε is rounded up."""
        if math.isinf(self.epsilon):
            return "without noise, whoever colludes: ε inf"
        others = self.members - 1
        more = [
            f"; if {'all' if number == others else number} collude: ε {ceil_digits(epsilon)}"
            for number, epsilon in self.beyond.items()
        ]
        return (
            f"against the server and any {self.colluders} of the {others} others: ε "
            f"{ceil_digits(self.epsilon)}{''.join(more)}"
        )

    def facts(self) -> dict[str, Any]:
        """Return the promise for JSON; None for an ε that no bound is found for."""
        beyond = {
            str(number): value if math.isfinite(value) else None
            for number, value in self.beyond.items()
        }
        return {
            "members": self.members,
            "colluders": self.colluders,
            "if-more-collude": beyond,
            "sentence": self.sentence(),
            "scope": f"shares its noise with {self.members - 1} other sites. Its ε holds if the "
            f"others follow the protocol, except for those named here: {self.sentence()}. It also "
            "depends on the ciphers X25519, HKDF and AES.",
            "left": "left under masks, with a share of the noise: the server can read only the "
            "sum of all sites.",
        }


def promise_of(plan: Plan, terms: RunTerms) -> SharedPromise | None:
    """Return the promise of a site's plan; None: the run names no members."""
    members = len(members_of(terms.members))
    if not members:
        return None
    colluders = colluders_of(terms, members)
    beyond = sorted({colluders + 1, members - 1}) if plan.noise_multiplier else []
    least = max(colluders + 2, terms.least_members)
    summed = {kind.release for kind in sent_kinds(terms) if kind.is_first}
    numbers = {
        number: _epsilon(plan, honest_noise(number, colluders, least), summed) for number in beyond
    }
    return SharedPromise(members, colluders, plan.epsilon, numbers)


def honest_noise(colluding: int, colluders: int, least: int) -> float:
    """Return the least standard deviation of the noise that honest sites add to a sum.

    A site adds a share of variance 1/(m − t) in a set of m sites, of which k collude: (m − k)/(m −
    t) is left. The server chooses the sets. Over all m this is least for m = k + 1, the site alone
    among colluders, or for the least set, if that is larger.

    Args:
        colluding: k, more than t.
        colluders: t.
        least: sites of a set, at least.

    >>> honest_noise(colluding=3, colluders=1, least=3) ** 2  # 1/3 of the variance
    0.3333333333333333
    """
    sites = max(least, colluding + 1)
    return math.sqrt((sites - colluding) / (sites - colluders))


def _epsilon(plan: Plan, left: float, summed: Set[str]) -> float:
    """Return ε of a plan whose sums have a part of their noise left; other releases keep all.

    Args:
        plan: of the site.
        left: factor on the noise of sums, the rounds among them.
        summed: other kinds of releases that are parts of a sum.
    """
    import dp_accounting

    steps = [cost for _, cost in plan.releases if isinstance(cost, Steps)]
    beside = [
        replace(cost, noise_multiplier=cost.noise_multiplier * left)
        if kind in summed and isinstance(cost, Gaussians)
        else cost
        for kind, cost in plan.releases
        if not isinstance(cost, Steps)
    ]
    rounds = event_of(plan.steps * plan.models, plan.noise_multiplier * left)
    rest = event_of(steps, plan.noise_multiplier, beside)
    return epsilon_of(dp_accounting.ComposedDpEvent([rounds, rest]), plan.delta)


def noise_of_mean(std: float, terms: RunTerms) -> float:
    """Return the noise of the mean of n sites like this one.

    Its n sums of b/z each have a noise of √(n/(n − t)) together.

    Args:
        std: noise of this site's update, if it were its own.
        terms: the run's.
    """
    members = max(len(members_of(terms.members)), 1)
    return std / math.sqrt(members * max(members - colluders_of(terms, members), 1))


def known_members(site: Profile, terms: RunTerms) -> dict[str, str]:
    """Return member → the name under which its key stands here; empty: a key that does not.

    Raises:
        LedgerError: the ledger or a key cannot be read.
    """
    peers = peers_of(site)
    names = {peer.fingerprint: peer.name for peer in peers.known()}
    if peers.has_own:
        names[fingerprint_of(public_of(peers.own()))] = "this site"
    return {name: names.get(key, "") for name, key in members_of(terms.members).items()}


def peers_of(site: Profile) -> Peers:
    """Return the keys beside the site's ledger; raises as ``read_ledger``."""
    return Peers(ledger_paths(site).path, read_ledger(site).account.begun)
