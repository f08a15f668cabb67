"""A site that overstates its ε: the server weighs it by the stated ε, and its noise is its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.simulation.in_process.liars import OVERSTATED, STATED, Attack, AttackGrid

EPSILONS = (1.0, 3.0, 1.0)


def config(folder: Path, strategy: str) -> RunConfig:
    return RunConfig.parse({
        "strategy": strategy, "rounds": 1, "dataset": "digits", "partition": "iid",
        "epsilons": ",".join(map(str, EPSILONS)), "batch-sizes": "16", "delta": 1e-4,
        "runs-dir": str(folder),
    })  # fmt: skip


def test_a_liar_gets_the_weight_of_the_epsilon_that_it_states(tmp_path: Path) -> None:
    terms = config(tmp_path, "weiavg")
    (event,) = run_in_process(terms, 3, attack=Attack(OVERSTATED, (0,))).rounds
    stated = np.array([STATED, *EPSILONS[1:]])
    np.testing.assert_allclose(event["weights"], stated / stated.sum())


def test_a_lie_does_not_change_an_update(tmp_path: Path) -> None:
    """FedAvg reads no ε: with a liar its model is the same, bit by bit."""
    models = [
        run_in_process(config(tmp_path / name, "fedavg"), 3, attack=attack).arrays
        for name, attack in (("honest", None), ("liar", Attack(OVERSTATED, (0,))))
    ]
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])


def test_an_absent_liar_and_a_resumable_attack_are_refused(tmp_path: Path) -> None:
    attack = Attack(OVERSTATED, (0,))
    for liars in (attack, Attack(OVERSTATED, ())):
        with pytest.raises(TermsError, match="no site lies, or a lying site does not take part"):
            AttackGrid(3, [1, 2], attack=liars)
    with pytest.raises(TermsError, match="resumed"):
        run_in_process(config(tmp_path, "weiavg"), 3, attack=attack, resumable=True)
