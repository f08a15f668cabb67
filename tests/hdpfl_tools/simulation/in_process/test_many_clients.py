"""Thousands of clients, a hundred a round: what is done for each registered one, by counting.

Scaled down to 300 clients and ten a round. Nothing here measures a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy import accounting
from hdpfl_tools.simulation import drawn_records
from hdpfl_tools.simulation import sites as simulated
from hdpfl_tools.simulation.drawn_records import source_of, split_records
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from server_app.run.rounds import RunResult

CLIENTS, ASKED, ROUNDS = 300, 10, 3


@pytest.fixture(autouse=True)
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HDPFL_HOME", str(tmp_path / "home"))
    memory = accounting._calibrate, simulated._profile, split_records, drawn_records._sizes
    for known in memory:
        known.cache_clear()
    yield
    for known in memory:
        known.cache_clear()


@pytest.fixture
def done() -> Iterator[Counter[str]]:
    """How often each costly thing was done."""
    counts: Counter[str] = Counter()

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*at: Any, **named: Any) -> Any:
            counts[name] += 1
            return real(*at, **named)

        return counted

    with (
        mock.patch.object(accounting, "_search", counting("plans", accounting._search)),
        mock.patch.object(Profile, "parse", counting("profiles", Profile.parse)),
    ):
        yield counts


def run_of(folder: Path, clients: int = CLIENTS, **more: object) -> RunResult:
    config = RunConfig.parse({
        "strategy": "mmse", "rounds": ROUNDS, "fraction": ASKED / clients, "partition": "iid:4",
        "epsilons": "uniform:0.3:8", "batch-sizes": "2", "run-id": "many", "runs-dir": str(folder),
        **more,
    })  # fmt: skip
    return run_in_process(config, clients)


def asked_in(result: RunResult) -> set[str]:
    return {one for event in result.rounds for one in event["asked"]}


def test_only_sampled_clients_are_planned_and_built(tmp_path: Path, done: Counter[str]) -> None:
    result = run_of(tmp_path)
    sampled = asked_in(result)
    assert len(sampled) > ASKED
    assert done["plans"] == len(sampled)
    # All of them join, and are sent the model at the end.
    assert done["profiles"] == CLIENTS
    config = RunConfig.parse({"partition": "iid:4"})
    taken = split_records(source_of(config, CLIENTS))._taken
    assert {str(one) for one in taken} == sampled
