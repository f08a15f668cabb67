"""Methods of the thesis on points u ``(n, d)``, in float64.

A method is a scheme (α, β, γ), a map of the clients (their proximal maps, or k gradient steps in
FedAvg), a schedule of η and, optionally, ergodic averages or Anderson acceleration of memory
τ at the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.anderson import RIDGE, mixing_weights
from hdpfl_flower.linalg.types import Matrix
from strategies.server_step.schedule import Schedule
from strategies.splitting.scheme import FEDPROX, Scheme
from studies.splitting.problems import Problem

Floats = npt.NDArray[np.float64]

INVERSE_SQUARE = "inverse-square"
"""Schedule η₀/(e + 1)² with a finite sum.

Beside those of ``strategies/server_step/schedule.py``.
"""


@dataclass(frozen=True)
class Method:
    """One line of a figure.

    Attributes:
        label: its name there.
        scheme: α, β, γ.
        gradient_steps: k gradient steps of rate η in place of the proximal map; 0: the map.
        schedule: of η.
        rate: η₀ as a multiple of the panel's η.
        ergodic: whether the models' mean, weighted by η, is reported.
        memory: τ of Anderson acceleration; 0: none.
        late: whether acceleration waits for τ + 1 points, as in the thesis; otherwise it begins
            in the second round with the points that there are.
    """

    label: str
    scheme: Scheme = FEDPROX
    gradient_steps: int = 0
    schedule: str = "constant"
    rate: float = 1.0
    ergodic: bool = False
    memory: int = 0
    late: bool = False

    @property
    def regularised(self) -> bool:
        """Whether a constant η leads to another minimiser than f's, or k > 1."""
        if self.gradient_steps:
            return self.gradient_steps > 1
        return self.scheme.effective_step(1.0) > 0

    def eta(self, eta: float, server_round: int, rounds: int) -> float:
        """Return η of a round, from 1, for the panel's ``eta``."""
        if self.schedule == INVERSE_SQUARE:
            return eta * self.rate / server_round**2
        return eta * self.rate * Schedule(self.schedule, rounds)(server_round)


@dataclass(frozen=True)
class Iterate:
    """Result of a round.

    Attributes:
        points: u⁺, shape ``(n, d)``.
        model: P_H z, or the ergodic mean of these, shape ``(d,)``.
    """

    points: Floats
    model: Floats


def iterate(
    method: Method, problem: Problem, eta: float, rounds: int, start: Floats | None = None
) -> Iterator[Iterate]:
    """Yield the iterates of ``rounds`` rounds from ``start`` ``(n, d)`` or 0."""
    points = np.zeros(problem.shape) if start is None else start
    weights = np.full(problem.shape[0], 1 / problem.shape[0])
    last: list[Floats] = []
    images: list[Floats] = []
    mapped: Floats | None = None
    total, mean = 0.0, np.zeros(problem.shape[1])
    for server_round in range(1, rounds + 1):
        now = method.eta(eta, server_round, rounds)
        mapped = _map(method, problem, points, now, mapped)
        image, model = method.scheme.step(points, mapped, weights)
        if method.ergodic:
            total += now
            mean = mean + now / total * (model - mean)
        last, images = [*last, points][-method.memory - 1 :], [*images, image][-method.memory - 1 :]
        points = _accelerated(method, last, images)
        yield Iterate(points, mean if method.ergodic else model)


def gaps(
    method: Method,
    problem: Problem,
    eta: float,
    rounds: int,
    on_round: Callable[[], None] = lambda: None,
) -> Floats:
    """Return f(model) − f(x*) after each round, shape ``(rounds,)``; inf after divergence."""
    values = np.full(rounds, np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        for number, iterated in enumerate(iterate(method, problem, eta, rounds)):
            gap = problem.gap(iterated.model)
            if not np.isfinite(gap):
                break
            values[number] = gap
            on_round()
    return values


def _map(
    method: Method, problem: Problem, points: Floats, eta: float, before: Floats | None
) -> Floats:
    if not method.gradient_steps:
        return problem.prox(points, eta, before)
    for _ in range(method.gradient_steps):
        points = points - eta * problem.gradient(points)
    return points


def _accelerated(method: Method, points: list[Floats], images: list[Floats]) -> Floats:
    memory = method.memory if method.late else min(method.memory, len(images) - 1)
    return accelerate(points, images, memory) if memory else images[-1]


def accelerate(
    points: Sequence[Matrix], images: Sequence[Matrix], memory: int, ridge: float = RIDGE
) -> Matrix:
    """Return the next point Σ πⱼT(uⱼ) over ``memory`` + 1 points; pure.

    The last points are used.

    Args:
        points: u₀, u₁, …, float64, all of one shape.
        images: T(u₀), T(u₁), …, likewise.
        memory: τ ≥ 1. With fewer than τ + 1 points the next one is the last image: no acceleration.
        ridge: see :func:`mixing_weights`.
    """
    if len(images) <= memory:
        return images[-1]
    last = images[-memory - 1 :]
    residuals = np.array(
        [(image - point).ravel() for point, image in zip(points[-memory - 1 :], last, strict=True)]
    )
    weights = mixing_weights(residuals @ residuals.T, ridge)
    return np.tensordot(weights, np.array(last), axes=1)
