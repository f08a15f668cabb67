"""Whole runs with rounded vectors: fewer bytes, the same bits each time, liars in the same form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.scenarios.attacks import Attack
from server_app.in_process.in_process_run import run_in_process
from server_app.run.rounds import RunResult
from tests.e2e.engines import digest

SITES, SIZE = 4, 650
FOR_BYTES = {"float32": 4 * SIZE + 128, "bfloat16": 2 * SIZE, "int8": SIZE + 2 * 11}


def federate(folder: Path, **more: Any) -> RunResult:
    config = {
        "strategy": "mmse", "dataset": "digits", "rounds": 5, "runs-dir": str(folder),
        "run-id": "r", "epsilons": "2,4,8,8", "batch-sizes": "64", "seed": 3, **more,
    }  # fmt: skip
    return run_in_process(RunConfig.parse(config), SITES)


def accuracy(result: RunResult) -> float:
    return float(result.rounds[-1]["metrics"]["accuracy"])


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_a_run_with_rounded_uploads(tmp_path: Path, form: str) -> None:
    """Every byte is counted, and accuracy moves by less than another noise would move it."""
    exact = federate(tmp_path / "exact")
    rounded = federate(tmp_path / "rounded", upload=form)
    for result, sent in ((exact, "float32"), (rounded, form)):
        assert {event["bytes_up"] for event in result.rounds} == {SITES * FOR_BYTES[sent]}
        assert {len(event["accepted"]) for event in result.rounds} == {SITES}
    assert abs(accuracy(rounded) - accuracy(exact)) < 0.03
    assert digest(rounded.folder) != digest(exact.folder)
    again = federate(tmp_path / "again", upload=form)
    assert digest(again.folder) == digest(rounded.folder)


def test_a_run_with_rounded_models(tmp_path: Path) -> None:
    exact = federate(tmp_path / "exact")
    rounded = federate(tmp_path / "rounded", download="int8", upload="int8")
    down = {name: result.rounds[-1]["bytes_down"] for name, result in
            (("exact", exact), ("rounded", rounded))}  # fmt: skip
    # Two arrays of a model in ten and one blocks, and a few bytes of the longer terms.
    saved = SITES * (4 * SIZE + 2 * 128 - SIZE - 2 * 11)
    assert down["exact"] - down["rounded"] == pytest.approx(saved, abs=SITES * 16)
    assert abs(accuracy(rounded) - accuracy(exact)) < 0.03
    again = federate(tmp_path / "again", download="int8", upload="int8")
    assert digest(again.folder) == digest(rounded.folder)


@pytest.mark.parametrize("strategy", ["fedpi", "r-dpcfl", "ditto", "fedhdp", "robust-hdp+scaffold"])
def test_other_strategies_run_with_rounded_vectors(tmp_path: Path, strategy: str) -> None:
    """Several models, starts of their own, offsets: whatever is sent for training is rounded."""
    more = {} if strategy.endswith("scaffold") else {"download": "bfloat16"}
    if strategy == "r-dpcfl":
        more |= {"r-dpcfl.clusters": 2}
    if strategy == "fedhdp":
        more |= {"noise": "client"}
    result = federate(tmp_path, strategy=strategy, upload="int8", rounds=3, **more)
    assert {len(event["accepted"]) for event in result.rounds} == {SITES}
    assert {event["bytes_up"] for event in result.rounds} <= {
        SITES * FOR_BYTES["int8"], SITES * (FOR_BYTES["int8"] + 8),
    }  # fmt: skip


def test_a_liar_sends_its_lie_in_the_form_of_the_terms(tmp_path: Path) -> None:
    """In another form it would be refused for that, and a guard would seem to be worth more."""
    config = RunConfig.parse({
        "strategy": "fedavg", "dataset": "digits", "rounds": 2, "runs-dir": str(tmp_path),
        "run-id": "r", "upload": "int8", "epsilons": "4", "batch-sizes": "64",
    })  # fmt: skip
    result = run_in_process(config, SITES, attack=Attack("minus-5", (1,)))
    assert [event["accepted"] for event in result.rounds] == [["0", "1", "2", "3"]] * 2
