"""Two-step averaging over privacy levels: what FedHDP and its baselines share.

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
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from hdpfl_flower.privacy.adaptive_clipping import next_clip_norm, share_within
from hdpfl_flower.privacy.central_dp import (
    CentralPlan,
    clipped_rows,
    clipped_sum,
    make_central_plan,
    noisy_mean,
)
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError, TermsError
from strategies.fedhdp.span import keep_span
from strategies.fedhdp.levels import (
    AUTO,
    PRECISION,
    menu_of,
    place,
    plain_means,
    ratio_weights,
    read_ratios,
    site_weights,
)
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Disclosed, HDPStrategy, State
from strategies.core.checks import check_tosses
from strategies.core.strategy_state import Kept
from strategies.core.privacy_statement import describe_levels
from strategies.fedhdp.auto_weights import (
    Crowd,
    auto_mean,
    known_variances,
    seen,
    weigh_part,
)

log = logging.getLogger("hdpfl.server")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CLIP_NORM = "clip_norm"
TOO_STRICT = "asks for more privacy than any level gives"


class Leveled(HDPStrategy):
    """Two-step averaging; a rule says what the levels are and what each of them counts.

    Attributes:
        one_level: there is one level, so that no level weighs more than another.
    """

    one_level: ClassVar[bool] = False

    def __init__(self, terms: RunTerms) -> None:
        """See :meth:`HDPStrategy.__init__`; raises ``TermsError`` for a wrong menu or ratio."""
        super().__init__(terms)
        if terms.clip_floor > terms.clip_ceiling:
            raise TermsError("'clip-floor' is above 'clip-ceiling'; lower it")
        self._menu: tuple[float, ...] = ()
        self._level_of: dict[str, int] = {}
        self._placed: dict[float, Ints] = {}
        self._own: dict[str, float] = {}
        self._plan: CentralPlan | None = None

    @classmethod
    def discloses(cls, terms: RunTerms) -> frozenset[str]:
        """See :meth:`HDPStrategy.discloses`."""
        return frozenset({"epsilon"})

    @classmethod
    def is_weighted_sum(cls, terms: RunTerms) -> bool:
        """See :meth:`HDPStrategy.is_weighted_sum`.

        With ``noise = server`` the update holds the server's clipping and noise, and with ``auto``
        ratios its directions have weights of their own.
        """
        fixed = cls.one_level or terms.level_ratio.strip() != AUTO
        return terms.noise != "server" and fixed

    # --- what a rule may change ----------------------------------------------------------------

    def menu(self, epsilons: Floats) -> tuple[float, ...]:
        """Return ε of each level, the loosest first, from what the sites disclosed."""
        return menu_of(self.terms.levels, epsilons)

    def place(self, epsilons: Floats, menu: tuple[float, ...]) -> Ints:
        """Return each site's level; −1 for a site that takes no part."""
        return place(epsilons, menu)

    # --- before the first round ----------------------------------------------------------------

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Freeze the levels and who is in which, and plan each level's noise.

        Raises:
            StrategyError: no site is in a level, or a quorum is asked for with ``noise = server``.
            TermsError: the ratios do not fit the levels.
            AccountingError: no noise can pay for the rounds.
        """
        self._own = {site: float(disclosed[site]["epsilon"]) for site in disclosed}
        sites, epsilons = list(self._own), np.array(list(self._own.values()))
        self._menu = self.menu(epsilons)
        levels = self.place(epsilons, self._menu)
        self._level_of = {s: int(j) for s, j in zip(sites, levels, strict=True) if j >= 0}
        if not self._level_of:
            raise StrategyError("'levels': every site asks for more privacy than any level gives")
        for site in set(sites) - set(self._level_of):
            log.warning("site %s is left out: %s", site, TOO_STRICT)
        read_ratios(terms.level_ratio, len(self._menu))
        if terms.noise == "server":
            self._plan = self._central_plan(terms)
        return terms

    def privacy(self) -> dict[str, Any]:
        """See :meth:`HDPStrategy.privacy`."""
        own = self._spending()
        return describe_levels(self.terms, self._menu, self._level_of, own, self._plan)

    def _spending(self) -> dict[str, float]:
        """Return the ε that each site spends by itself, as it discloses it."""
        cap = self.terms.epsilon_cap or math.inf
        return {site: min(self._own[site], cap) for site in self._level_of}

    def keep(self) -> Kept:
        """See :meth:`Keeps.keep`: the levels, who is in which, and the noise planned."""
        plan = self._plan and asdict(self._plan)
        return Kept({"levels": [self._menu, self._level_of, self._own], "plan": plan})

    def restore(self, kept: Kept) -> None:
        """See :meth:`Keeps.restore`; nobody is placed anew, for others may be online now."""
        menu, self._level_of, self._own = kept.facts["levels"]
        self._menu, plan = tuple(menu), kept.facts["plan"]
        self._plan = plan and CentralPlan.from_facts(plan)

    # --- a round -------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the instructions of a round, with the clip norm as the last round left it."""
        if _CLIP_NORM in self.state:
            self.terms = self.terms.updated(clip_norm=float(self.state[_CLIP_NORM][0]))
        messages = super().configure_train(server_round, arrays, config, grid)
        if self.terms.noise == "server":
            self.report.quorum = 0  # a round left out for want of replies would tell who came
        trouble = {site: self._trouble(site) for site in self.roster.eligible()}
        self.report.rejected.update({site: why for site, why in trouble.items() if why})
        return messages

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """See :meth:`HDPStrategy.combine`.

        The journal's ``level-J-weight`` and ``level-J-sites`` count the levels from 1, the
        loosest; with ``auto`` the weights are those within the span of earlier updates
        (``span.py``). With ``noise = server`` there may be no row at all; private levels
        release their noise all the same.
        """
        epsilons = updates.disclosed["epsilon"]
        menu = self._menu or self.menu(epsilons)
        levels = self.place(epsilons, menu)
        counts = np.bincount(levels[levels >= 0], minlength=len(menu)).astype(np.float64)
        gauges: dict[str, float] = {}
        if self._plan is not None:
            means, within = self._central_means(self._plan, updates, levels, noise)
            state, clip = self._moved(state, self._plan, within, len(levels), noise)
            gauges.update(clip)
            sizes = np.array([each.clients for each in self._plan.levels], dtype=np.float64)
            sizes[[not each.private for each in self._plan.levels] & (counts == 0)] = 0
            divisors = np.array([e.expected if e.private else 1.0 for e in self._plan.levels])
            divisors = np.where([e.private for e in self._plan.levels], divisors, counts)
        else:
            means = plain_means(updates.updates, levels, len(menu))
            sizes = divisors = counts
        state, weights, mean = self._weigh(state, updates, levels, means, sizes)
        rate = self._rate(updates.server_round)
        gauges.update({f"level-{j + 1}-weight": float(w) for j, w in enumerate(weights)})
        gauges.update({f"level-{j + 1}-sites": float(n) for j, n in enumerate(counts)})
        update = (rate * mean).astype(np.float32)
        shares = np.divide(weights, divisors, out=np.zeros_like(weights), where=divisors > 0)
        return state, Outcome(update, site_weights(shares, levels), gauges, rate)

    # --- parts ---------------------------------------------------------------------------------

    def _central_plan(self, terms: RunTerms) -> CentralPlan:
        check_tosses(terms)
        counts = np.bincount(list(self._level_of.values()), minlength=len(self._menu)).tolist()
        return make_central_plan(
            self._menu, counts, terms.delta, terms.fraction, terms.rounds,
            terms.bit_noise if terms.clip_lr else 0.0,
        )  # fmt: skip

    def _sample(self, server_round: int) -> list[str]:
        """Return the sites of a round; with ``noise = server`` each by a secret toss of its own."""
        if self.terms.noise != "server":
            return [site for site in super()._sample(server_round) if not self._trouble(site)]
        sites = [site for site in self.roster.eligible() if not self._trouble(site)]
        chosen = self.streams.sampling.bernoulli(len(sites), self.terms.fraction)
        return [sites[i] for i in chosen]

    def _screen(self, came: RoundUpdates) -> RoundUpdates:
        """Return the updates that count; all of them where the account is the server's.

        There no client's part may depend on what another one sends, and a clipped update of zeros
        or a copy is no worse than any other.
        """
        return came if self.terms.noise == "server" else super()._screen(came)

    def _trouble(self, site: str) -> str:
        """Return why a site is not asked; empty if it may be. One that came later joins now."""
        epsilon = self.roster.disclosed[site]["epsilon"]
        if epsilon not in self._placed:  # asked of everybody, twice a round
            self._placed[epsilon] = self.place(np.array([epsilon]), self._menu)
        now = int(self._placed[epsilon][0])
        if now < 0:
            return TOO_STRICT
        if self._plan and not self._plan.levels[now].clients:
            return "its level had no site when the run began: there is no noise for it"
        self._own.setdefault(site, epsilon)
        joined = self._level_of.setdefault(site, now)
        return "" if joined == now else "claims another level than it joined with"

    def _central_means(
        self, plan: CentralPlan, came: RoundUpdates, levels: Ints, noise: RandomStream
    ) -> tuple[Floats, int]:
        """Return each level's mean, noisy where it is private, and the bits that are 1."""
        rows, clip_norm = came.updates, self.terms.clip_norm
        means, bits = np.zeros((len(plan.levels), rows.shape[1])), 0
        for j, level in enumerate(plan.levels):
            chosen = np.flatnonzero(levels == j)
            total, within = clipped_sum(rows, clip_norm, chosen, came.squares)
            bits += within
            if level.private and level.clients:
                means[j] = noisy_mean(total, level, clip_norm, noise)
            elif not level.private and len(chosen):
                means[j] = total / len(chosen)
        return means, bits

    def _moved(
        self, state: State, plan: CentralPlan, within: int, count: int, noise: RandomStream
    ) -> tuple[State, dict[str, float]]:
        """Return the state with the next clip norm, and what the journal says of it."""
        terms = self.terms
        gauges = {"clip_norm": terms.clip_norm}
        if not plan.bit_noise:
            return state, gauges
        expected = plan.sampling_prob * sum(level.clients for level in plan.levels)
        drawn = plan.bit_noise * float(noise.normal(1)[0])
        share = share_within(within, count, expected, drawn)
        bounds = terms.clip_floor, terms.clip_ceiling
        new = next_clip_norm(terms.clip_norm, share, terms.clip_quantile, terms.clip_lr, bounds)
        return {**state, _CLIP_NORM: np.array([new])}, {**gauges, "share_within": share}

    def _weigh(
        self, state: State, updates: RoundUpdates, levels: Ints, means: Floats, sizes: Floats
    ) -> tuple[State, Floats, Floats]:
        """Return what each level counts, and the mean over them; levels of size 0 count nothing."""
        ratios = read_ratios(self.terms.level_ratio, len(sizes))
        if ratios is not None or len(sizes) == 1 or not sizes.any():
            fixed = ratio_weights(sizes, ratios or (1.0,)) if sizes.any() else sizes
            return state, fixed, fixed @ means
        everybody = ratio_weights(sizes, np.ones(len(sizes)))
        counts = np.bincount(levels[levels >= 0], minlength=len(sizes)).astype(np.float64)
        crowd = Crowd(counts, self._totals(sizes), sizes > 0, self.terms.rounds)
        constant, each = known_variances(self._plan, self.terms.clip_norm, len(sizes))
        rows = {
            j: self._as_summed(updates.updates[levels == j])
            for j in np.flatnonzero(np.isnan(constant)).tolist()
        }
        if self.terms.level_ratio.strip() == PRECISION:
            part = seen(rows, means, constant + means.shape[1] * each)
            state, found = weigh_part(state, "whole", part, crowd, by_noise_alone=True)
            weights = everybody if found is None else found
            return state, weights, weights @ means
        state, weights, mean = auto_mean(state, rows, means, (constant, each), crowd, everybody)
        opted_out = [j for j, epsilon in enumerate(self._menu) if math.isinf(epsilon) and j in rows]
        for j in opted_out:
            state = keep_span(state, rows[j])
        return state, weights, mean

    def _totals(self, sizes: Floats) -> Floats:
        """Return how many sites of the run are in each level; of the round where none is known."""
        everybody = list(self._level_of.values())
        totals = np.bincount(everybody, minlength=len(sizes)) if everybody else sizes
        return np.asarray(totals, dtype=np.float64)

    def _as_summed(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the rows as they went into the mean: clipped where the server clips."""
        return rows if self._plan is None else clipped_rows(rows, self.terms.clip_norm)

    def _rate(self, server_round: int) -> float:
        """Return the server's learning rate of a round, see ``server-schedule``."""
        terms = self.terms
        left = 1 - (server_round - 1) / terms.rounds if terms.server_schedule == "linear" else 1.0
        return terms.server_learning_rate * left
