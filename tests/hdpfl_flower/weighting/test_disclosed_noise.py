"""Disclosed noise: believed if the silent sums agree, and harmless if not."""

from __future__ import annotations

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.disclosed_noise import ALARM, DISCLOSED
from strategies import make_strategy

CLASSES, INPUTS, ROUNDS = 3, 60, 12
HEAD = Head(0, CLASSES, INPUTS)
STD = np.array([0.3, 1.0, 2.0])


def run(
    claims: object,
    seed: int = 1,
    name: str = "robust-hdp",
    estimator: str = "disclosed",
    forged: float = 0.0,
    head: Head | None = HEAD,
) -> list[Outcome]:
    """Return the outcomes of three sites whose own, moving signals sum to 0 over the classes."""
    generator = np.random.default_rng(seed)
    config = RunConfig.parse({"strategy": name, "rounds": ROUNDS, f"{name}.estimator": estimator})
    rule = make_strategy(config)
    state, found = rule.initial_state(), []
    for number in range(1, ROUNDS + 1):
        signal = 0.3 * generator.standard_normal((3, CLASSES, INPUTS + 1))
        signal -= signal.mean(axis=1, keepdims=True)
        noise = STD[:, None, None] * generator.standard_normal(signal.shape)
        if forged:  # of the noisiest: what sums to 0 keeps its noise, the sums have little
            noise[2] -= noise[2].mean(axis=0) * (1 - forged / STD[2])
        parts = np.split(signal + noise, [INPUTS], axis=2)  # the biases follow the weights
        rows = np.concatenate([part.reshape(3, -1) for part in parts], axis=1)
        facts = {"noise-std": np.asarray(claims, dtype=np.float64)}
        given = RoundUpdates(number, ("a", "b", "c"), rows.astype(np.float32), facts, head=head)
        state, outcome = rule.combine(state, given, RandomStream(bytes(32)))
        found.append(outcome)
    return found


def believed(outcome: Outcome) -> list[bool]:
    return [bool(x) for x in outcome.gauges.get(f"noise by {DISCLOSED}", np.zeros(3))]


@pytest.mark.parametrize("head", [HEAD, None])
@pytest.mark.parametrize("name", ["robust-hdp", "mmse"])
def test_weights_rest_on_what_sites_disclose(name: str, head: Head | None) -> None:
    for outcome in run(STD, name=name, head=head):
        assert believed(outcome) == [True, True, True]
        np.testing.assert_allclose(outcome.gauges["noise_std"], STD)
        if name == "robust-hdp":
            np.testing.assert_allclose(outcome.weights, STD**-2 / np.sum(STD**-2.0))


LIES = [0.0, np.nan, 1e300, -1.0, 1e-200, 1e-3, np.inf]


@pytest.mark.parametrize(
    ("head", "lie"),
    [*((HEAD, lie) for lie in (*LIES, 1.0)), *((None, lie) for lie in (*LIES, 0.7))],
)
def test_a_lie_changes_nothing(head: Head | None, lie: float) -> None:
    """Of the noisiest site: what it gets is what it gets without a claim."""
    lies, honest, silent = (
        run(claims, head=head) for claims in ([*STD[:2], lie], [*STD[:2], np.nan], [np.nan] * 3)
    )
    for number, with_lie in enumerate(lies):
        # Without a head nothing is sure in round 1: one doubt sets all claims aside.
        is_sure = believed(with_lie) == [True, True, False]
        assert is_sure or (head is None and number == 0 and not any(believed(with_lie)))
        expected = honest[number] if is_sure else silent[number]
        np.testing.assert_array_equal(with_lie.weights, expected.weights)


def test_a_small_lie_is_found_in_the_run() -> None:
    # The standard error of the mean square after 12 rounds of 61 sums is 5.2 %.
    lies = [run([*STD[:2], 0.85 * STD[2]], seed)[-1] for seed in range(20)]
    assert sum(believed(one)[2] for one in lies) <= 2


def test_honest_claims_are_doubted_as_often_as_stated() -> None:
    # 200 runs of 3 sites: .6 doubted ones are to be expected at most, 5 has a chance below 1e-3.
    doubted = sum(
        not all(column)
        for seed in range(200)
        for column in zip(*(believed(one) for one in run(STD, 100 + seed)), strict=True)
    )
    assert ALARM == 1e-3 and doubted <= 4


def test_a_forged_head_carries_no_claim() -> None:
    for outcome in run([*STD[:2], 0.3], forged=0.3):
        assert believed(outcome) == [True, True, False]
