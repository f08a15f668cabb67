"""Base of two-step averaging over privacy levels: FedHDP, baselines.

FedHDP (federated learning with heterogeneous differential privacy, TMLR), Algorithm 1. Where the
noise is added is the term ``noise``:

* ``records``: each site's DP-SGD, as everywhere in this package; the server averages.
* ``client``: each site clips its whole update and noises it; the server averages.
* ``server``: the server clips, noises and accounts for each level (``central_dp.py``).

Threat model: with ``noise = "server"`` the server is trusted with clipped updates without noise,
with who took part (so its journal is not for others), and with the noise; the adversary sees every
model. Else it is trusted with nothing. Sites disclose their ε: the level is public.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.config.settings import NotNegative, Settings
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.privacy.adaptive_clipping import next_clip_norm, share_within
from hdpfl_flower.privacy.central_dp import (
    CentralPlan,
    clipped_rows,
    clipped_sum,
    make_central_plan,
    noisy_mean,
)
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Declaration, Disclosed, HDPStrategy
from strategies.core.interface import RoundSetup, RoundStart
from strategies.core.privacy_statement import describe_levels
from strategies.fedhdp.auto_weights import (
    AutoState,
    RoundCounts,
    auto_mean,
    known_variances,
    measure_part,
    weigh_part,
)
from strategies.fedhdp.levels import (
    AUTO,
    PRECISION,
    assign_levels,
    plain_means,
    ratio_weights,
    read_ratios,
    site_weights,
)
from strategies.fedhdp.span import keep_span

log = logging.getLogger("hdpfl.server")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CLIP_BOUNDS = 1e-3, 100.0
"""Least and largest clip norm of ``noise = server``."""
CLIP_QUANTILE = 0.5
"""Share of the updates within the clip norm that it moves to: the median, as in the papers."""
BIT_NOISE = 5.0
"""Standard deviation of the noise on the sum of clipping bits; raised where a level needs more."""
TOO_STRICT = "asks for more privacy than any level offers"


@dataclass(frozen=True)
class Levels:
    """The levels of a run, settled before round 1.

    Attributes:
        menu: ε of each level, the loosest first.
        level_of: site → its level; a site that joins later is added.
        own: site → the ε that it disclosed.
        plan: the server's noise, where it adds it.
    """

    menu: tuple[float, ...]
    level_of: dict[str, int]
    own: dict[str, float]
    plan: CentralPlan | None = None


@dataclass(frozen=True)
class LevelState:
    """The state of two-step averaging.

    Attributes:
        levels: None before the sites are known.
        clip_norm: of the next round, where it adapts; None: that of the terms.
        auto: what the weights are estimated from.
    """

    levels: Levels | None = None
    clip_norm: float | None = None
    auto: AutoState = field(default_factory=AutoState)


class LevelSettings(Settings):
    """Adaptation of the clip norm where the server adds the noise."""

    clip_lr: NotNegative = Field(
        0.2,
        description="noise = server: rate at which clip-norm moves to the median norm of the "
        "updates. 0 means that it stays.",
    )


class LevelAveraging(HDPStrategy):
    """Two-step averaging; a subclass defines the levels (``menu``, ``assign_levels``)."""

    settings_type: ClassVar[type[Settings]] = LevelSettings
    settings: LevelSettings

    def declare(self) -> Declaration:
        """Declare ε, and whether the update is a weighted sum.

        With ``noise = server`` the update holds the server's clipping and noise, and with ``auto``
        ratios its directions have weights of their own.
        """
        at_sites, ratio = self.terms.source.site_plans, self.level_ratio.strip()
        is_sum = at_sites and ratio != AUTO
        return Declaration(
            frozenset({"epsilon"}),
            is_weighted_sum=is_sum,
            round_alone=True,
            is_convex=is_sum,
            weights_alone=False,
            adds_noise=True,
            noisy_updates=at_sites,
            # Sites are asked, heard and refused by the server's tosses alone: its account is of
            # Poisson samples.
            any_asking=at_sites,
            uneven_noise=ratio not in (AUTO, PRECISION),
        )

    # --- defined by a subclass -----------------------------------------------------------------

    @abstractmethod
    def menu(self, epsilons: Floats) -> tuple[float, ...]:
        """Return ε of each level, loosest first, from disclosed ε."""

    @property
    def level_ratio(self) -> str:
        """Relative weight of a stricter level's client, see ``read_ratios``."""
        return "1"

    def assign_levels(self, epsilons: Floats, menu: tuple[float, ...]) -> Ints:
        """Return each site's level; −1 for an excluded site."""
        return assign_levels(epsilons, menu)

    # --- before the first round ----------------------------------------------------------------

    def initial_state(self, disclosed: Disclosed | None = None) -> LevelState:
        """Return the levels, each site's level, and each level's noise.

        Raises:
            StrategyError: no site is in a level.
            TermsError: the ratios do not fit the levels.
            AccountingError: no noise can pay for the rounds.
        """
        if disclosed is None:
            return LevelState()
        own = {site: float(facts["epsilon"]) for site, facts in disclosed.items()}
        sites, epsilons = list(own), np.array(list(own.values()))
        menu = self.menu(epsilons)
        levels = self.assign_levels(epsilons, menu)
        level_of = {s: int(j) for s, j in zip(sites, levels, strict=True) if j >= 0}
        if not level_of:
            raise StrategyError(
                "'fedhdp.levels': every site asks for more privacy than any level offers"
            )
        for site in set(sites) - set(level_of):
            log.warning("site %s is left out: %s", site, TOO_STRICT)
        read_ratios(self.level_ratio, len(menu))
        plan = self._central_plan(menu, level_of) if not self.terms.source.site_plans else None
        return LevelState(Levels(menu, level_of, own, plan))

    def privacy(self, state: LevelState) -> dict[str, Any]:
        """Return each level's ε and size, and sites without privacy."""
        levels = state.levels or Levels((), {}, {})
        spent = self.spending(levels)
        return describe_levels(self.terms, levels.menu, levels.level_of, spent, levels.plan)

    def spending(self, levels: Levels) -> dict[str, float]:
        """Return each site's own ε, as it discloses it."""
        cap = self.terms.epsilon_cap or math.inf
        return {site: min(levels.own[site], cap) for site in levels.level_of}

    # --- a round -------------------------------------------------------------------------------

    def begin_round(self, state: LevelState, start: RoundStart) -> RoundSetup:
        """Return the adapted clip norm, and refuse sites that no level fits; newcomers join."""
        terms = self.terms
        if state.clip_norm is not None:
            terms = terms.updated(clip_norm=state.clip_norm)
        levels, refused = self._admitted(state.levels or Levels((), {}, {}), start)
        return RoundSetup(replace(state, levels=levels), terms, refused)

    def combine(
        self, state: LevelState, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[LevelState, Outcome]:
        """Return the mean over the levels' means (Algorithm 1).

        The journal's ``level-J-weight`` and ``level-J-sites`` count the levels from 1, the
        loosest; with ``auto`` the weights are those within the span of earlier updates
        (``span.py``). With ``noise = server`` there may be no row at all; private levels
        release their noise all the same.
        """
        epsilons = updates.disclosed["epsilon"]
        settled = state.levels or Levels((), {}, {})
        menu, plan = settled.menu or self.menu(epsilons), settled.plan
        levels = self.assign_levels(epsilons, menu)
        counts = np.bincount(levels[levels >= 0], minlength=len(menu)).astype(np.float64)
        gauges: dict[str, float] = {}
        if plan is not None:
            means, within = self._central_means(plan, updates, levels, noise)
            state, clip = self._next_clip_norm(state, plan, within, len(levels), noise)
            gauges.update(clip)
            private = np.array([each.private for each in plan.levels])
            sizes = np.array([each.clients for each in plan.levels], dtype=np.float64)
            # A level without privacy and without an update has no mean to weigh. A private level
            # releases its noise all the same: an empty round must not show.
            sizes[~private & (counts == 0)] = 0
            # A private level's sum is divided by q·Nⱼ, a constant: the number of answers is
            # private.
            divisors = np.where(private, [each.expected for each in plan.levels], counts)
        else:
            means = plain_means(updates.updates, levels, len(menu))
            sizes = divisors = counts
        settled = replace(settled, menu=menu)
        auto, weights, mean = self._weigh(state.auto, settled, updates, levels, means, sizes)
        gauges.update({f"level-{j + 1}-weight": float(w) for j, w in enumerate(weights)})
        gauges.update({f"level-{j + 1}-sites": float(n) for j, n in enumerate(counts)})
        update = mean.astype(np.float32)
        # The share of one site of a level: the level's weight over the divisor of its sum.
        shares = np.divide(weights, divisors, out=np.zeros_like(weights), where=divisors > 0)
        outcome = Outcome(update, site_weights(shares, levels), gauges)
        return replace(state, auto=auto), outcome

    # --- parts ---------------------------------------------------------------------------------

    def _central_plan(self, menu: tuple[float, ...], level_of: dict[str, int]) -> CentralPlan:
        terms, settings = self.terms, self.settings
        counts = np.bincount(list(level_of.values()), minlength=len(menu)).tolist()
        return make_central_plan(
            menu,
            counts,
            terms.delta,
            self.server.fraction,
            terms.rounds,
            BIT_NOISE if settings.clip_lr else 0.0,
        )

    def _admitted(self, levels: Levels, start: RoundStart) -> tuple[Levels, dict[str, str]]:
        """Return the levels with new sites, and reasons against others."""
        sites, disclosed, refused = start.sites, start.disclosed, dict[str, str]()
        level_of, own = dict(levels.level_of), dict(levels.own)
        epsilons = np.array([disclosed[site]["epsilon"] for site in sites])
        found = self.assign_levels(epsilons, levels.menu) if len(sites) else ()
        for site, epsilon, now in zip(sites, epsilons.tolist(), map(int, found), strict=True):
            if now < 0:
                refused[site] = TOO_STRICT
            elif levels.plan and not levels.plan.levels[now].clients:
                refused[site] = (
                    "its level had no site when the run began, so the level has no noise"
                )
            else:
                own.setdefault(site, epsilon)
                joined = level_of.setdefault(site, now)
                if joined != now:
                    refused[site] = "claims another level than at its join"
        return replace(levels, level_of=level_of, own=own), refused

    def _central_means(
        self, plan: CentralPlan, updates: RoundUpdates, levels: Ints, noise: RandomStream
    ) -> tuple[Floats, int]:
        """Return each level's mean, noisy if private, and the count of 1 bits."""
        rows, clip_norm = updates.updates, self.terms.clip_norm
        means, bits = np.zeros((len(plan.levels), rows.shape[1])), 0
        for j, level in enumerate(plan.levels):
            chosen = np.flatnonzero(levels == j)
            total, within = clipped_sum(rows, clip_norm, chosen, updates.squares)
            bits += within
            if level.private and level.clients:
                means[j] = noisy_mean(total, level, clip_norm, noise)
            elif not level.private and len(chosen):
                means[j] = total / len(chosen)
        return means, bits

    def _next_clip_norm(
        self, state: LevelState, plan: CentralPlan, within: int, count: int, noise: RandomStream
    ) -> tuple[LevelState, dict[str, float]]:
        """Return the state with the next clip norm, and gauges of it."""
        clip_norm = self.terms.clip_norm
        gauges = {"clip_norm": clip_norm}
        if not plan.bit_noise:
            return state, gauges
        expected = plan.sampling_prob * sum(level.clients for level in plan.levels)
        # One draw on the sum of all levels' bits; the plan accounts for it beside the updates.
        drawn = plan.bit_noise * float(noise.normal(1)[0])
        share = share_within(within, count, expected, drawn)
        new = next_clip_norm(clip_norm, share, CLIP_QUANTILE, self.settings.clip_lr, CLIP_BOUNDS)
        return replace(state, clip_norm=float(new)), {**gauges, "share_within": share}

    def _weigh(
        self,
        state: AutoState,
        settled: Levels,
        updates: RoundUpdates,
        levels: Ints,
        means: Floats,
        sizes: Floats,
    ) -> tuple[AutoState, Floats, Floats]:
        """Return the levels' weights and the mean; levels of size 0 have weight 0."""
        ratios = read_ratios(self.level_ratio, len(sizes))
        if ratios is not None or len(sizes) == 1 or not sizes.any():
            fixed = ratio_weights(sizes, ratios or (1.0,)) if sizes.any() else sizes
            return state, fixed, fixed @ means
        everybody = ratio_weights(sizes, np.ones(len(sizes)))
        counts = np.bincount(levels[levels >= 0], minlength=len(sizes)).astype(np.float64)
        members = list(settled.level_of.values())
        totals = np.bincount(members, minlength=len(sizes)) if members else sizes
        crowd = RoundCounts(
            counts, np.asarray(totals, dtype=np.float64), sizes > 0, self.terms.rounds
        )
        known = known_variances(settled.plan, self.terms.clip_norm, len(sizes))
        rows = {
            j: self._as_summed(updates.updates[levels == j], settled.plan)
            for j in np.flatnonzero(np.isnan(known.constant)).tolist()
        }
        if self.level_ratio.strip() == PRECISION:
            part = measure_part(rows, means, known.of(means.shape[1]))
            averages, found = weigh_part(state.averages, "whole", part, crowd, by_noise_alone=True)
            weights = everybody if found is None else found
            return replace(state, averages=dict(averages)), weights, weights @ means
        state, weights, mean = auto_mean(state, rows, means, known, crowd, everybody)
        opted_out = [j for j, e in enumerate(settled.menu) if math.isinf(e) and j in rows]
        # After the weighing: a round's span is made of earlier rounds' updates alone.
        for j in opted_out:
            state = replace(state, kept=keep_span(state.kept, rows[j]))
        return state, weights, mean

    def _as_summed(
        self, rows: npt.NDArray[np.float32], plan: CentralPlan | None
    ) -> npt.NDArray[np.float32]:
        """Return the mean's rows, clipped if the server clips."""
        return rows if plan is None else clipped_rows(rows, self.terms.clip_norm)
