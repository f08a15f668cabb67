"""A part that stays, under every weight rule, projection, cluster and guard: tiny runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.after_run.personal_model import read_personal_model
from client_app.site.personal_state import load_state
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.models.networks import flatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.simulation.sites import simulated_model_path
from server_app.run.rounds import RunResult
from tests.cases import sampled
from tests.client_app.messages import simulated_state_path

pytestmark = pytest.mark.usefixtures("guessed_noise")

SITES = 5
COMPOSED: dict[str, dict[str, Any]] = {
    name: {"strategy": name}
    for name in (
        "fedavg", "trimmed-mean", "weiavg", "minimum", "oracle", "robust-hdp", "mmse",
        "pfa-plus", "robust-hdp+pfa", "fedrep+random", "dsu", "ppsgd",
        "local", "mr-mtl",
    )
} | {
    "cap": {"strategy": "robust-hdp", "guard": "cap"},
    "clusters": {"strategy": "robust-hdp+r-dpcfl", "r-dpcfl.clusters": 2},
    "choices": {"strategy": "ifca", "ifca.clusters": 2, "choice": {"kind": "gaussian", "times": 2}},
}  # fmt: skip


def config_of(folder: Path, **more: Any) -> RunConfig:
    """Return a run in which the head stays and every site trains it first."""
    own = {"of": "head"} if more["strategy"] == "ppsgd" else {"kind": "alternate"}
    return RunConfig.parse({
        "dataset": "digits", "model": "mlp:6", "rounds": 3, "local-steps": 4, "run-id": "r",
        "batch-sizes": "16", "epsilons": "8,4,2,2,8", "runs-dir": str(folder), "seed": 3,
        "work": own, "learning-rate": 0.3, **more,
    })  # fmt: skip


def run(folder: Path, **more: Any) -> tuple[RunConfig, RunResult]:
    """Return the run, and the configuration that its sites had."""
    config = config_of(folder, **more)
    result = run_in_process(config, SITES)
    sent = result.sent
    assert isinstance(sent, RunTerms)
    return RunConfig(sent, config.server, config.simulation), result


@pytest.mark.parametrize("case", sampled(COMPOSED, ("pfa-plus", "ppsgd", "clusters")))
def test_a_rule_sees_the_shared_part_and_each_site_keeps_its_own(tmp_path: Path, case: str) -> None:
    config, result = run(tmp_path, **COMPOSED[case])
    assert [event["accepted"] for event in result.rounds] == [[str(i) for i in range(SITES)]] * 3
    parts = parts_of("mlp:6", task_for(config.terms))
    size = parts.size if case == "ppsgd" else parts.body.stop
    shared = flatten(result.arrays)
    assert len(shared) == size * (max(result.models.values(), default=0) + 1) or result.models
    assert len(shared) % size == 0
    owns = []
    for index in range(SITES):
        state = load_state(simulated_state_path(config, index))
        model = read_personal_model(simulated_model_path(config, index))
        assert state.part is not None
        assert (state.rounds, state.first_round, model.kind) == (3, 1, "private")
        whole = flatten(model.arrays)
        at = result.models.get(str(index), 0)
        body = shared[at * size : (at + 1) * size]
        if case == "ppsgd":
            np.testing.assert_array_equal(whole, body + state.part)
        else:
            np.testing.assert_array_equal(whole[parts.head], state.part)
            np.testing.assert_array_equal(whole[parts.body], body)
        owns.append(whole[parts.head].tobytes())
    assert len(set(owns)) == SITES
    assert "personal-accuracy" in result.rounds[-1]["metrics"]
