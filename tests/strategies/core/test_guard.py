"""The guard around a rule: who is refused is out of the round, and the journal says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.linalg.sums import square_sum, weighted_sum
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from server_app.run.rounds import RunResult, run
from strategies.averaging.fedavg import FedAvg
from strategies.core.base import State
from strategies.guards.cap import Cap
from strategies.guards.guard import COPY, ZEROS, Guard
from strategies.guards.proof import SHARED
from tests.federation import ScriptedGrid, Site, sends

GUARDS = ("none", "cap", "content")
SIZE, SIGNAL, NOISE = 650, 0.08, 0.05


def terms_of(tmp_path: Path | None = None, **more: Any) -> RunConfig:
    config = {"strategy": "fedavg", "rounds": 4, "run-id": "r", "min-sites": 1, **more}
    return RunConfig.parse(config | ({"runs-dir": str(tmp_path)} if tmp_path else {}))


def updates_of(rows: npt.NDArray[np.float32]) -> RoundUpdates:
    sites = tuple(f"site-{i}" for i in range(len(rows)))
    facts = {"epsilon": np.arange(len(rows), dtype=np.float64)}
    return RoundUpdates(1, sites, rows, facts)


def noise(seed: int, n: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((n, SIZE)).astype(np.float32)


def signal() -> npt.NDArray[np.float64]:
    """Return what all sites learn, shape ``(SIZE,)``."""
    layer = SIGNAL * np.random.default_rng(0).standard_normal((10, SIZE // 10))
    layer -= layer.mean(0)  # a softmax layer's gradient adds up to 0 over the classes
    return np.concatenate([layer[:, :-1].ravel(), layer[:, -1]])


def site(seed: int, factor: float = 1.0) -> Site:
    """Return a site that learns the same as the others, times ``factor``, under its own noise."""

    def answer(server_round: int) -> Any:
        drawn = NOISE * np.random.default_rng([seed, server_round]).standard_normal(SIZE)
        return sends((factor * signal() + drawn).astype(np.float32))(server_round)

    return answer


def federate(tmp_path: Path, sites: dict[str, Site], **more: Any) -> RunResult:
    return run(ScriptedGrid(sites), terms_of(tmp_path, **more))


def honest(n: int) -> dict[str, Site]:
    return {f"site-{i}": site(i + 1) for i in range(n)}


def test_the_squares_stay_with_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that fails and two that are refused leave gaps that the others close."""
    same = noise(1, 1)[0]
    bad: dict[str, Site] = {"a": lambda _: None, "site-1b": sends(same), "site-1c": sends(same)}
    loud = {f"site-{i}": site(i + 1, factor=10.0**i) for i in range(3)}
    seen = []

    def combine(self: FedAvg, state: State, updates: RoundUpdates, stream: RandomStream) -> Any:
        seen.append((updates.sites, updates.squares, [square_sum(r) for r in updates.updates]))
        return original(self, state, updates, stream)

    original = FedAvg.combine
    monkeypatch.setattr(FedAvg, "combine", combine)
    federate(tmp_path, {**bad, **loud}, rounds=1, quorum=1)
    ((sites, squares, expected),) = seen
    assert sites == ("site-0", "site-1", "site-2")
    assert squares.tolist() == expected


@pytest.mark.parametrize("guard", GUARDS)
def test_every_guard_excludes_zeros_and_copies(tmp_path: Path, guard: str) -> None:
    same = noise(1, 1)[0]
    bad = {"twin-a": sends(same), "twin-b": sends(same), "zero": sends(np.zeros(SIZE, np.float32))}
    result = federate(tmp_path, {**honest(9), **bad}, guard=guard)
    for event in result.rounds:
        assert event["rejected"]["zero"] == ZEROS
        assert event["rejected"]["twin-a"] == event["rejected"]["twin-b"] == COPY
        assert event["accepted"] == [f"site-{i}" for i in range(9)]
        assert len(event["weights"]) == 9
        for gauge in event["gauges"].values():
            assert np.ndim(gauge) == 0 or len(gauge) == 9


def test_refusals_below_the_quorum_leave_the_model_as_it_was(tmp_path: Path) -> None:
    twins = {f"twin-{i}": sends(noise(2, 1)[0]) for i in range(2)}
    with pytest.raises(StrategyError, match="without a quorum"):
        federate(tmp_path, {"a": site(1), **twins}, quorum=2)
    rounds = [e for e in read_journal(tmp_path / "r" / "journal.jsonl") if e["event"] == "round"]
    assert all("weights" not in e for e in rounds)
    assert rounds[0]["accepted"] == ["a"]


def colluders(count: int) -> dict[str, Site]:
    """Return sites that all send one honest update, each jittered by a thousandth."""

    def colluder(seed: int) -> Site:
        def answer(server_round: int) -> Any:
            drawn = np.random.default_rng([99, server_round]).standard_normal(SIZE)
            jitter = np.random.default_rng([seed, server_round]).standard_normal(SIZE)
            update = (signal() + NOISE * drawn) * (1 + 1e-3 * jitter)
            return sends(update.astype(np.float32))(server_round)

        return answer

    return {f"x-{i}": colluder(i) for i in range(count)}


@pytest.mark.parametrize("guard", ["cap", "content"])
def test_more_colluders_than_may_lie_are_out_of_every_round(tmp_path: Path, guard: str) -> None:
    """Three share their noise, one may lie: the model is, to the bit, as where they never were."""
    liars = colluders(3)
    proofs = {"guard": guard, "max-liars": 1}
    with_them = federate(tmp_path / "a", {**honest(9), **liars}, **proofs)
    assert [e["rejected"] for e in with_them.rounds] == [dict.fromkeys(liars, SHARED)] * 4
    without = federate(tmp_path / "b", honest(9), **proofs)
    for name, array in without.arrays.items():
        np.testing.assert_array_equal(with_them.arrays[name], array)


def test_the_rule_sees_the_rows_and_facts_of_those_who_stay() -> None:
    rows = noise(3, 5)
    rows[1] = rows[3]
    before = rows.copy()
    kept = Guard(terms_of(), sums=True).screen(updates_of(rows))
    assert kept.sites == ("site-0", "site-2", "site-4")
    np.testing.assert_array_equal(kept.updates, before[[0, 2, 4]])
    np.testing.assert_array_equal(kept.disclosed["epsilon"], [0, 2, 4])
    assert np.shares_memory(kept.updates, rows), "a second copy of the updates"


def outcome_of(updates: RoundUpdates, weights: list[float]) -> Outcome:
    shares = np.array(weights)
    return Outcome(weighted_sum(shares, updates.updates), shares, {"mine": 1.0})


def test_no_site_weighs_more_than_three_shares_under_cap() -> None:
    updates, guard = updates_of(noise(5, 10)), Cap(terms_of(guard="cap"), sums=True)
    kept = guard.screen(updates)
    found = guard.reweigh(outcome_of(kept, [0.91] + [0.01] * 9), kept)
    np.testing.assert_allclose(found.weights, [0.3] + [0.7 / 9] * 9)
    np.testing.assert_array_equal(found.gauges["capped"], [1] + [0] * 9)
    np.testing.assert_allclose(found.update, found.weights @ updates.updates, atol=1e-6)
    assert found.gauges["mine"] == 1.0
