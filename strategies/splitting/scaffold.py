"""SCAFFOLD: control variates from the clients' noisy uploads.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning (ICML 2020), Algorithm 1, option II. A client steps by −η(g(y) − cᵢ + c), so
that many local steps do not end in its own optimum. After k steps cᵢ is the mean of the gradients
that it took, and c the mean of the cᵢ.

Here the server makes cᵢ of the client's usual uploads. It sends client i the displacement
Dᵢ = −ηkᵢ(c − cᵢ), of which the client adds a k-th after each of its k noisy steps. The client's
update is uᵢ = pᵢ + Dᵢ, its own part pᵢ = −η·Σ (noisy gradients), and with vᵢ = pᵢ/kᵢ = −ηcᵢ

    Dᵢ = kᵢ·(v̄ − vᵢ),  v̄ = Σⱼ bⱼvⱼ;  the model moves by s·k̄·Σ wᵢuᵢ/kᵢ

with w and s the weights and the scale of the strategy before the ``+``, which it chooses by the own
parts k̄·pᵢ/kᵢ: their noise is fresh and independent, while uᵢ has the noise of two uploads. A
client that misses rounds, or sends a rejected update, keeps its vᵢ, and the others move by bᵢvᵢ in
its place. One that has not uploaded yet has Dᵢ = 0.

In a full round the move is s·k̄·(v̄ + Σ wᵢ(vᵢ⁺ − vᵢ)), vᵢ⁺ the new steps: a control-variate
estimate of Σ bᵢvᵢ⁺. Its noise is Σ (wᵢ² + (bᵢ − wᵢ)²)σᵢ², and over the rounds each upload counts by
bᵢ: by wᵢ at once, by bᵢ − wᵢ a round later. The bᵢ are equal, as in the paper: the fixed point is
the optimum of the plain mean of the clients' losses whatever the weights, which lower no noise in
the end.

Threat model: that of the strategy before the ``+``. The displacement is a function of noisy
uploads, and is added after clipping and noise: it costs no ε, and a client's noise, batches and
charge are those without it. kᵢ is the terms' ``local-steps``, or the clients' facts
(``local_steps.py``); else all are equal, and under unequal steps the fixed point weighs client i by
kᵢ, as FedAvg's does.

Known limits: the server holds a vector of each client, and sends each two models. Under noise a
displacement is noisy by a whole round's noise. A client's earlier upload moves every other one, so
guards that bound or take back a client's share are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hdpfl_flower import wire
from hdpfl_flower.errors import TermsError
from hdpfl_flower.linalg.sums import BLOCK, exact_sum
from hdpfl_flower.local_steps import disclosed_steps, facts_needed
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.averaging.fedavg import FedAvg
from strategies.core.base import Declaration, Disclosed, HDPStrategy
from strategies.core.declaration import Needs
from strategies.core.interface import RoundSetup, RoundStart, SiteRequest

Row = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Variate:
    """Last upload of a client: v = p/k, −η times its control variate.

    Attributes:
        part: k̄·p/k, its own part as of k̄ steps, float32, shape ``(d,)``.
        middle: k̄, the mean of the steps of that round's clients.
        steps: k, as the server knows it.
    """

    part: Row
    middle: float
    steps: float


@dataclass(frozen=True)
class ScaffoldState:
    """The state of SCAFFOLD.

    Attributes:
        variates: site → data of its last upload.
        mean: v̄, the mean of the vⱼ, float64, shape ``(d,)``; None before round 1.
        weighting: the state of the strategy that weighs.
    """

    variates: dict[str, Variate] = field(default_factory=dict)
    mean: Floats | None = None
    weighting: Any = None

    def displacement(self, site: str) -> Row | None:
        """Return D = k·(v̄ − v), shape ``(d,)``; None before the first upload."""
        variate = self.variates.get(site)
        if variate is None or self.mean is None:
            return None
        moved = np.empty_like(variate.part)
        for block in _blocks(len(moved)):
            moved[block] = _displaced(_aim(self.mean[block], variate.steps), variate, block)
        return moved


def _blocks(size: int) -> Iterator[slice]:
    """Yield stretches of coordinates that stay in the processor's cache."""
    return (slice(start, start + BLOCK) for start in range(0, size, BLOCK))


def _aim(mean: Floats, steps: float) -> Row:
    """Return k·v̄."""
    return (steps * mean).astype(np.float32)


def _displaced(aim: Row, variate: Variate, block: slice) -> Row:
    """Return k·v̄ − k·v of some coordinates; sender and reader get equal bits."""
    own_part, factor = variate.part[block], variate.steps / variate.middle
    moved: Row = aim - (own_part if factor == 1 else np.float32(factor) * own_part)
    return moved


