"""Sampler of a round's sites, by seed and round.

A site keeps its own account (``ledger.py``); the counts here only spare a request that it would
decline. No site's privacy rests on them, and no amplification is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from strategies.core.public_split import parse_split, split_public

REDRAWS = 50
"""Most redraws of a round without a public site (PFA's authors)."""


@dataclass
class SamplerState:
    """Counts of a sampler over a run.

    Attributes:
        asked: site → rounds in which it was asked.
        left: the sites that declined for good.
        known: site → disclosed ε of every site so far; the order is part of the state.
    """

    asked: dict[str, int] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    known: dict[str, float] = field(default_factory=dict)


class Sampler:
    """Draws the sites of every round of a run.

    Attributes:
        state: of the run so far.
        used_up: why no site is left to ask, empty while one is; the run is at its end then, and
            complete.
    """

    def __init__(self, config: RunConfig) -> None:
        """Prepare the sampling of ``config``; raises ``TermsError`` for an unknown split."""
        parse_split(config.server.public_split)
        self.terms, self.server, self.used_up = config.terms, config.server, ""
        self._seed = config.simulation.seed
        self.state = SamplerState()

    def note_declined(self, declined: Iterable[str]) -> None:
        """Record the sites that declined the last round.

        Under a common ``noise-multiplier`` a site declines when its ε is used up, which only it
        knows: it is not asked again.
        """
        if self.terms.noise_multiplier:
            self.state.left.update(declined)

    def public_sites(self, others: Mapping[str, float]) -> frozenset[str]:
        """Return the public sites among all sites so far.

        It does not depend on the sites asked or heard in a round.

        Args:
            others: ε of sites that may not have been online in any draw.
        """
        epsilons = {**others, **self.state.known}
        mask = _split(tuple(epsilons.values()), self.server.public_split)
        return frozenset(site for site, loose in zip(epsilons, mask, strict=True) if loose)

    def draw(
        self, server_round: int, sites: Sequence[str], epsilons: Mapping[str, float]
    ) -> list[str]:
        """Return the sites to ask, in order; none when all are used up.

        ``fraction`` of ``sites`` is drawn from those that have a participation left, or all of
        these where they are fewer. The run is at its end when no site is left, when fewer are left
        than an explicit ``quorum``, or, with ``require-public``, when no public site is left.

        Args:
            server_round: from 1.
            sites: the sites online that take part, in order.
            epsilons: the disclosed ε; read with ``require-public`` alone. The public sites are
                those of all sites so far, not of those drawn: among those drawn one always has the
                largest ε.

        Raises:
            StrategyError: with ``require-public``: no site is public, or none in 51 draws.
        """
        self.state.known.update({site: epsilons.get(site, 0.0) for site in sites})
        public = self._public()
        self.used_up = self._why_used_up(public)
        left = [site for site in sites if not self._spent(site)]
        if self.used_up or not public & set(left):
            return []
        # A share of all sites online, not of those left: rounds keep their size as budgets are used
        # up.
        count = min(max(1, round(self.server.fraction * len(sites))), len(left))
        for attempt in range(REDRAWS + 1):
            drawn = self._draw(server_round, attempt, left, count)
            if public & set(drawn):
                for site in drawn:
                    self.state.asked[site] = self.state.asked.get(site, 0) + 1
                return drawn
        raise StrategyError(
            f"round {server_round}: no public site in {REDRAWS + 1} draws; raise 'fraction' or "
            "loosen 'public-split'"
        )

    def _draw(self, server_round: int, attempt: int, left: list[str], count: int) -> list[str]:
        if count == len(left):
            return left
        key = [self._seed, server_round, attempt]
        # The first attempt is the draw of a run without 'require-public'.
        generator = np.random.default_rng(key if attempt else key[:2])
        # In the sites' order, which float32 sums depend on.
        return [left[i] for i in sorted(generator.choice(len(left), count, replace=False))]

    def _public(self) -> set[str]:
        """Return the sites of which a round needs one."""
        sites, split = list(self.state.known), self.server.public_split
        if not self.server.require_public or not sites:
            return set(sites)
        public = set(self.public_sites({}))
        if not public:
            raise StrategyError(
                f"'require-public' is set, but 'public-split' = '{split}' calls no site public; "
                "loosen 'public-split', or unset 'require-public'"
            )
        return public

    def _spent(self, site: str) -> bool:
        asked = self.state.asked.get(site, 0)
        return site in self.state.left or 0 < self.terms.participations <= asked

    def _why_used_up(self, public: set[str]) -> str:
        """Return why the run is at its end, if it is; absent sites are not used up."""
        if not (self.terms.participations or self.state.left):
            return ""  # no budget is used up: a lack of sites has another reason
        left = {site for site in self.state.known if not self._spent(site)}
        if len(left) == len(self.state.known):
            return ""
        if not left:
            return "the sites' budgets are used up"
        if len(left) < self.server.quorum:
            return "the budgets are used up at so many sites that fewer than 'quorum' are left"
        return "" if public & left else "the public sites' budgets are used up"


@lru_cache(maxsize=16)
def _split(epsilons: tuple[float, ...], split: str) -> tuple[bool, ...]:
    """Return which sites are public, cached over rounds."""
    return tuple(split_public(np.array(epsilons), split).tolist())
