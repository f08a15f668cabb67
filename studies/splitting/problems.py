"""Convex problems of the thesis: f = Σ fᵢ with proximal maps.

In float64.

The data are those of FedSplit (Pathak and Wainwright, NeurIPS 2020): features and the true
parameters from N(0, 1); the thesis states only their sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import TermsError

Floats = npt.NDArray[np.float64]

TOLERANCE = 1e-11
"""Tolerance of Newton's last step, relative to 1 + the point's norm."""
ITERATIONS = 100
"""Maximum Newton steps of a proximal map."""
HELD = 0.1
"""Largest gradient share left by a step that reuses a Hessian."""


@dataclass(frozen=True)
class Data:
    """Distribution of all clients' records, drawn anew per seed.

    Attributes:
        clients: n.
        records: of each client.
        features: d.
        noise: standard deviation of the targets of least squares; None: labels of a logistic
            model.
        seed: of the draw.
    """

    clients: int
    records: int
    features: int
    noise: float | None = None
    seed: int = 1

    def draw(self) -> Problem:
        """Return the problem with these records."""
        rng = np.random.default_rng(self.seed)
        truth = rng.standard_normal(self.features)
        if self.noise is not None:
            return self._least_squares(rng, truth, self.noise)
        features = rng.standard_normal((self.clients, self.records, self.features))
        labels = rng.random((self.clients, self.records)) < _sigmoid(features @ truth)
        return Logistic(features, labels.astype(np.float64))

    def _least_squares(self, rng: np.random.Generator, truth: Floats, noise: float) -> Problem:
        hessians = np.empty((self.clients, self.features, self.features))
        linear = np.empty((self.clients, self.features))
        for client in range(self.clients):  # one after another, to save memory
            features = rng.standard_normal((self.records, self.features))
            targets = features @ truth + noise * rng.standard_normal(self.records)
            hessians[client] = features.T @ features
            linear[client] = features.T @ targets
        return LeastSquares(hessians, linear)


class Problem(ABC):
    """f = Σ fᵢ; methods take a point per client, shape ``(n, d)``."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Clients and parameters."""

    @property
    @abstractmethod
    def solution(self) -> Floats:
        """Minimiser x* of f, shape ``(d,)``."""

    @abstractmethod
    def gradient(self, points: Floats) -> Floats:
        """Return ∇fᵢ at each client's point, shape ``(n, d)``."""

    @abstractmethod
    def prox(self, points: Floats, eta: float, start: Floats | None = None) -> Floats:
        """Return argmin fᵢ(x) + ‖x − uᵢ‖²/(2η) per client, shape ``(n, d)``.

        Args:
            points: u, shape ``(n, d)``.
            eta: η > 0.
            start: a guess, for problems that iterate.
        """

    @abstractmethod
    def gap(self, model: Floats) -> float:
        """Return f(x) − f(x*) ≥ 0 at a model ``(d,)``, without cancellation."""


@dataclass(frozen=True)
class LeastSquares(Problem):
    """fᵢ = ½‖Aᵢx − bᵢ‖², from Aᵢᵀ Aᵢ and Aᵢᵀ bᵢ.

    Attributes:
        hessians: Aᵢᵀ Aᵢ, shape ``(n, d, d)``.
        linear: Aᵢᵀ bᵢ, shape ``(n, d)``.
    """

    hessians: Floats
    linear: Floats

    @property
    def shape(self) -> tuple[int, int]:
        """Clients and parameters."""
        clients, parameters = self.linear.shape
        return clients, parameters

    @cached_property
    def solution(self) -> Floats:
        """Solution of the normal equations."""
        minimiser: Floats = np.linalg.solve(self._hessian, self.linear.sum(0))
        return minimiser

    def gradient(self, points: Floats) -> Floats:
        """Return Aᵢᵀ(Aᵢxᵢ − bᵢ), shape ``(n, d)``."""
        return _times(self.hessians, points) - self.linear

    def prox(self, points: Floats, eta: float, start: Floats | None = None) -> Floats:  # noqa: ARG002
        """Return (I + ηAᵢᵀ Aᵢ)⁻¹(uᵢ + ηAᵢᵀ bᵢ), with one factorisation."""
        values, vectors = self._factors
        inside = _times(vectors.transpose(0, 2, 1), points + eta * self.linear)
        return _times(vectors, inside / (1 + eta * values))

    def gap(self, model: Floats) -> float:
        """Return ½(x − x*)ᵀ ΣAᵢᵀ Aᵢ (x − x*)."""
        away = model - self.solution
        return float(away @ self._hessian @ away) / 2

    @cached_property
    def _hessian(self) -> Floats:
        total: Floats = self.hessians.sum(0)
        return total

    @cached_property
    def _factors(self) -> tuple[Floats, Floats]:
        values, vectors = np.linalg.eigh(self.hessians)
        return values, vectors


