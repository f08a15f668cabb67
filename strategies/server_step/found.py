"""Server rate adapted during the run: ``server-learning-rate = "found"``.

Ours; ``learning-rate = "auto"`` takes it where it can. Sites take a small public rate, so that a
round's aggregate Δₜ is close to a noisy gradient, and the server finds the multiplier ηₜ from
aggregates alone:

    ηₜ = aₜ/sₜ        s²ₜ = max(‖Δ₁‖², mean of ‖Δ₁‖² to ‖Δₜ‖²)
    a₁ = D/√E         D = 1.25·max(d, 28)^¼
    log aₜ = log aₜ₋₁ + 2κₜ·max(0, 1 − 4/(κₜ²d))        κₜ = Δₜ·Δₜ₋₁/(‖Δₜ‖‖Δₜ₋₁‖)

aₜ moves in the first half of the E rounds, to at most 100·a₁; then ηₜ falls linearly, to 2/E of it
in the last round.

D/(√E·s) is the rate of SGD for a distance D, with the measured size of a step, noise included
(Ivgi, Hinder and Carmon, DoG is SGD's Best Friend, ICML 2023, at a fixed distance): where weights
turn to noisier clients, the steps stay as long. D is that of the model and its noise together, so
that it grows with the number of coordinates d; from a whole model that is given (``start``) the way
is shorter: half of it. The noises of two rounds are independent: κₜ shows the signal alone. It is
positive while successive aggregates agree, so that a larger step is better, and negative after a
step that was too large (Baydin et al., Online Learning Rate Adaptation with Hypergradient Descent,
ICLR 2018). Noise along curved directions lowers κₜ, too. Of pure noise κₜ has the standard
deviation 1/√d: κₜ within twice that is no evidence, and the rate stays.

Threat model: that of the strategy. Aggregates are noisy already, and the rate costs no privacy.

Known limits: where noise hides all agreement the rate stays the guess that D is, as in models of
few coordinates: of five κ² must exceed .8. Where large local steps would help it does not take
them. ``docs/results/earlier.md`` has the cost of both. Several models and steps with a past are
refused; guards take nothing out of the model.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import FOUND, LARGEST_RATE
from hdpfl_flower.errors import TermsError
from hdpfl_flower.updates import Outcome, Revision, RoundUpdates
from strategies.server_step.step import ServerStep, moved_by

log = logging.getLogger("hdpfl.server")

DISTANCE = 1.25
"""D/d^¼, the initial guess of the distance, noise included. Of 1, 2, 3, 5, 10, 16 and 20 as D the
best was near it for logistic regressions of 28, 650 and 7,850 parameters and for ``mlp:32``."""

FEWEST = 28
"""Least d of these, taken for smaller models, too: by their own their rate would be too small."""

FROM_START = 0.5
"""D's factor where the run starts from a whole model that the coordinator has."""

GAIN = 2.0
"""How much log η moves by an agreement of 1."""

LONGEST = 100.0
"""Largest aₜ/a₁. Without noise and in 100 rounds it came to 37; a sum of rounds has no bound."""

NOISE = 4.0
"""κ²d of chance agreement: exceeded in 5 % of rounds of pure noise."""


@dataclass(frozen=True)
class FoundState:
    """The state of a found rate.

    Attributes:
        way: aₜ, the length of a step of the size sₜ.
        first: ‖Δ₁‖, of the first aggregate that was not 0.
        squares: the sum of all ‖Δ‖² so far; both as after the last revision.
        number: of these aggregates.
        last: the last aggregate that was not 0, float32, shape ``(d,)``; None before round 1.
        moved: the sum of all steps so far, likewise.
        energy: the sum of their squared lengths, at their last scale.
    """

    way: float = 0.0
    first: float = 0.0
    squares: float = 0.0
    number: int = 0
    last: npt.NDArray[np.float32] | None = None
    moved: npt.NDArray[np.float32] | None = None
    energy: float = 0.0


def step_type(step: type[ServerStep], config: RunConfig) -> type[ServerStep]:
    """Return the class of the run's server step: ``step``, or one with an adaptive rate.

    Raises:
        TermsError: the rate is to be found, and ``step`` or ``server-schedule`` has one of its own.
    """
    if config.server.server_learning_rate != FOUND:
        return step
    own = "" if config.server.server_schedule == "constant" else "'server-schedule'"
    own = own if step is ServerStep else f"'+{step.name}'"
    if own:
        raise TermsError(
            "run config: the server finds the rate of the plain step, with its own schedule; "
            f"leave out {own}, or 'server-learning-rate' = 'found'"
        )
    return FoundRate


