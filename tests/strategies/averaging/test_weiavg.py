"""WeiAvg, maximum and public-only: PFA's baselines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.by_epsilon import epsilon_weights
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from server_app.run.rounds import run
from strategies import make_strategy
from strategies.averaging.maximum import Maximum
from tests.federation import ScriptedGrid, sends

MIXED = np.array([0.1, 0.1, 0.12, 0.09, 10.0, 9.9])


def combine(epsilons: np.ndarray, **terms: Any) -> tuple[np.ndarray, Outcome]:
    rows = np.random.default_rng(0).standard_normal((len(epsilons), 50)).astype(np.float32)
    rule = make_strategy(RunConfig.parse(terms))
    updates = RoundUpdates(1, tuple(map(str, range(len(rows)))), rows, {"epsilon": epsilons})
    return rows, rule.combine(rule.initial_state(), updates, RandomStream(bytes(32)))[1]


def test_weights_are_shares_of_epsilon() -> None:
    """PFA's MixGauss1, nine sites at 0.1 and one at 10: the one has 10/10.9 of the weight."""
    weights = epsilon_weights(np.array([0.1] * 9 + [10.0]))
    np.testing.assert_allclose(weights, [0.1 / 10.9] * 9 + [10 / 10.9], rtol=1e-12)


def test_no_site_buys_weight_beyond_an_epsilon_of_twenty() -> None:
    honest = epsilon_weights(np.array([1.0, 2.0, 20.0]))
    for lie in (21.0, 1e12, math.inf):
        np.testing.assert_array_equal(epsilon_weights(np.array([1.0, 2.0, lie])), honest)


def test_public_only_is_weiavg_among_the_public_sites() -> None:
    rows, outcome = combine(MIXED, strategy="public-only")
    np.testing.assert_allclose(outcome.weights, [0, 0, 0, 0, 10 / 19.9, 9.9 / 19.9], rtol=1e-12)
    np.testing.assert_array_equal(outcome.gauges["public"], MIXED > 5)
    np.testing.assert_allclose(outcome.update, outcome.weights @ rows, rtol=1e-5, atol=1e-6)


def test_public_only_without_public_sites_is_weiavg_and_says_so() -> None:
    _, outcome = combine(MIXED, strategy="public-only", **{"public-split": "threshold:11"})
    np.testing.assert_array_equal(outcome.weights, epsilon_weights(MIXED))
    np.testing.assert_array_equal(outcome.gauges["public"], np.zeros(6))


@pytest.mark.parametrize("strategy", ["weiavg", "public-only", "pfa", "robust-hdp+pfa"])
def test_a_site_that_discloses_no_sound_epsilon_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, strategy: str
) -> None:
    facts = [{"epsilon": 1.0}, {"epsilon": 8.0}, {}, {"epsilon": math.nan}, {"epsilon": -3.0}]
    generator = np.random.default_rng(0)
    sites = {
        name: sends(0.01 * generator.standard_normal(650).astype(np.float32)) for name in "abcde"
    }
    grid = ScriptedGrid(sites, dict(zip(sites, facts, strict=True)))
    terms = RunConfig.parse({"strategy": strategy, "rounds": 1, "runs-dir": str(tmp_path)})
    (event,) = run(grid, terms).rounds
    assert event["accepted"] == event["asked"] == ["a", "b"]
    for name in "cde":
        assert (
            f"site {name} is left out: the site does not disclose epsilon; 'disclose' in"
            in caplog.text
        )


def charged(folder: Path, run_id: str) -> list[float]:
    """The ε that each simulated site's ledger charged."""
    found = []
    for path in sorted((folder / run_id / "sites").glob("*/ledger.sqlite")):
        ledger = Ledger(path, durable=False)
        plans = ledger.account().plans.values()
        found += [Plan.from_json(frozen.plan).epsilon for frozen in plans]
        ledger.close()
    return found


@pytest.mark.usefixtures("guessed_noise")
def test_under_maximum_every_simulated_site_spends_the_largest_budget(tmp_path: Path) -> None:
    terms = RunConfig.parse(
        {"strategy": "maximum", "epsilons": "0.5,1,4", "rounds": 2, "local-steps": 1,
         "runs-dir": str(tmp_path), "run-id": "r"}
    )  # fmt: skip
    result = run_in_process(terms, 3)
    assert [event["accepted"] for event in result.rounds] == [["0", "1", "2"]] * 2
    assert charged(tmp_path, "r") == []  # what the sites opened to join, at their own ε
    assert charged(tmp_path, "r/maximum") == [4.0] * 3


def test_maximum_takes_the_largest_even_if_it_is_infinite() -> None:
    rule = Maximum(RunConfig.parse({"strategy": "maximum", "run-id": "r"}))
    disclosed = {"a": {"epsilon": 3.25}, "b": {"epsilon": 0.4}}
    assert rule.propose(rule.terms, disclosed).simulated_epsilon == "3.25"
    assert rule.propose(rule.terms, {"c": {"epsilon": math.inf}}).simulated_epsilon == "inf"


def test_maximum_does_not_run_on_real_sites() -> None:
    config = {"strategy": "maximum", "dataset": "site", "schema": "heart"}
    with pytest.raises(TermsError, match="'maximum' violates the promises of stricter sites"):
        make_strategy(RunConfig.parse(config))
