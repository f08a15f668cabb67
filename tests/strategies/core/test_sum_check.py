"""Declared weighted sums: float32's rounding passes at every scale, a wrong sum does not."""

from __future__ import annotations

import numpy as np
import pytest

from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.checks import is_declared_sum


@pytest.mark.parametrize("scale", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("clients", [1, 8, 20])
def test_a_mean_in_float32_is_a_weighted_sum_at_every_scale(scale: float, clients: int) -> None:
    draw = np.random.default_rng(clients)
    rows = (scale * draw.standard_normal((clients, 100_000))).astype(np.float32)
    updates = RoundUpdates(1, tuple(map(str, range(clients))), rows)
    weights = np.full(clients, 1 / clients)
    for mean in (rows.mean(0), weights.astype(np.float32) @ rows):
        assert is_declared_sum(Outcome(mean, weights), updates)
    for wrong in (1.001 * mean, mean + np.float32(1e-3 * scale), np.roll(mean, 1)):
        assert not is_declared_sum(Outcome(wrong.astype(np.float32), weights), updates)


def test_updates_of_zeros_are_their_sum() -> None:
    rows = np.zeros((3, 10), np.float32)
    outcome = Outcome(np.zeros(10, np.float32), np.full(3, 1 / 3))
    assert is_declared_sum(outcome, RoundUpdates(1, ("a", "b", "c"), rows))
