"""What each rule does that no other does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.weighting.by_records import record_weights
from hdpfl_flower.weighting.inverse_variance import RobustHDPSettings, inverse_variance_weights
from strategies import SETTINGS_OWNERS, STRATEGIES, check_strategy, make_strategy
from strategies.averaging.minimum import Minimum
from strategies.settings import assigned, setting_rows, with_own_settings


def test_record_weights_are_shares_and_a_lie_buys_at_most_ten_medians() -> None:
    np.testing.assert_allclose(record_weights(np.array([100.0, 300.0, 600.0])), [0.1, 0.3, 0.6])
    lie = record_weights(np.array([100.0, 100.0, 100.0, 1e12]))
    np.testing.assert_allclose(lie, np.array([1, 1, 1, 10]) / 13)


def test_inverse_variance_weights_minimise_the_variance() -> None:
    generator = np.random.default_rng(0)
    variances = 10 ** generator.uniform(-6, 6, 20)
    best = inverse_variance_weights(variances)
    least = (best**2 * variances).sum()
    assert least == pytest.approx(1 / (1 / variances).sum())
    for _ in range(50):
        other = best * np.exp(0.1 * generator.standard_normal(20))
        other /= other.sum()
        assert (other**2 * variances).sum() >= least


def test_the_strictest_epsilon_becomes_everybodys_cap() -> None:
    rule = Minimum(RunConfig.parse({"strategy": "minimum"}))
    terms = rule.terms
    disclosed = {"a": {"epsilon": 3.0}, "b": {"epsilon": 0.4}, "c": {"epsilon": math.inf}}
    assert rule.propose(terms, disclosed).epsilon_cap == 0.4
    assert rule.propose(terms, {"c": {"epsilon": math.inf}}).epsilon_cap == 0.0


# --- settings of strategies: a table a strategy, refused by name, and of the run's parts alone


ROWS = {row.key: row for row in setting_rows(SETTINGS_OWNERS)}


def config_of(strategy: str, **settings: Any) -> RunConfig:
    return RunConfig.parse({"strategy": strategy, **settings})


def test_a_table_and_a_key_with_a_dot_are_the_same() -> None:
    """TOML has tables, Flower's run config keys with a dot."""
    table = config_of("robust-hdp", **{"robust-hdp": {"estimator": "rpca"}})
    dotted = config_of("robust-hdp", **{"robust-hdp.estimator": "rpca"})
    assert table == dotted
    assert RunConfig.parse(table.as_config()) == table
    settings = make_strategy(table).settings
    assert settings == RobustHDPSettings.parse({"estimator": "rpca"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"robust-hdp.estimater": "rpca"}, "'robust-hdp.estimater' .* 'robust-hdp.estimator'"),
        ({"robust_hdp.estimator": "rpca"}, "'robust_hdp.estimator' .* 'robust-hdp.estimator'"),
        ({"robust-hdp.estimator": "magic"}, "'robust-hdp.estimator' must be 'auto'"),
        ({"oracle.estimator": "rpca"}, "'oracle.estimator' is not a known key"),
        ({"nobody": {}}, "'nobody.' is not a known key"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TermsError, match=words):
        make_strategy(config_of("robust-hdp", **given))


def test_a_setting_of_a_strategy_that_does_not_run_is_refused_but_at_its_default() -> None:
    """Flower's run config always holds every declared key."""
    every = {row.key: row.default for row in ROWS.values()}
    for name in STRATEGIES:
        if name != "oracle-clusters":  # of groups
            make_strategy(config_of(name, **every))
    with pytest.raises(TermsError, match=r"'robust-hdp\.estimator' is a setting .* 'fedavg' runs"):
        make_strategy(config_of("fedavg", **{**every, "robust-hdp.estimator": "rpca"}))
    with pytest.raises(TermsError, match=r"'robust-hdp\.estimator' is a setting .* 'mmse' runs"):
        make_strategy(config_of("mmse", **{"robust-hdp.estimator": "rpca"}))


@pytest.mark.parametrize("name", ["robust-hdp+pfa", "robust-hdp+random", "robust-hdp+r-dpcfl"])
def test_a_composed_strategy_has_the_settings_of_each_part(name: str) -> None:
    config = config_of(name, **{"robust-hdp.estimator": "rpca"})
    strategy: Any = make_strategy(config)
    assert strategy.weights.settings.estimator == "rpca"
    own = with_own_settings(config, check_strategy(name)).settings
    assert own["robust-hdp"] == {"estimator": "rpca"}
    with pytest.raises(TermsError, match=r"'mmse\.estimator'"):
        make_strategy(config_of(name, **{"mmse.estimator": "rpca"}))


def test_a_setting_of_what_runs_may_be_named_without_it() -> None:
    said = assigned(["estimator=rpca", "rounds=3"], [check_strategy("robust-hdp+pfa")])
    assert said == {"robust-hdp.estimator": "rpca", "rounds": 3}
