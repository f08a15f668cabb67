"""What a trusted server releases in a round has the noise that its plan pays for: bits and levels.

χ² tests on the rule's own output, at the stated false-alarm rate; half and twice the noise fail.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hdpfl_flower.privacy.accounting import Steps, epsilon_of, event_of, interval_for
from hdpfl_flower.privacy.adaptive_clipping import joint_multiplier
from hdpfl_flower.privacy.noise import RandomStream
from strategies.core.kernel import Kernel
from tests.strategies.fedhdp.test_fedhdp import kernel_of, updates_of

ALARM = 1e-9
"""Share of healthy builds that a test here fails."""
SITES, ROUNDS = 2_000, 400
MENUS = [
    pytest.param("", [2.0] * SITES, id="no menu"),
    pytest.param("inf,4,2,1", [math.inf, 4.0, 2.0, 1.0] * (SITES // 4), id="levels"),
    pytest.param("0.2", [0.2] * SITES, id="a strict level"),
]


def check_std(noise: np.ndarray, std: float) -> None:
    """Hold zero-mean Gaussian ``noise`` against its standard deviation, and wrong ones."""
    low, high = (float(stats.chi2.ppf(p, noise.size)) for p in (ALARM / 2, 1 - ALARM / 2))
    found = float((noise**2).sum()) / std**2
    assert low < found < high
    for wrong in (0.5, 2.0):
        assert not low < found / wrong**2 < high


def plan_of(kernel: Kernel):
    plan = kernel.state.levels.plan
    assert plan is not None
    return plan


@pytest.mark.parametrize(("levels", "epsilons"), MENUS)
def test_clipping_bits_have_the_paid_noise(levels: str, epsilons: list[float]) -> None:
    kernel = kernel_of(epsilons, levels=levels)
    plan, row = plan_of(kernel), np.full((1, 1), 0.25)
    expected = plan.sampling_prob * SITES
    shares = []
    for key in range(ROUNDS):
        stream = RandomStream(key.to_bytes(32, "big"))
        _, outcome = kernel.strategy.combine(kernel.state, updates_of(row, [1], epsilons), stream)
        shares.append(outcome.gauges["share_within"])
    assert 0 < min(shares) < max(shares) < 1  # none was cut to a share
    check_std((np.array(shares) - 0.5) * expected - 0.5, plan.bit_noise)


@pytest.mark.parametrize(("levels", "epsilons"), MENUS)
def test_a_levels_update_and_bits_together_cost_its_epsilon(
    levels: str, epsilons: list[float]
) -> None:
    kernel = kernel_of(epsilons, levels=levels, **{"clip-norm": 0.5})
    plan, size = plan_of(kernel), 2_000
    nobody = updates_of(np.zeros((0, size)), [], epsilons)
    means, _ = kernel.strategy._central_means(
        plan, nobody, np.zeros(0, np.int64), RandomStream(bytes(range(32)))
    )
    assert any(level.private for level in plan.levels)
    for level, mean in zip(plan.levels, means, strict=True):
        if not level.private:
            assert not mean.any()
            continue
        check_std(mean * level.expected, level.noise_multiplier * 0.5)
        joint = joint_multiplier(level.noise_multiplier, plan.bit_noise)
        event = event_of((Steps(plan.sampling_prob, plan.rounds),), joint)
        cost = epsilon_of(event, level.delta, interval_for(level.epsilon, plan.rounds))
        assert 0.98 * level.epsilon < cost <= level.epsilon
