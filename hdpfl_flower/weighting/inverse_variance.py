"""Weights by estimated noise: wᵢ ∝ 1/σ̂ᵢ².

Malekmohammadi, Yu and Cao, Noise-Aware Algorithm for Heterogeneous Differentially Private Federated
Learning (ICML 2024), Algorithm 1. ``strategies/noise_aware/robust_hdp.py`` has the threat model and
the limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.config.settings import Settings
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import EstimationError
from hdpfl_flower.estimators.temporal import NoiseEstimate, NoiseMemory, TrackOptions, track
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.disclosed_noise import NOISE, with_claims


@dataclass(frozen=True)
class RobustHDPState:
    """State of strategies that estimate noise.

    Attributes:
        uploads: memory of the clients' uploads, to estimate their noise.
    """

    uploads: NoiseMemory = field(default_factory=NoiseMemory)


StateT = TypeVar("StateT", bound=RobustHDPState)


class RobustHDPSettings(Settings):
    """Estimator of noise."""

    estimator: Literal["auto", "disclosed", "rpca"] = Field(
        "auto",
        description="Estimator of the noise in an update: rpca (from the paper), auto (ours), or "
        "disclosed (the `noise-std` that a site discloses if its updates agree with it, else as "
        "auto).",
    )

    @property
    def facts(self) -> frozenset[str]:
        """Facts that the estimator uses where sites disclose them."""
        return frozenset({NOISE}) if self.estimator == "disclosed" else frozenset()


@dataclass(frozen=True)
class InverseVariance:
    """Algorithm 1, state in, state out.

    Attributes:
        terms: of the run; the clip norm and the planned course of the noise.
        settings: the estimator's.
    """

    terms: RunTerms
    settings: RobustHDPSettings

    def initial_state(self) -> RobustHDPState:
        """Return no uploads."""
        return RobustHDPState()

    def combine(
        self, state: RobustHDPState, updates: RoundUpdates
    ) -> tuple[RobustHDPState, Outcome]:
        """Return the step: estimate σ̂ᵢ², weigh by 1/σ̂ᵢ², sum."""
        state, estimate = estimate_noise(state, updates, self.settings, self.terms)
        weights = noise_weights(estimate.variances)
        step = weighted_sum(weights, updates.updates)
        return state, Outcome(step, weights, noise_gauges(estimate))


def estimate_noise(
    state: StateT, updates: RoundUpdates, settings: RobustHDPSettings, terms: RunTerms
) -> tuple[StateT, NoiseEstimate]:
    """Return the state and σ̂ᵢ² after a round; the guard's σ̂ᵢ², if any."""
    if updates.noise is not None:
        return state, updates.noise
    method = "rpca" if settings.estimator == "rpca" else "auto"
    options = TrackOptions(method, terms.clip_norm, terms.noise_factor)
    memory, estimate = track(
        state.uploads,
        updates.server_round,
        updates.sites,
        updates.updates,
        options,
        updates.head,
    )
    if settings.facts:
        estimate = with_claims(estimate, memory, updates, terms)
    return replace(state, uploads=memory), estimate


def noise_weights(variances: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return weights in proportion to 1/σ̂ᵢ², shape ``(n,)``.

    An update of zeros has σ̂² = ∞: it holds nothing and would pass for noiseless, so it gets no
    weight. Where all are zeros the weights are equal.

    >>> noise_weights(np.array([1.0, np.inf, 4.0]))
    array([0.8, 0. , 0.2])
    """
    measured = np.isfinite(variances)
    weights = np.full(len(measured), 1 / len(measured))
    if measured.any():
        weights = np.zeros(len(measured))
        weights[measured] = inverse_variance_weights(variances[measured])
    return weights


def inverse_variance_weights(variances: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the weights wᵢ ∝ 1/σᵢ², shape ``(n,)``.

    Sites of variance 0 share all the weight equally.

    Args:
        variances: σᵢ² of all sites in one unit, a coordinate or a vector, shape ``(n,)``, n ≥ 1.

    Raises:
        EstimationError: another shape, or a number that is negative or not finite.

    >>> inverse_variance_weights(np.array([1.0, 4.0]))
    array([0.8, 0.2])
    >>> inverse_variance_weights(np.array([0.0, 4.0, 0.0]))
    array([0.5, 0. , 0.5])
    """
    if np.ndim(variances) != 1 or not np.size(variances):
        raise EstimationError("variances must be one number per client, shape (n,)")
    if not (np.isfinite(variances) & (variances >= 0)).all():
        raise EstimationError("a variance is negative or not finite; leave out that client")
    exact = variances == 0
    if exact.any():
        precision = exact.astype(np.float64)
    else:
        # In units of the least variance: 1/σᵢ² alone could overflow.
        precision = variances.min() / variances
    weights: npt.NDArray[np.float64] = precision / precision.sum()
    return weights


def noise_gauges(estimate: NoiseEstimate) -> dict[str, float | npt.NDArray[np.float64]]:
    """Return a round's noise for the journal, each shape ``(n,)``.

    ``noise_std``, 0 where there is no estimate; ``noise_pairs``, pairs of uploads seen;
    ``noise_identified``, 0 where it may be far from the noise; and for each estimator and reason a
    row of ones and zeros: which of them it was.
    """
    variances = np.where(np.isfinite(estimate.variances), estimate.variances, 0)
    gauges: dict[str, float | npt.NDArray[np.float64]] = {
        "noise_std": np.sqrt(variances),
        "noise_pairs": estimate.pairs,
        "noise_identified": estimate.identified.astype(np.float64),
    }
    for reason in dict.fromkeys(estimate.reasons):
        gauges[f"noise by {reason}"] = np.array([float(r == reason) for r in estimate.reasons])
    return gauges
