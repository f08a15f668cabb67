"""The watch of few sites: what it compares each rule with."""

from __future__ import annotations

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import RoundUpdates
from studies.which_rule.few_sites import OFF, Watch


def test_each_rule_is_compared_with_itself_under_the_true_noise() -> None:
    generator, std = np.random.default_rng(1), np.array([0.1, 0.3, 1.0])
    watch = Watch(RunConfig.parse({"strategy": "studies.which_rule.few_sites:Watch"}))
    state = watch.initial_state()
    # A private signal of three times the least noise: one round takes it for noise.
    signal = 0.3 * generator.standard_normal((3, 3000))
    noise = std[:, None] * generator.standard_normal(signal.shape)
    facts = {"noise-std": std}
    updates = RoundUpdates(1, ("a", "b", "c"), (signal + noise).astype(np.float32), facts)
    state, outcome = watch.combine(state, updates, RandomStream(bytes(32)))
    np.testing.assert_allclose(outcome.weights, std**-2 / np.sum(std**-2))
    for name in ("robust-hdp", "mmse"):  # one upload cannot tell: no claim is used
        assert outcome.gauges[f"{name}, disclosed"] == outcome.gauges[f"{name}, estimated"] > OFF
    again = RoundUpdates(
        2, ("a", "b", "c"),
        (signal + std[:, None] * generator.standard_normal(signal.shape)).astype(np.float32), facts,
    )  # fmt: skip
    _, outcome = watch.combine(state, again, RandomStream(bytes(32)))
    assert outcome.gauges["robust-hdp, disclosed"] == 0 < outcome.gauges["robust-hdp, estimated"]
