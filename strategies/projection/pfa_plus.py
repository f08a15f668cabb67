"""PFA+: private sites send one number, their update's coordinate along the model's last step.

Liu, Lou, Xiong, Liu and Meng, Projected Federated Averaging with Heterogeneous Differential Privacy
(VLDB 2021), Algorithms 4 and 5: round 1 is PFA's; from then on a private site sends V[t−1]ᵀu, k
numbers, the server lifts them with V[t−1], combines, and takes V[t] from the public updates. The
paper counts the uplink alone. If the server has to send V, each private site gets k·d numbers more
for the d that it saves, so that nothing is saved in total, and more is spent from k = 2 on.

Here nobody sends V. With Algorithm 3 as printed (k = 1, V along the public mean) the global step of
the warm-up round is parallel to V, and a site that kept the model of the round before has it for
nothing: V[t] = (θ[t+1] − θ[t]) / ‖·‖. After the warm-up this V is not Algorithm 5's: the step
w·(public mean) + (1 − w)·s·V[t−1], with w the public share of Σ ε, holds a part of the step before,
as momentum does; what is new in the public mean always enters. So ``subspace-rank`` is 1 and
``subspace-scope`` is ``vector``; of ``subspace``, ``span`` and ``mean`` are the same here.

Who sends what: the split is made among all sites that joined, by disclosed ε, as for PFA. Each
private one is told the SHA-256 of the model that it answered about last; where that is two models
back, because the site was not asked in between, its V is the way from there. A site whose last
model lies further back, or that lost it in a restart, sends its whole update, which the server
projects. There is a warm-up wherever there is no last step or no public site, as in round 1. A
checkpoint holds the models kept: after a resume the same numbers are asked for, and a site that was
started anew for it, and has lost its model, sends its whole update. Where the public sites asked do
not answer, the step goes along the last ones.

Threat model: an untrusted server to which each site discloses its ε, which the updates' own (ε, δ)
does not cover; an overstated ε makes a site public and lets it choose the direction. Sites project
their noisy update: it costs no budget. Whether a site sends one number or all tells that it was
there in the round before. A number is bounded as a norm is. Weights are WeiAvg's: rules that look
for noise find none in one number, and guards cannot compare such sites.

Known limit: PFA's, and sites that share one direction only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.linalg.step_direction import Direction
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.networks import flatten
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.linalg.projection import inner_products, project_private
from hdpfl_flower.updates import Outcome, RoundUpdates, weighted_sum
from strategies.core.base import State
from strategies.core.checks import check_norm, read_checked
from strategies.core.strategy_state import Kept
from strategies.projection.base import Part, Projected
from strategies.averaging.weiavg import WeiAvg, epsilon_weights

log = logging.getLogger("hdpfl.server")

Row = npt.NDArray[np.float32]

KEPT = 2
"""Models before the last whose sites can still project; with four fifths of the sites asked in a
round, one private site in 25 answered about none of them. Each is one more vector of d numbers."""


def combine_along(
    lines: Sequence[Direction | None], rows: Row, weights: npt.NDArray[np.float64]
) -> Row:
    """Return Σ_public wᵢuᵢ + Σ_private wᵢvᵢ(vᵢ·uᵢ), shape ``(d,)`` (Algorithm 5, V = vᵢ).

    A row that was lifted from a number is projected to itself.

    Args:
        lines: of each row the direction to project on; None for a public one.
        rows: float32, shape ``(n, d)``.
        weights: convex, shape ``(n,)``.

    >>> rows = np.array([[1, 1], [2, 0]], np.float32)
    >>> v = Direction(np.array([0, 0], np.float32), np.array([0, 2], np.float32), 2.0)
    >>> combine_along([v, None], rows, np.array([0.5, 0.5]))
    array([1. , 0.5], dtype=float32)
    """
    along: dict[int, tuple[Direction, float]] = {}
    for line, row, weight in zip(lines, rows, weights, strict=True):
        if line is not None:
            _, before = along.get(id(line), (line, 0.0))
            along[id(line)] = line, before + weight * float(line.project(row)[0])
    # Weights of zero, not a choice of rows: that would copy them.
    public = np.array([line is None for line in lines])
    total = weighted_sum(np.where(public, weights, 0), rows)
    for line, coordinate in along.values():
        total += line.lift(coordinate)
    return total


class PFAPlus(Projected):
    """WeiAvg's weights; private updates projected on the global model's last step, at the sites."""

    name, weighting = "pfa-plus", WeiAvg

    def __init__(self, terms: RunTerms) -> None:
        """Prepare for the run of ``terms``.

        Raises:
            TermsError: terms that one direction, or one number a site, cannot satisfy.
        """
        check_terms(terms)
        super().__init__(terms)
        self._models: dict[str, Row] = {}  # by digest, the newest last
        self._answered: dict[str, list[str]] = {}  # site → the models it answered about last
        self._new_round()

    def _new_round(self) -> None:
        self._lines: dict[str, Direction | None] = {}
        self._public: frozenset[str] | None = None
        self._asked: dict[str, str] = {}  # private site → the model that its step begins at
        self._numbers: set[str] = set()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See :meth:`HDPStrategy.configure_train`; learns the last steps from ``arrays``."""
        digest = wire.model_digest(arrays)
        model = self._models.pop(digest, None)  # after a round without a quorum it is the same
        if model is None:
            model = flatten(wire.read_own(arrays))
        kept = list(self._models.items())[-KEPT:]
        self._models = {**dict(kept), digest: model}
        self._new_round()
        return super().configure_train(server_round, arrays, config, grid)

    def keep(self) -> Kept:
        """See :meth:`Keeps.keep`: the models that sites can project from, and who can."""
        return Kept({"answered": self._answered}, dict(self._models))

    def restore(self, kept: Kept) -> None:
        """See :meth:`Keeps.restore`."""
        self._models, self._answered = dict(kept.arrays), dict(kept.facts["answered"])

    def project_for(self, site: str) -> str | None:
        """See :meth:`HDPStrategy.project_for`."""
        if self._public is None:
            self._public = self._split(self.report.asked)
        if self._last_line() is None or not self._public or site in self._public:
            return wire.WHOLE
        earlier = list(self._models)[:-1]
        began = [digest for digest in self._answered.get(site, []) if digest in earlier][-1:]
        if not began or self._line(began[0]) is None:
            return wire.WHOLE
        self._asked[site] = began[0]
        return began[0]

    def read_row(self, site: str, reply: Message, size: int) -> Row:
        """See :meth:`HDPStrategy.read_row`; a site asked for a number may send either form."""
        asked = self._asked.get(site)
        update = read_checked(reply, size, may_be_projected=asked is not None)
        check_norm(update)  # before it counts as an answer
        answered, now = self._answered.get(site, []), next(reversed(self._models))
        self._answered[site] = [*(digest for digest in answered if digest != now), now][-2:]
        line = self._line(asked) if asked else None
        if line is None or size == 1:
            return update
        if len(update) == size:
            # A site that lost its model: the number that it would have sent, to the last bit.
            return line.lift(float(line.project(update)[0]))
        self._numbers.add(site)
        return line.lift(float(update[0]))

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """See :meth:`HDPStrategy.combine`.

        The journal's ``warm_up`` is 1 in a round of PFA's, and ``sent_numbers`` marks the sites
        that sent one number.
        """
        last = self._last_line()
        if last is None or not self._public:
            state, outcome = super().combine(state, updates, noise)
            return state, replace(outcome, gauges={**outcome.gauges, "warm_up": 1.0})
        weights = epsilon_weights(updates.disclosed["epsilon"])
        public = np.array([site in self._public for site in updates.sites])
        if not public.any():
            log.warning(
                "round %d: no public site answered; the step goes along the last ones",
                updates.server_round,
            )
        gauges: dict[str, float | npt.NDArray[np.float64]] = {
            "public": public.astype(np.float64),
            "subspace_rank": float(not public.all()),
            "warm_up": 0.0,
            "sent_numbers": np.array([float(site in self._numbers) for site in updates.sites]),
        }
        lines = [
            None if site in self._public else self._line(self._asked.get(site, "")) or last
            for site in updates.sites
        ]
        return state, Outcome(combine_along(lines, updates.updates, weights), weights, gauges)

    def project(
        self,
        updates: RoundUpdates,
        part: slice,
        weights: npt.NDArray[np.float64],
        public: npt.NDArray[np.bool_],
    ) -> Part:
        """See :meth:`Projected.project`: the warm-up, Algorithm 3 as printed."""
        rows = updates.updates[:, part]
        coefficients, kept = project_private(inner_products(rows), weights, public, 1, "mean")
        return weighted_sum(coefficients, rows), kept

    def _line(self, began: str) -> Direction | None:
        """Return the direction from the model of that digest to the last one, if it is kept."""
        if began not in self._lines and began in self._models:
            now = next(reversed(self._models.values()))
            self._lines[began] = Direction.between(self._models[began], now)
        return self._lines.get(began)

    def _last_line(self) -> Direction | None:
        """Return the direction of the last step, if there was one."""
        return self._line(list(self._models)[-2]) if len(self._models) > 1 else None

    def _split(self, asked: list[str]) -> frozenset[str]:
        """Return the public sites among those asked."""
        disclosed = self.roster.disclosed
        epsilons = {site: disclosed[site]["epsilon"] for site in asked}
        return self.sampler.public_sites(epsilons) & frozenset(asked)


def check_terms(terms: RunTerms) -> None:
    """Refuse terms that one direction, or one number a site, cannot satisfy.

    Raises:
        TermsError: names the key.
    """
    wrong = {
        "'subspace'": terms.subspace == "centred",
        "'subspace-rank'": terms.subspace_rank != 1,
        "'subspace-scope'": terms.subspace_scope != "vector",
    }
    for key, is_wrong in wrong.items():
        if is_wrong:
            raise TermsError(
                f"run config: {key}: 'pfa-plus' projects on the model's last step alone, which "
                "sites know without being sent it; leave it out, or take 'pfa'"
            )
    if terms.guard != "none":
        raise TermsError(
            "run config: 'guard' compares whole updates, and 'pfa-plus' gets one number of a "
            "private site; set 'guard' to 'none', or take 'pfa'"
        )