@dataclass(frozen=True)
class Logistic(Problem):
    """fᵢ = Σ log(1 + exp(aᵀx)) − y·aᵀx over a client's records.

    Attributes:
        features: a, shape ``(n, records, d)``.
        labels: y, 0 or 1, shape ``(n, records)``.
    """

    features: Floats
    labels: Floats

    @property
    def shape(self) -> tuple[int, int]:
        """Clients and parameters."""
        clients, _, parameters = self.features.shape
        return clients, parameters

    @cached_property
    def solution(self) -> Floats:
        """Solution by Newton's method on all pooled records."""
        parameters = self.features.shape[2]
        pooled = Logistic(self.features.reshape(1, -1, parameters), self.labels.reshape(1, -1))
        nowhere = np.zeros((1, parameters))
        minimiser: Floats = pooled._newton(nowhere, 0.0, nowhere)[0]
        return minimiser

    def gradient(self, points: Floats) -> Floats:
        """Return Aᵢᵀ(σ(Aᵢxᵢ) − yᵢ), shape ``(n, d)``."""
        wrong = _sigmoid(_times(self.features, points)) - self.labels
        return _times(self.features.transpose(0, 2, 1), wrong)

    def prox(self, points: Floats, eta: float, start: Floats | None = None) -> Floats:
        """Return the proximal points by Newton's method, to :data:`TOLERANCE`.

        Raises:
            TermsError: not found within :data:`ITERATIONS` steps.
        """
        return self._newton(points, 1 / eta, points if start is None else start)

    def gap(self, model: Floats) -> float:
        """Return f(x) − f(x*) as a sum of Bregman divergences, one per record."""
        best, margins = self.features @ self.solution, self.features @ model
        first = _sigmoid(best) * (margins - best)
        # The gradient at x* is 0: its term is left out, and with it the cancellation.
        apart = np.logaddexp(0, margins) - np.logaddexp(0, best) - first
        return max(float(apart.sum()), 0.0)  # below 0 it is rounding

    def _newton(self, centre: Floats, pull: float, start: Floats) -> Floats:
        """Return argmin fᵢ(x) + pull·‖x − centreᵢ‖²/2 per client, shape ``(n, d)``."""
        points = start.copy()
        gradient = self.gradient(points) + pull * (points - centre)
        norms, held = _norms(gradient), self._inverse(points, pull)
        for _ in range(ITERATIONS):
            steps = _times(held, gradient)
            scale = np.ones(len(points))
            for _ in range(ITERATIONS):
                there = points - scale[:, None] * steps
                gradient = self.gradient(there) + pull * (there - centre)
                later = _norms(gradient)
                small = _norms(steps) <= TOLERANCE * (1 + _norms(there))
                # Below the tolerance a norm is rounding error, which need not fall.
                worse = (later > norms) & ~small
                if not worse.any():
                    break
                scale[worse] /= 2
            if small.all():
                return there
            slow = (later > HELD * norms)[~small].any()
            points, norms = there, later
            held = self._inverse(points, pull) if slow else held
        raise TermsError(
            "splitting: a proximal map was not found to its tolerance; take a smaller "
            "'--learning-rate'"
        )

    def _inverse(self, points: Floats, pull: float) -> Floats:
        chance = _sigmoid(_times(self.features, points))
        weighted = self.features * (chance * (1 - chance))[:, :, None]
        hessians: Floats = self.features.transpose(0, 2, 1) @ weighted + pull * np.eye(
            points.shape[1]
        )
        return np.linalg.inv(hessians).astype(np.float64, copy=False)


def _times(matrices: Floats, vectors: Floats) -> Floats:
    """Return each client's matrix times its vector."""
    product: Floats = (matrices @ vectors[:, :, None])[:, :, 0]
    return product


def _norms(vectors: Floats) -> Floats:
    norms: Floats = np.sqrt(np.square(vectors).sum(axis=1))
    return norms


def _sigmoid(margins: Floats) -> Floats:
    probabilities: Floats = 0.5 * (1 + np.tanh(0.5 * margins))
    return probabilities
