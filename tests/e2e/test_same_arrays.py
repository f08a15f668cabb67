"""One seed, one result: in process, under Ray, and over a SuperLink and SuperNodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from tests.e2e.engines import MODULES, SITES, digest, rounds_of, seeded_terms

pytestmark = pytest.mark.engines

FEDREP = {"model": "mlp:8", "work": {"kind": "alternate"}}
"""What the name ``fedrep`` stands for, here with the weights of Robust-HDP."""


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        (
            "own_strategies:FirstTwice+adam",
            {"groups": "rotation:1:3", "evaluation": "server", "average": "ergodic"},
        ),
        ("robust-hdp", {**FEDREP, "spend": {"kind": "late"}}),
        ("fedavg+momentum", {"noise": "shared"}),
        pytest.param("scaffold", {}, marks=pytest.mark.wards),
        pytest.param("ppsgd", {"model": "mlp:8", "work": {"of": "head"}}, marks=pytest.mark.wards),
    ],
)
def test_three_engines_give_the_same_bits(
    strategy: str,
    more: dict[str, str],
    run_on_engine: Callable[[RunConfig], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of Flower's two returns those of the third, which runs in process.

    A run has several parts that could differ: its processes take most of the time.
    """
    monkeypatch.syspath_prepend(MODULES)  # the engines have it on their path
    name = {"run-id": f"same-{strategy.rpartition(':')[2].replace('+', '-')}"}
    terms = seeded_terms(strategy=strategy, rounds=2, **name, **more)
    here = run_in_process(terms.updated(runs_dir=str(tmp_path)), SITES).folder
    there = run_on_engine(terms)
    for folder in (here, there):
        events = rounds_of(folder)
        assert [event["accepted"] for event in events] == [["0", "1", "2", "3"]] * 2, folder
        assert ("accuracy-minority" in events[-1]["metrics"]) == ("groups" in more)
    assert digest(there) == digest(here)