class FoundRate(ServerStep):
    """The plain step at a rate that it finds."""

    name = "found"
    is_linear = False
    needs: ClassVar[Mapping[str, str]] = {
        "one_model": "leave out 'server-learning-rate' = 'found'",
        "memoryless": "set a number, or declare 'round_alone' in your own strategy",
        "fresh_noise": "leave out 'server-learning-rate' = 'found'",
    }

    def __init__(self, config: RunConfig) -> None:
        """Prepare for the run of ``config``."""
        super().__init__(config)
        terms = config.terms
        self._rounds, self._client_rate = terms.rounds, terms.learning_rate
        self._way = FROM_START if terms.start and terms.start_parts == "all" else 1.0

    def rate(self, server_round: int) -> float:
        """Return the factor of η in a round: 1, then a fall."""
        hold = self._rounds // 2
        if server_round <= hold + 1:
            return 1.0
        return max(self._rounds - server_round + 1, 1) / (self._rounds - hold)

    def initial_state(self) -> FoundState:
        """Return no rate, no aggregate."""
        return FoundState()

    def move(
        self, state: FoundState, outcome: Outcome, updates: RoundUpdates
    ) -> tuple[Any, Outcome]:
        """Return the step ηₜΔₜ; the journal's ``server_rate`` is ηₜ, ``agreement`` κₜ.

        An aggregate of zeros moves nothing, and changes no rate. Where the strategy weighs earlier
        rounds anew (``Outcome.revision``), all that they moved is scaled by ``past_scale``, to the
        rates that aggregates of the new noise would have had.
        """
        delta = outcome.update
        norm = math.sqrt(_dot(delta, delta))
        if norm == 0:
            return state, outcome
        guess = self._way * distance(len(delta)) / math.sqrt(self._rounds)
        state, beside, past = _revised(state, outcome.revision, guess)
        now, agreement = updates.server_round, 0.0
        if state.last is None:
            way, first = guess, norm
        else:
            agreement = _dot(delta, state.last) / (norm * math.sqrt(_dot(state.last, state.last)))
            way, first = state.way, state.first
            if now <= self._rounds // 2 + 1:
                way = min(way * math.exp(change(agreement, len(delta))), LONGEST * guess)
        squares, number = state.squares + norm**2, state.number + 1
        multiplier = way / max(first, math.sqrt(squares / number))
        multiplier = min(max(multiplier, 1 / LARGEST_RATE), LARGEST_RATE)
        if now == self._rounds // 2 + 1:
            log.info(
                "round %d: found the server's rate %.3g, with the sites' %.3g in a step; it falls "
                "from here",
                now,
                multiplier,
                multiplier * self._client_rate,
            )
        rate = multiplier * self.rate(now)
        step = np.float32(rate) * delta
        energy, whole = state.energy + _dot(step, step), step
        if beside is not None:
            step = step + beside
        if state.moved is not None:
            whole = state.moved + step
        moved = moved_by(outcome, step, rate)
        gauges = {**moved.gauges, "agreement": agreement, "past_scale": past}
        state = FoundState(way, first, squares, number, delta, whole, energy)
        return state, replace(moved, gauges=gauges)


def _revised(
    state: FoundState, revision: Revision | None, guess: float
) -> tuple[FoundState, npt.NDArray[np.float32] | None, float]:
    """Return the state by a revision, its move and the scale of earlier moves.

    sₜ² grows by the noise that the revision adds to the aggregates so far. The rates ηₛ = aₛ/sₛ
    would have been smaller by the root: so is the way that the model has come, revised. Agreements
    would have been smaller by the square, and with them how far log a moved from a₁, ``guess``.
    """
    if revision is None or state.moved is None:
        return state, None, 1.0
    before = max(state.energy, revision.noise_before)
    past = math.sqrt(before / (before - revision.noise_before + revision.noise_after))
    whole = np.float32(past) * (state.moved + revision.move)
    first, squares = state.first / past, state.squares / past**2
    way = guess * (state.way / guess) ** min(past**2, 1.0)
    revised = replace(state, way=way, first=first, squares=squares)
    return revised, whole - state.moved, past


def distance(size: int) -> float:
    """Return D, the first guess of the way to go, for so many coordinates.

    >>> distance(81), distance(10_000)
    (3.75, 12.5)
    """
    return DISTANCE * math.sqrt(math.sqrt(max(size, FEWEST)))


def change(agreement: float, size: int) -> float:
    """Return the change of log η by κ for so many coordinates.

    >>> change(0.5, 100), change(-0.5, 100), change(0.19, 100)
    (0.84, -0.84, 0.0)
    """
    evidence = agreement**2 * size
    return GAIN * agreement * (1 - NOISE / evidence) if evidence > NOISE else 0.0


def _dot(left: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """Return the inner product in float64, without a copy of either."""
    return float(np.einsum("i,i->", left, other, dtype=np.float64))
