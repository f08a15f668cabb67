"""Robust-HDP: weights by the estimated noise of every update.

Malekmohammadi, Yu and Cao, Noise-Aware Algorithm for Heterogeneous Differentially Private Federated
Learning (ICML 2024), Algorithm 1: wᵢ ∝ 1/σ̂ᵢ². The paper estimates σ̂ᵢ² by robust PCA
(``estimator = "rpca"``). The default, ``auto``, reads a first upload by factor analysis of the n ×
n Gram matrix (``noise_level.py``), at less than one pass over the updates, and from a site's second
upload on the differences of its uploads (``temporal.py``); a softmax layer's silent sums
(``softmax_head.py``) correct both. ``docs/concepts/noise-aware.md`` has the measured gain.

Every round anew, as Algorithm 1 has it, or with ``frozen-after = 1``, as its authors' code has it:
then a site keeps the level of its first upload. Freeze after two at the earliest: one round alone
estimates the noise worse. Sites that miss rounds keep their estimates.

Threat model: an untrusted server that learns nothing but the noisy updates. That it can estimate
their noise is a fact of any federated DP-SGD, not of this strategy. No site discloses anything,
unless ``estimator = "disclosed"`` welcomes it, tested (``disclosed_noise.py``).

Known limit: the weights know noise alone. Under label skew a quiet site may hold few of the labels,
and then these weights can lose to FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.config.settings import Count, Settings
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.estimators.temporal import NoiseEstimate, NoiseMemory, TrackOptions, track
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Declaration, Disclosed, HDPStrategy
from strategies.noise_aware.disclosed_noise import NOISE, with_claims
from strategies.noise_aware.oracle import inverse_variance_weights


@dataclass(frozen=True)
class RobustHDPState:
    """State of strategies that estimate noise.

    Attributes:
        uploads: memory of the clients' uploads, to estimate their noise.
    """

    uploads: NoiseMemory = field(default_factory=NoiseMemory)


StateT = TypeVar("StateT", bound=RobustHDPState)


class RobustHDPSettings(Settings):
    """Estimator of noise, and its number of uploads."""

    estimator: Literal["auto", "disclosed", "rpca"] = Field(
        "auto",
        description="Estimator of an update's noise: rpca (the paper's), auto (ours), or disclosed "
        "(what sites disclose as `noise-std`, where their updates agree, else auto).",
    )
    frozen_after: Count = Field(
        0,
        description="Uploads of a site after which its noise level is kept; 0: never, 1: as the "
        "paper's authors do.",
    )

    @property
    def facts(self) -> frozenset[str]:
        """Facts that the estimator uses where sites disclose them."""
        return frozenset({NOISE}) if self.estimator == "disclosed" else frozenset()


class RobustHDP(HDPStrategy):
    """Weights by estimated noise."""

    name = "robust-hdp"
    settings_type = RobustHDPSettings
    settings: RobustHDPSettings

    def declare(self) -> Declaration:
        """Declare the disclosed noise, if it is asked for."""
        return Declaration(optional_facts=self.settings.facts)

    def initial_state(self, disclosed: Disclosed | None = None) -> RobustHDPState:
        """Return no uploads."""
        return RobustHDPState()

    def combine(
        self, state: RobustHDPState, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[RobustHDPState, Outcome]:
        """Return Algorithm 1's step: estimate σ̂ᵢ², weigh by 1/σ̂ᵢ², sum."""
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
    options = TrackOptions(method, terms.clip_norm, settings.frozen_after, terms.noise_factor)
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
