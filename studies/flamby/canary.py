"""Lower bound on the leakage of one record under Switzerland's noise.

The noise is that of nominal ε = 1.

The server sends the model 0 in every round, which a server may. A coin adds one record or none:
only it has a cholesterol, which Switzerland did not measure, so large that its gradient is
clipped at every step that includes it. The score is the sum of all changes of that weight.
Guesses at a threshold fixed beforehand bound ε (``privacy/audit.py``). A larger ε is not
excluded, since another attack may see more: one that knows the order of the batches does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.audit import guesses_of
from studies.flamby.procedure import (
    ROUNDS,
    SECRET_SEEDS,
    Floats,
    divisor_of,
    local_batches,
    local_change,
)
from studies.flamby.spent import DELTA, SIGMAS
from studies.natural.federation import Split

SWITZERLAND = 2
LENGTH = 10.0
"""Cholesterol of the canary, for a gradient of 5 at the model 0."""
CUT = 2.75
"""Threshold in deviations above other trials' mean without the canary."""
CHUNK = 2000
"""Trials per chunk; a round's noise takes 22 MB."""


@dataclass(frozen=True)
class Found:
    """Lower bound of the audit.

    Attributes:
        trials: runs of Switzerland, about half of them with the canary.
        bound: on ε, at 95 %.
    """

    trials: int
    bound: float


def audit(split: Split, trials: int = 20_000, seed: int = 0) -> Found:
    """Return a bound on ε at δ = 1e-4, valid at 95 %.

    In at most 5 % of audits it is above the true ε.
    """
    own = split.train.take(np.flatnonzero(split.owners == SWITZERLAND))
    place = int(np.flatnonzero(~own.features.any(0))[0])
    features = np.zeros((1, own.features.shape[1]), dtype=np.float32)
    features[0, place] = LENGTH
    # Label 1 and weight 0: SGD moves the weight up.
    canary = Records(features, np.ones(1, dtype=np.int64))
    more = Records(
        np.concatenate([own.features, canary.features]),
        np.concatenate([own.targets, canary.targets]),
    )
    coins, *streams = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(4))
    members = int(coins.binomial(trials, 0.5))
    before = scores(own, place, CHUNK, streams[0])
    cut = float(before.mean() + CUT * before.std())
    found = np.concatenate(
        [scores(more, place, members, streams[1]), scores(own, place, trials - members, streams[2])]
    )
    guesses = guesses_of(found, np.arange(trials) < members, cut, gaussian=False)
    return Found(trials, guesses.epsilon_bound(DELTA, 0.05))


def scores(own: Records, place: int, trials: int, rng: np.random.Generator) -> Floats:
    """Return one weight's changes summed over rounds, shape ``(trials,)``."""
    sigma, found = SIGMAS["1"][SWITZERLAND], []
    for first in range(0, trials, CHUNK):
        runs = min(CHUNK, trials - first)
        batches = local_batches(own, SECRET_SEEDS, runs, rng)
        start = np.zeros((runs, own.features.shape[1] + 1))
        changes = [
            local_change(start, batches, sigma, divisor_of(len(own)), rng.standard_normal)[:, place]
            for _ in range(ROUNDS)
        ]
        found.append(np.sum(changes, axis=0))
    return np.concatenate(found)
