"""Any weights with any projection: the rule that weighs runs as it is, its terms go through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies import PROJECTIONS, STRATEGIES, make_strategy
from strategies.core.base import State
from strategies.core.sampler import Sampler
from strategies.core.strategy_state import save_state
from strategies.multi_model.base import MultiModel
from strategies.noise_aware.mmse import MMSE
from strategies.projection.base import Projected
from strategies.splitting.base import Splitting
from strategies.splitting.own_starts import OwnStarts
from strategies.splitting.scaffold import Scaffold
from tests.federation import weighing

WEIGHTINGS = [
    name
    for name, rule in STRATEGIES.items()
    if not issubclass(rule, (Projected, MultiModel, Splitting, OwnStarts, Scaffold, MMSE))
]
FACTS = {"declared-records": (50, 500), "epsilon": (0.3, 8.0), "noise-std": (0.01, 3.0)}
D = 300


def combine(
    name: str, state: State | None = None, server_round: int = 1, **terms: Any
) -> tuple[State, Outcome]:
    generator = np.random.default_rng(7)
    rule = make_strategy(RunConfig.parse({"strategy": name, "public-split": "gmm", **terms}))
    disclosed = {fact: generator.uniform(*FACTS[fact], 8) for fact in sorted(FACTS)}
    rows = generator.standard_normal(D) + generator.standard_normal((8, D))
    updates = RoundUpdates(
        server_round,
        tuple(map(str, range(8))),
        rows.astype(np.float32),
        {fact: disclosed[fact] for fact in rule.needs},
    )
    return rule.combine(state or rule.initial_state(), updates, RandomStream(bytes(32)))


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_weights_and_state_are_the_weighing_rules(weighting: str, projection: str) -> None:
    composed = f"{weighting}+{projection}"
    state, alone = combine(weighting, **weighing(weighting, "records"))
    own_state, both = combine(composed, **weighing(composed, "records"))
    np.testing.assert_array_equal(both.weights, alone.weights)
    for name, gauge in alone.gauges.items():
        np.testing.assert_array_equal(both.gauges[name], gauge)
    arrays: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    assert save_state(own_state, arrays[0]) == save_state(state, arrays[1])
    for name, array in arrays[1].items():
        np.testing.assert_array_equal(arrays[0][name], array)
    if weighting != "public-only":  # its private sites have no weight
        assert not np.allclose(both.update, alone.update, rtol=1e-3)


def test_random_directions_change_with_round_and_seed_and_with_nothing_else() -> None:
    first = combine("fedavg+random")[1].update
    np.testing.assert_array_equal(combine("fedavg+random")[1].update, first)
    assert not np.allclose(combine("fedavg+random", server_round=2)[1].update, first)
    assert not np.allclose(combine("fedavg+random", seed=2)[1].update, first)


def test_who_is_public_does_not_follow_from_who_is_asked() -> None:
    """Eight strict sites were asked, and all of them were public among themselves."""
    sampler = Sampler(RunConfig.parse({"public-split": "gmm"}))
    epsilons = {f"{i}": 0.5 + 0.01 * i for i in range(8)} | {f"{i}": 10.0 + i for i in range(8, 12)}
    sampler.draw(1, list(epsilons), epsilons)
    asked = {site: epsilons[site] for site in list(epsilons)[:8]}
    public = sampler.public_sites(asked)
    assert public == frozenset({"8", "9", "10", "11"})
    assert not public & set(asked)
