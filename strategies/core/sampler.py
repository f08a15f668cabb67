"""Who is asked in a round: by the terms' seed and the round, within each site's participations.

What a site spends is the site's own to count (``ledger.py``); the counts here only spare a request
that it would decline. Nobody's privacy rests on them, and no amplification is claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError
from strategies.core.public_split import split_public

REDRAWS = 50
"""A round without a public site is drawn again so often at most, as PFA's authors do."""


class Sampler:
    """Draws the sites of every round of a run.

    Attributes:
        used_up: why nobody is left to ask, empty while somebody is; the run is at its end then,
            and complete.
    """

    def __init__(self, terms: RunTerms) -> None:
        """Begin a run of ``terms``, with nobody asked."""
        self.terms, self.used_up = terms, ""
        self._asked: Counter[str] = Counter()
        self._left: set[str] = set()
        self._known: dict[str, float] = {}

    def heard(self, declined: Iterable[str]) -> None:
        """Take note of who declined the round that was drawn last.

        Under a common ``noise-multiplier`` a site declines when its ε is used up, which only it
        knows: it is not asked again.
        """
        if self.terms.noise_multiplier:
            self._left.update(declined)

    def keep(self) -> dict[str, Any]:
        """Return what was counted and heard so far, as JSON can hold it."""
        return {"asked": dict(self._asked), "left": sorted(self._left), "known": dict(self._known)}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from what :meth:`keep` returned; the order of the sites known is part of it."""
        self._asked, self._left = Counter(kept["asked"]), set(kept["left"])
        self._known = dict(kept["known"])

    def public_sites(self, others: Mapping[str, float]) -> frozenset[str]:
        """Return the public sites, one split for all that use it: among all sites so far.

        Whoever is asked in a round, or answers, changes nothing.

        Args:
            others: ε of sites that may not have been online in any draw.
        """
        known = {**others, **self._known}
        mask = _split(tuple(known.values()), self.terms.public_split)
        return frozenset(site for site, loose in zip(known, mask, strict=True) if loose)

    def draw(
        self, server_round: int, sites: Sequence[str], epsilons: Mapping[str, float]
    ) -> list[str]:
        """Return the sites to ask, in order; none when all are used up, or nobody fits.

        ``fraction`` of ``sites`` is drawn from those that have a participation left, or all of
        these where they are fewer. The run is at its end when nobody is left, when fewer are left
        than an explicit ``quorum``, or, with ``require-public``, when no public site is left.

        Args:
            server_round: from 1.
            sites: the sites online that take part, in order.
            epsilons: what they disclosed; read with ``require-public`` alone. Who is public is
                decided among all sites so far, not among those drawn: among those drawn somebody
                always has the largest ε.

        Raises:
            StrategyError: with ``require-public``: no site is public, or none in 51 draws.
        """
        self._known.update({site: epsilons.get(site, 0.0) for site in sites})
        public = self._public()
        self.used_up = self._why_used_up(public)
        left = [site for site in sites if not self._spent(site)]
        if self.used_up or not public & set(left):
            return []
        count = min(max(1, round(self.terms.fraction * len(sites))), len(left))
        for attempt in range(REDRAWS + 1):
            drawn = self._draw(server_round, attempt, left, count)
            if public & set(drawn):
                self._asked.update(drawn)
                return drawn
        raise StrategyError(
            f"round {server_round}: no public site in {REDRAWS + 1} draws; raise 'fraction' or "
            "loosen 'public-split'"
        )

    def _draw(self, server_round: int, attempt: int, left: list[str], count: int) -> list[str]:
        if count == len(left):
            return left
        key = [self.terms.seed, server_round, attempt]
        # The first attempt is what a run without 'require-public' draws.
        generator = np.random.default_rng(key if attempt else key[:2])
        return [left[i] for i in sorted(generator.choice(len(left), count, replace=False))]

    def _public(self) -> set[str]:
        """Return the sites of which a round needs one: all, unless a public one is required."""
        sites, split = list(self._known), self.terms.public_split
        if not self.terms.require_public or not sites:
            return set(sites)
        public = set(self.public_sites({}))
        if not public:
            raise StrategyError(
                f"'require-public': 'public-split' = '{split}' calls no site public; loosen it, or "
                "unset 'require-public'"
            )
        return public

    def _spent(self, site: str) -> bool:
        return site in self._left or 0 < self.terms.participations <= self._asked[site]

    def _why_used_up(self, public: set[str]) -> str:
        """Return why the run is at its end; sites that are away still count as left."""
        left = {site for site in self._known if not self._spent(site)}
        if len(left) == len(self._known):
            return ""  # nobody is used up: a lack of sites has another reason
        if not left:
            return "the sites' budgets are used up"
        if len(left) < self.terms.quorum:
            return "the budgets of all but a few sites, fewer than 'quorum', are used up"
        return "" if public & left else "the public sites' budgets are used up"


@lru_cache(maxsize=16)
def _split(epsilons: tuple[float, ...], split: str) -> tuple[bool, ...]:
    """Return which sites are public; the same sites come round after round."""
    return tuple(split_public(np.array(epsilons), split).tolist())
