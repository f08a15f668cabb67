"""A lower bound on what Switzerland's noise of nominal ε = 1 lets a server find of one record.

The server sends the model 0 in every round, which a server may. One record more, or none by coin:
it alone has a cholesterol, which Switzerland did not measure, and one so large that its gradient is
clipped at every step that it is in. The score is the sum of all changes of that weight.
A guess at a threshold that is fixed before bounds ε (``privacy/audit.py``). A larger ε is not
excluded, for another attack may see more: one that knows the order of the batches does.
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
"""Of the canary's cholesterol: its gradient is 5 at the model 0, far above the clip norm."""
CUT = 2.75
"""Threshold, in deviations above the mean of the scores without the canary, of other trials."""
CHUNK = 2000
"""Trials at a time: the noise of a round takes 22 MB."""


@dataclass(frozen=True)
class Found:
    """The lower bound.

    Attributes:
        trials: runs of Switzerland, about half of them with the canary.
        bound: on ε, at 95 %.
    """

    trials: int
    bound: float


def audit(split: Split, trials: int = 20_000, seed: int = 0) -> Found:
    """Return a bound on ε at δ = 1e-4 that is above the true ε in at most 5 % of audits."""
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
    """Return the sum over the rounds of the changes of one weight, shape ``(trials,)``."""
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
