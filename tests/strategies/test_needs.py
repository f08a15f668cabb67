"""What options need of a strategy: every need is declared, compared and refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from strategies import make_strategy
from strategies.core.declaration import KEYS, PROPERTIES
from strategies.guards.cap import Cap
from strategies.multi_model.base import MultiModel
from strategies.projection.base import Projected
from strategies.server_step.anderson import Anderson
from strategies.server_step.found import FoundRate
from strategies.server_step.momentum import ServerMomentum
from strategies.splitting.own_starts import OwnStarts
from strategies.splitting.scaffold import Scaffold

IFCA = {"strategy": "ifca", "choice": {"kind": "gaussian", "times": 1}, "ifca.clusters": 2}
SCAFFOLD, FEDPI = {"strategy": "scaffold"}, {"strategy": "fedpi"}
FOUND = {"server-learning-rate": "found"}
REFUSED: dict[str, dict[str, Any]] = {
    "'found' needs one model": {**IFCA, **FOUND},
    "'found' needs fresh noise": {**SCAFFOLD, **FOUND},
    "'found' needs updates only of the same round": {**FEDPI, **FOUND},
    "'momentum' needs one model": {"strategy": "r-dpcfl+momentum"},
    "'momentum' needs one common start": {"strategy": "fedsplit+momentum"},
    "'anderson' needs one model": {"strategy": "local+anderson"},
    "'anderson' needs one common start": {"strategy": "fedpi+anderson"},
    "'anderson' needs fresh noise": {"strategy": "scaffold+anderson"},
    "'anderson' needs updates with their noise": {"strategy": "fedhdp+anderson", "noise": "server"},
    "'cap' needs one model": {**IFCA, "guard": "cap"},
    "'cap' needs one common start": {**FEDPI, "guard": "cap"},
    "'cap' needs fresh noise": {"strategy": "mmse+scaffold", "guard": "cap"},
    "'cap' needs whole updates": {"strategy": "pfa-plus", "guard": "cap"},
    "'cap' needs a weighted sum": {"strategy": "pfa", "guard": "cap"},
    "'average' needs one model": {**IFCA, "average": "tail"},
    "'second' needs one model": {**IFCA, "second": {"kind": "kept", "pull": 0.1}},
    "'second' needs one common start": {**FEDPI, "second": {"kind": "kept", "pull": 0.1}},
    "'after.shrink' needs one model": {"strategy": "local", "after.shrink.scale": 0.05},
    "personal part needs one common start": {"strategy": "fedper+fedpi", "model": "mlp:8"},
    "personal part needs local steps without a shift": {
        "strategy": "fedper+scaffold",
        "model": "mlp:8",
    },
    "'work.first-batch' needs local steps without a shift": {
        **SCAFFOLD,
        "work": {"first-batch": "full"},
    },
    "'noise' .* needs one model": {"strategy": "local", "noise": "client"},
    "'noise' .* needs local steps without a shift": {**SCAFFOLD, "noise": "client"},
    "'noise' = 'server' needs a strategy that": {"strategy": "fedavg", "noise": "server"},
    "'choice.kind' needs": {"strategy": "fedavg", "choice": {"kind": "gaussian", "times": 1}},
    "'spend.kind' = 'late' needs": {"strategy": "fedhdp", "spend": {"kind": "late"}},
    "'dataset' = 'site' needs": {"strategy": "maximum", "dataset": "site", "schema": "heart"},
    "'noise' = 'shared' needs a step that is a fixed": {"noise": "shared", "strategy": "mmse"},
    "'noise' = 'shared' needs only weights": {"noise": "shared", "strategy": "fedavg+scaffold"},
    "'guard' needs single updates": {"noise": "shared", "guard": "cap"},
    "'quorum' needs single updates": {"noise": "shared", "quorum": 2},
    "'quorum' needs": {"strategy": "fedhdp", "noise": "server", "quorum": 1},
    "'participations' needs": {"strategy": "fedhdp", "noise": "server", "participations": 1},
    "'require-public' needs": {"strategy": "fedhdp", "noise": "server", "require-public": True},
    "'guard' needs": {"strategy": "fedhdp", "noise": "server", "guard": "cap"},
    r"'\+r-dpcfl' needs .* no other part": {"strategy": "pfa+r-dpcfl"},
    r"'\+ifca' needs only weights": {"strategy": "fedhdp+ifca"},
    r"'\+scaffold' needs only weights": {"strategy": "fedhdp+scaffold"},
    r"'\+scaffold' needs a weighted sum": {"strategy": "trimmed-mean+scaffold"},
    r"'\+pfa' needs .* a projected sum": {"strategy": "mmse+pfa"},
    r"'\+fedpi' needs the same weights": {"strategy": "robust-hdp+fedpi"},
}
"""Words of a refusal → a run config that is refused so."""


@pytest.mark.parametrize(("words", "keys"), REFUSED.items(), ids=[*REFUSED])
def test_an_option_without_its_property_is_refused(words: str, keys: dict[str, Any]) -> None:
    with pytest.raises(TermsError, match=words):
        make_strategy(RunConfig.parse({"rounds": 10, **keys}))


def test_every_need_has_a_refusal() -> None:
    """One of each need, and one of a part around a part."""
    parts = (Projected, MultiModel, OwnStarts, Scaffold)
    needs = [key.needs for key in KEYS] + [part.needs_of_weights for part in parts]
    needs += [FoundRate.needs, ServerMomentum.needs, Anderson.needs, Cap.needs]
    assert len(REFUSED) == sum(map(len, needs)) + 1
    assert {name for each in needs for name in each} | {"is_bare"} == PROPERTIES.keys()
