"""Common scheme of FedProx, FedSplit, FedPi and FedRP: operator splitting.

Malekmohammadi, Shaloudegi, Hu and Yu, An Operator Splitting View of Federated Learning (2021), with
P the clients' proximal maps and H the set where all clients agree:

    z = (1 − α)u + αP(u);  θ = (1 − β)z + βP_H z;  u⁺ = (1 − γ)u + γθ

The model to report is P_H z, the weighted mean of z over the clients. With β = 1 the clients agree
after every round, and only αγ matters: FedRP is FedProx with a server's rate of 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scheme:
    """The relaxations of a scheme.

    Attributes:
        alpha: of the clients' proximal maps, above 0; 2 is a reflection.
        beta: of the projection on agreement, above 0; 2 is a reflection.
        gamma: of the whole step, above 0.
    """

    alpha: float
    beta: float
    gamma: float

    def effective_step(self, eta: float) -> float:
        """Return η of the Moreau-regularised problem at the fixed points; 0: none.

        η(α + β − αβ)/β, whatever γ is (ours). At 0 the fixed points solve the original problem.

        >>> FEDPROX.effective_step(0.5), FEDSPLIT.effective_step(0.5), FEDRP.effective_step(0.5)
        (0.5, 0.0, 0.5)
        """
        return eta * (self.alpha + self.beta - self.alpha * self.beta) / self.beta

    def step(self, u: Floats, prox: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Return u⁺, shape ``(n, d)``, and the model to report P_H z, shape ``(d,)``.

        Args:
            u: where each client began, shape ``(n, d)``.
            prox: where its proximal map took it, shape ``(n, d)``.
            weights: of the clients in P_H, shape ``(n,)``, sum 1; the same in every round.
        """
        z = u + self.alpha * (prox - u)
        mean = weights @ z
        theta = z + self.beta * (mean - z)
        return u + self.gamma * (theta - u), mean


FEDPROX = Scheme(1, 1, 1)
FEDRP = Scheme(2, 1, 1)
FEDSPLIT = Scheme(2, 2, 1)
"""Peaceman–Rachford splitting."""
FEDPI = Scheme(2, 2, 0.5)
"""Douglas–Rachford splitting, the method of partial inverses."""