class Scaffold(HDPStrategy):
    """Correct client drift with control variates (from the last noisy uploads).

    The update is a multiple of the weighted sum of the updates: ``Outcome.scale``.
    """

    name = "scaffold"
    default_weights = FedAvg
    needs_of_weights: ClassVar[Needs] = {
        "weights_alone": "take '+scaffold' after weights, such as 'mmse'",
        "is_weighted_sum": "take '+scaffold' after weights, such as 'mmse'",
    }

    def declare(self) -> Declaration:
        """Declare the facts of a site's steps; an upload moves all sites in the next round."""
        offers = super().declare()
        return replace(
            offers,
            optional_facts=offers.optional_facts | facts_needed(self.terms),
            is_convex=False,
            fresh_noise=False,
            free_steps=False,
        )

    def initial_state(self, disclosed: Disclosed | None = None) -> ScaffoldState:
        """Return no control variates."""
        return ScaffoldState(weighting=self.weights.initial_state(disclosed))

    def begin_round(self, state: ScaffoldState, start: RoundStart) -> RoundSetup:
        """Return the round as it is.

        Raises:
            TermsError: before round 1, the sites online have no room for their control variates.
        """
        size = sum(math.prod(array.shape) for array in start.arrays.values())
        if not state.variates and len(start.sites) > self._room(size):
            needed = math.ceil(4e-6 * size * len(start.sites))
            raise TermsError(
                f"run config: 'memory-mb': the control variates of {len(start.sites)} sites "
                f"take {needed} MB; set it to that if the server has five times as much memory, "
                "or take a strategy without '+scaffold'"
            )
        return super().begin_round(state, start)

    def request(
        self, state: ScaffoldState, server_round: int, site: str, kind: str = wire.TRAIN
    ) -> SiteRequest:
        """Return the model and the displacement of the site for training."""
        offset = state.displacement(site) if kind == wire.TRAIN else None
        if offset is None:
            return SiteRequest()
        return SiteRequest(use=wire.OFFSET, own=site, offset=offset)

    def combine(
        self, state: ScaffoldState, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[ScaffoldState, Outcome]:
        """Return the step: own parts, their weights, the weighted sum.

        The journal's ``control_variates`` counts the sites that have one after the round, and
        ``displacement`` is ‖Dᵢ‖ of the round.
        """
        local_steps = disclosed_steps(self.terms, updates)
        steps, middle = local_steps.counts, float(local_steps.counts.mean())
        own_parts, moved = _own_parts(state, updates, steps)
        inner, outcome = self.weights.combine(
            state.weighting, _as_of_equal_steps(updates, own_parts, middle / steps), noise
        )
        # s·k̄·Σ wᵢuᵢ/kᵢ, as a multiple of a sum by weights that add up to 1.
        per_step = outcome.weights * (middle / steps)
        after = self._with_variates(
            replace(state, weighting=inner), updates, own_parts, steps, outcome
        )
        gauges = {
            **outcome.gauges,
            **_of_updates(outcome.gauges, steps / middle),
            "steps": steps,
            "steps_known": local_steps.known.astype(np.float64),
            "displacement": moved,
            "control_variates": float(len(after.variates)),
        }
        return after, Outcome(
            _moved(state, updates, outcome, middle),
            per_step / per_step.sum(),
            gauges,
            outcome.scale * float(per_step.sum()),
        )

    def _room(self, size: int) -> int:
        """Return the number of sites with control variates of ``size`` numbers."""
        return int(self.server.memory_mb * 1e6 / (4 * max(size, 1)))

    def _with_variates(
        self,
        state: ScaffoldState,
        updates: RoundUpdates,
        own_parts: Row,
        steps: Floats,
        outcome: Outcome,
    ) -> ScaffoldState:
        """Return the state with this round's uploads, and the new mean.

        Args:
            state: before.
            updates: of the round.
            own_parts: k̄·pᵢ/kᵢ, shape ``(n, d)``; not to be written to any more.
            steps: kᵢ, shape ``(n,)``.
            outcome: of the strategy that weighs, on ``own_parts``.
        """
        # A row of an earlier round's matrix would keep all of it in memory.
        variates = {
            site: variate
            if variate.part.base is None
            else replace(variate, part=variate.part.copy())
            for site, variate in state.variates.items()
            if site not in updates.sites
        }
        room, middle = self._room(own_parts.shape[1]) - len(variates), float(steps.mean())
        # Those that joined after round 1 and have no room train without a displacement.
        has_room = np.array([site in state.variates for site in updates.sites], dtype=np.bool_)
        has_room |= np.cumsum(~has_room) <= room - has_room.sum()
        mean = np.zeros(own_parts.shape[1])
        for variate in variates.values():
            _add(mean, 1 / variate.middle, variate.part)
        mean += _sum_of(has_room.astype(np.float64), own_parts, outcome) / middle
        for i in np.flatnonzero(has_room):
            variates[updates.sites[i]] = Variate(own_parts[i], middle, float(steps[i]))
        return replace(state, variates=variates, mean=mean / len(variates) if variates else None)


def _own_parts(state: ScaffoldState, updates: RoundUpdates, steps: Floats) -> tuple[Row, Floats]:
    """Return k̄·pᵢ/kᵢ = (k̄/kᵢ)·(uᵢ − Dᵢ), shape ``(n, d)``, and ‖Dᵢ‖, shape ``(n,)``."""
    rows, factors = updates.updates, (steps.mean() / steps).astype(np.float32)
    own_parts, squares = np.empty_like(rows), np.zeros(len(rows))
    variates = [state.variates.get(site) for site in updates.sites]
    for block in _blocks(rows.shape[1]):
        aims: dict[float, Row] = {}  # clients have few numbers of steps
        for i, variate in enumerate(variates):
            if variate is None or state.mean is None:
                own_parts[i, block] = rows[i, block]
            else:
                k = variate.steps
                aims[k] = aims[k] if k in aims else _aim(state.mean[block], k)
                sent = _displaced(aims[k], variate, block)
                squares[i] += float(np.einsum("i,i", sent, sent))
                np.subtract(rows[i, block], sent, out=own_parts[i, block])
            if factors[i] != 1:
                own_parts[i, block] *= factors[i]
    return own_parts, np.sqrt(squares)


def _moved(state: ScaffoldState, updates: RoundUpdates, outcome: Outcome, middle: float) -> Row:
    """Return s·k̄·Σ wᵢuᵢ/kᵢ = s·Σ wᵢ(own part) + s·k̄·Σ wᵢDᵢ/kᵢ, shape ``(d,)``.

    The last sum is v̄·Σw − Σ wᵢvᵢ over those that have a vᵢ. It is 0, and not computed, in a full
    round of equal weights, of which v̄ is made.
    """
    variates = [state.variates.get(site) for site in updates.sites]
    if state.mean is None:
        return outcome.update
    shares = np.array([variate is not None for variate in variates]) / len(state.variates)
    if len(variates) == len(state.variates) and np.allclose(shares, outcome.weights, 0, 1e-12):
        return outcome.update
    weights = np.where([variate is None for variate in variates], 0.0, outcome.weights)
    rest = weights.sum() * state.mean
    for weight, variate in zip(weights, variates, strict=True):
        if variate is not None:
            _add(rest, -weight / variate.middle, variate.part)
    moved: Row = (outcome.update + outcome.scale * middle * rest).astype(np.float32)
    return moved


def _sum_of(shares: Floats, own_parts: Row, outcome: Outcome) -> Floats:
    """Return Σ bᵢ(own part), float64, shape ``(d,)``: the weighted sum itself where b is w."""
    total = float(shares.sum())
    if total and np.allclose(shares / total, outcome.weights, 0, 1e-12):
        return (total / outcome.scale) * outcome.update.astype(np.float64)
    return exact_sum(shares, own_parts)


def _add(total: Floats, scale: float, row: Row) -> None:
    """Add a multiple of a row to ``total`` without a float64 copy."""
    for block in _blocks(len(total)):
        total[block] += scale * row[block].astype(np.float64)


def _of_updates(gauges: Mapping[str, float | Floats], factors: Floats) -> dict[str, Floats]:
    """Return the noise of each client's own part, from k̄ steps' noise."""
    return {"noise_std": factors * gauges["noise_std"]} if "noise_std" in gauges else {}


def _as_of_equal_steps(updates: RoundUpdates, own_parts: Row, factors: Floats) -> RoundUpdates:
    """Return the round with own parts as updates, at k̄ steps each.

    The batch sizes are left out, by which a strategy would count the steps a second time.
    """
    disclosed = {fact: column for fact, column in updates.disclosed.items() if fact != "batch-size"}
    if "noise-std" in disclosed:
        disclosed["noise-std"] = factors * disclosed["noise-std"]
    return replace(updates, updates=own_parts, disclosed=disclosed, squares=None)
