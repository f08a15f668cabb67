"""Settings of strategies: a table a strategy, refused by name, and of the run's parts alone."""

from __future__ import annotations

from typing import Any

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from strategies import SETTINGS_OWNERS, STRATEGIES, check_strategy, make_strategy
from strategies.noise_aware.robust_hdp import RobustHDPSettings
from strategies.settings import setting_rows, with_own_settings

ROWS = {row.key: row for row in setting_rows(SETTINGS_OWNERS)}


def config_of(strategy: str, **settings: Any) -> RunConfig:
    return RunConfig.parse({"strategy": strategy, **settings})


def test_a_table_and_a_key_with_a_dot_are_the_same() -> None:
    """TOML has tables, Flower's run config keys with a dot."""
    table = config_of("robust-hdp", **{"robust-hdp": {"estimator": "rpca", "frozen-after": 2}})
    dotted = config_of(
        "robust-hdp", **{"robust-hdp.estimator": "rpca", "robust-hdp.frozen-after": 2}
    )
    assert table == dotted
    assert RunConfig.parse(table.as_config()) == table
    settings = make_strategy(table).settings
    assert settings == RobustHDPSettings.parse({"estimator": "rpca", "frozen-after": 2})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"robust-hdp.estimater": "rpca"}, "'robust-hdp.estimater' .* 'robust-hdp.estimator'"),
        ({"robust_hdp.estimator": "rpca"}, "'robust_hdp.estimator' .* 'robust-hdp.estimator'"),
        ({"robust-hdp.estimator": "magic"}, "'robust-hdp.estimator' must be 'auto'"),
        ({"robust-hdp.frozen-after": -1}, "'robust-hdp.frozen-after' must be greater"),
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
    assert strategy._weighting.settings.estimator == "rpca"
    own = with_own_settings(config, check_strategy(name)).settings
    assert own["robust-hdp"] == {"estimator": "rpca", "frozen-after": 0}
    with pytest.raises(TermsError, match=r"'mmse\.estimator'"):
        make_strategy(config_of(name, **{"mmse.estimator": "rpca"}))
