"""A run with personal parts that resumes ends as one that was never interrupted, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from client_app.site.personal_state import PersonalState, save_state
from client_app.work import base
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_tools.simulation.in_process.in_process_run import resume_in_process, run_in_process
from hdpfl_tools.simulation.sites import simulated_model_path
from server_app.run.resume import open_run
from server_app.run.rounds import RunResult
from tests.client_app.messages import simulated_state_path

SITES, ROUNDS = 3, 4
CASES: dict[str, dict[str, Any]] = {
    "fedrep": {"strategy": "fedrep"},
    "ppsgd": {"strategy": "ppsgd"},
    "dsu": {"strategy": "dsu", "after": {"tuning": {"steps": 3}}},
    "falling noise": {"strategy": "fedrep", "spend": {"kind": "late", "ratio": 3}},
    "clusters": {"strategy": "robust-hdp+oracle-clusters", "groups": "label-shift:1:2",
                 "work": {"kind": "joint"}},
}  # fmt: skip


class Killed(KeyboardInterrupt):
    """Ends a run where it is; no other exception passes a site's guard."""


def config_of(folder: Path, case: str) -> RunConfig:
    return RunConfig.parse({
        "dataset": "digits", "model": "mlp:6", "rounds": ROUNDS, "local-steps": 3, "run-id": "r",
        "batch-sizes": "16", "epsilons": "4", "runs-dir": str(folder), "seed": 3, **CASES[case],
    })  # fmt: skip


def left(config: RunConfig, result: RunResult) -> list[bytes]:
    """Return all that the run and its sites end with."""
    sent = RunConfig(result.sent or config.terms, config.server, config.simulation)
    files = [
        load_file(path_of(sent, index))
        for index in range(SITES)
        for path_of in (simulated_state_path, simulated_model_path)
    ]
    found = [result.arrays, *files]
    return [name.encode() + some[name].tobytes() for some in found for name in sorted(some)]


@pytest.fixture(scope="module")
def ends() -> dict[str, list[bytes]]:
    """Case → what a run that nobody interrupts ends with, kept for both kinds of crash."""
    return {}


@pytest.mark.usefixtures("guessed_noise")
@pytest.mark.parametrize("within", [False, True], ids=["between rounds", "within a round"])
@pytest.mark.parametrize("case", CASES)
def test_personal_parts_survive_a_crash_of_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, within: bool,
    ends: dict[str, list[bytes]],
) -> None:  # fmt: skip
    if case not in ends:
        whole = config_of(tmp_path / "whole", case)
        ends[case] = left(whole, run_in_process(whole, SITES, resumable=True))
    broken = config_of(tmp_path / "broken", case)

    def on_event(event: dict[str, Any]) -> None:
        if not within and event["event"] == "round" and event["round"] == 2:
            raise Killed

    def save(path: Path, state: PersonalState, **more: Any) -> None:
        """Write the state; die once one site has that of round 3 and the next has not."""
        save_state(path, state, **more)
        if state.server_round == 3 and not path.name.startswith("before-"):
            raise Killed

    with monkeypatch.context() as patch:
        if within:
            patch.setattr(base, "save_state", save)
        with pytest.raises(Killed):
            run_in_process(broken, SITES, on_event, resumable=True)
    at = open_run(tmp_path / "broken" / "r")
    assert at.server_round == 2
    result = resume_in_process(at)
    assert left(broken, result) == ends[case]
    for array in result.arrays.values():
        assert np.isfinite(array).all()
