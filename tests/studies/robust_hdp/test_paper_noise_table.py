"""The noise of the aggregate in Robust-HDP's Table 2, reproduced without training.

The paper's z come from the paper's accountant (``simulation/paper_formulas.py``), so the table
tests our weights, not our calibration. Source: Malekmohammadi et al. (ICML 2024), Table 2;
see ``studies/robust_hdp/noise_table.py``, whose numbers are these.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import RoundUpdates
from hdpfl_tools.simulation.scenarios.published_budgets import epsilons
from strategies import make_strategy
from studies.robust_hdp import noise_table
from studies.robust_hdp.noise_table import ILL_CONDITIONED, PAPER, paper_multiplier


def variances(dist: int, least: bool = False) -> npt.NDArray[np.float64]:
    return noise_table.variances(dist, paper_multiplier, least=least)


def noise_of(rule: str, dist: int) -> float:
    """Return Σ wᵢ²σᵢ²/(p·η²) with the weights that the rule's own code gives."""
    sigma = variances(dist, least=rule == "minimum")
    generator = np.random.default_rng(dist)
    rows = generator.standard_normal((20, 28_938)) * np.sqrt(sigma)[:, None]
    rows += 0.3 * np.sqrt(sigma.min()) * generator.standard_normal(28_938)  # a signal they share
    strategy = make_strategy(RunConfig.parse({"strategy": rule}))
    facts = {"noise-std": np.sqrt(sigma), "epsilon": np.array(epsilons(dist, 20))}
    disclosed = {fact: facts[fact] for fact in strategy.declare().required_facts}
    updates = RoundUpdates(1, tuple(map(str, range(20))), rows.astype(np.float32), disclosed)
    state = strategy.initial_state()
    _, outcome = strategy.combine(state, updates, RandomStream(bytes(32)))
    return float((outcome.weights**2 * sigma).sum())


@pytest.mark.parametrize("dist", range(1, 10))
@pytest.mark.parametrize("rule", PAPER)
def test_the_papers_table(rule: str, dist: int) -> None:
    printed = PAPER[rule][dist - 1]
    if (rule, dist) in ILL_CONDITIONED:
        # 1453 for 1868, 232 for 241, 67 for 71 with the same accountant, by two libraries
        assert noise_of(rule, dist) == pytest.approx(printed, rel=0.25)
    else:
        assert noise_of(rule, dist) == pytest.approx(printed, rel=0.015, abs=0.0051)


@pytest.mark.parametrize("rule", ["weiavg", "fedavg", "minimum", "oracle"])
def test_the_study_prints_what_the_rules_give(rule: str) -> None:
    expected = noise_of(rule, 2)
    assert noise_table.aggregated_noise(rule, 2, paper_multiplier) == pytest.approx(expected, 1e-6)
