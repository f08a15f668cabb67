"""The guard around a rule: who is refused is out of the round, and the journal says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError, TermsError
from hdpfl_flower.linalg.sums import square_sum, weighted_sum
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.simulation.attacks import Attack
from hdpfl_flower.updates import Outcome, RoundUpdates
from server_app.run.rounds import RunResult, run
from server_app.simulation.comparison import RunJob, run_job
from strategies import make_strategy
from strategies.averaging.fedavg import FedAvg
from strategies.core.base import State
from strategies.core.guard import Guard, GuardState
from strategies.core.strategy_state import load_state, save_state
from strategies.guards.bounds import COPY, ZEROS
from strategies.guards.evidence import AGAINST
from strategies.guards.proof import SHARED
from tests.federation import ScriptedGrid, Site, sends

GUARDS = ("none", "cap", "centred-clipping", "evidence", "content")
SIZE, SIGNAL, NOISE = 650, 0.08, 0.05
EVIDENCE = {"guard": "evidence", "max-liars": 2}


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
    assert squares is not None
    assert squares.tolist() == expected


@pytest.mark.parametrize("guard", GUARDS)
def test_zeros_and_copies_are_out_of_the_round_under_every_guard(
    tmp_path: Path, guard: str
) -> None:
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


def test_more_colluders_than_may_lie_are_out_of_every_round(tmp_path: Path) -> None:
    """Three share their noise, one may lie: the model is, to the bit, as where they never were."""
    liars = colluders(3)
    with_them = federate(tmp_path / "a", {**honest(9), **liars}, **{**EVIDENCE, "max-liars": 1})
    assert [e["rejected"] for e in with_them.rounds] == [dict.fromkeys(liars, SHARED)] * 4
    without = federate(tmp_path / "b", honest(9), **EVIDENCE)
    for name, array in without.arrays.items():
        np.testing.assert_array_equal(with_them.arrays[name], array)


def test_a_majority_of_proven_colluders_leaves_no_quorum_and_the_model_as_it_was(
    tmp_path: Path,
) -> None:
    liars = colluders(10)
    with pytest.raises(StrategyError, match="3 rounds in a row without a quorum"):
        federate(tmp_path, {**honest(9), **liars}, **EVIDENCE)
    rounds = [e for e in read_journal(tmp_path / "r" / "journal.jsonl") if e["event"] == "round"]
    assert [e["rejected"] for e in rounds] == [dict.fromkeys(liars, SHARED)] * 3
    assert all("weights" not in e for e in rounds)
    assert not (tmp_path / "r" / "model.safetensors").exists()


def test_a_quorum_that_honest_sites_make_goes_on_without_a_majority_of_colluders(
    tmp_path: Path,
) -> None:
    liars = colluders(10)
    result = federate(tmp_path, {**honest(9), **liars}, quorum=5, **EVIDENCE)
    assert [len(e["accepted"]) for e in result.rounds] == [9] * 4


@pytest.mark.slow
def test_a_run_with_drift_recovers_from_what_liars_did_before_they_were_found(
    tmp_path: Path,
) -> None:
    """Digits, 15 sites, two hidden at −50 and found in round 2: .050 before, .369 now."""
    config = {
        "strategy": "robust-hdp-drift", "guard": "evidence", "dataset": "digits", "rounds": 8,
        "learning-rate": 0.5, "epsilons": "levels:0.5:1:3", "calibration": "robust-hdp",
        "batch-sizes": "32", "partition": "iid", "run-id": "r", "runs-dir": str(tmp_path),
    }  # fmt: skip
    liars = Attack("minus-50+hidden", sites=(3, 7))
    events = run_job(RunJob(RunConfig.parse(config), 15, 4, liars), lambda: None)
    assert [set(event["rejected"]) for event in events] == [set()] + [{"3", "7"}] * 3
    assert events[1]["gauges"]["taken_back"] == 2
    assert events[0]["metrics"]["accuracy"] < 0.1
    assert events[3]["metrics"]["accuracy"] > 0.35


def test_the_journal_says_what_the_evidence_was(tmp_path: Path) -> None:
    result = federate(tmp_path, {**honest(9), "liar": site(77, -5)}, guard="evidence")
    assert [e["rejected"] for e in result.rounds] == [{"liar": AGAINST}] * 4
    for event in result.rounds:
        assert len(event["gauges"]["evidence"]) == len(event["gauges"]["alignment"]) == 9
        assert max(event["gauges"]["evidence"]) < 1
    assert (
        federate(tmp_path / "none", {**honest(9), "liar": site(77, -5)}).rounds[0]["rejected"] == {}
    )


def test_a_liar_cannot_undo_a_run_under_evidence(tmp_path: Path) -> None:
    """The same model, to the bit, as where the liar never was."""
    with_liar = federate(tmp_path / "a", {**honest(9), "liar": site(77, -5)}, guard="evidence")
    without = federate(tmp_path / "b", honest(9), guard="evidence")
    for name, array in without.arrays.items():
        np.testing.assert_array_equal(with_liar.arrays[name], array)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_what_a_liar_gave_before_it_was_found_is_taken_out(scale: float) -> None:
    """But for what it gave before the evidence began to rise; nobody else loses anything."""
    generator, guard = np.random.default_rng(1), Guard(terms_of(guard="evidence"), sums=True)
    signal = 5 / np.sqrt(SIZE) * generator.standard_normal(SIZE)
    moved, stays, suspected = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE)
    rounds = 0
    while "site-4" not in guard.refused:
        rows = (signal + generator.standard_normal((10, SIZE))).astype(np.float32)
        rows[4] -= np.float32(2) * signal.astype(np.float32)
        parts = scale / 10 * rows.astype(np.float64)
        kept = guard.screen(updates_of(rows))
        weights = np.full(len(kept.sites), 0.1)
        update = weighted_sum(scale * weights, kept.updates)
        outcome = guard.reweigh(Outcome(update, weights, {}, scale), kept)
        moved += outcome.update
        stays += parts.sum(axis=0) - parts[4]
        if "site-4" in guard.state.given:
            suspected, rounds = suspected + parts[4], rounds + 1
        elif "site-4" in kept.sites:
            stays, suspected = stays + suspected + parts[4], np.zeros(SIZE)
            rounds = 0
    assert suspected.any(), "found at once: nothing to take out"
    assert outcome.gauges["taken_back"] == 1
    # The coefficients of its updates, by which the journal's shares go down.
    assert guard.taken_back == pytest.approx({"site-4": rounds * scale / 10})
    assert np.linalg.norm(suspected) > 0.1 * np.linalg.norm(moved)
    np.testing.assert_allclose(moved, stays, atol=1e-5 * scale)


def test_the_rule_sees_the_rows_and_facts_of_those_who_stay() -> None:
    rows = noise(3, 5)
    rows[1] = rows[3]
    before = rows.copy()
    kept = Guard(terms_of(), sums=True).screen(updates_of(rows))
    assert kept.sites == ("site-0", "site-2", "site-4")
    np.testing.assert_array_equal(kept.updates, before[[0, 2, 4]])
    np.testing.assert_array_equal(kept.disclosed["epsilon"], [0, 2, 4])
    assert np.shares_memory(kept.updates, rows), "a second copy of the updates"


def test_where_nobody_is_refused_nothing_is_changed() -> None:
    updates = updates_of(noise(4, 5))
    before = updates.updates.copy()
    for guard in GUARDS:
        kept = Guard(terms_of(guard=guard), sums=True).screen(updates)
        assert kept.sites == updates.sites
        assert kept.updates is updates.updates
    np.testing.assert_array_equal(updates.updates, before)


def outcome_of(updates: RoundUpdates, weights: list[float]) -> Outcome:
    shares = np.array(weights)
    return Outcome(weighted_sum(shares, updates.updates), shares, {"mine": 1.0})


def test_no_site_weighs_more_than_three_shares_under_cap() -> None:
    updates, guard = updates_of(noise(5, 10)), Guard(terms_of(guard="cap"), sums=True)
    kept = guard.screen(updates)
    found = guard.reweigh(outcome_of(kept, [0.91] + [0.01] * 9), kept)
    np.testing.assert_allclose(found.weights, [0.3] + [0.7 / 9] * 9)
    np.testing.assert_array_equal(found.gauges["capped"], [1] + [0] * 9)
    np.testing.assert_allclose(found.update, found.weights @ updates.updates, atol=1e-6)
    assert found.gauges["mine"] == 1.0


def test_centred_clipping_goes_around_the_last_aggregate() -> None:
    guard = Guard(terms_of(guard="centred-clipping"), sums=True)
    first = guard.screen(updates_of(noise(6, 10)))
    centre = guard.reweigh(outcome_of(first, [0.1] * 10), first).update
    rows = noise(7, 10) + 5
    rows[3] *= 1e3
    second = guard.screen(updates_of(rows))
    found = guard.reweigh(outcome_of(second, [0.1] * 10), second)
    factors = found.gauges["clipped_to"]
    distances = np.linalg.norm(rows - centre, axis=1)
    np.testing.assert_allclose(factors, np.minimum(1, np.median(distances) / distances), rtol=1e-5)
    assert np.linalg.norm(found.update - centre) <= np.median(distances)
    assert found.weights.tolist() == pytest.approx([0.1] * 10)


@pytest.mark.parametrize("guard", ["none", "evidence"])
def test_a_guard_that_only_refuses_leaves_the_rule_its_weights(guard: str) -> None:
    keeper = Guard(terms_of(guard=guard), sums=True)
    kept = keeper.screen(updates_of(noise(8, 10)))
    outcome = outcome_of(kept, [0.91] + [0.01] * 9)
    found = keeper.reweigh(outcome, kept)
    assert found.weights is outcome.weights
    assert found.update is outcome.update


@pytest.mark.parametrize("guard", ["cap", "centred-clipping"])
@pytest.mark.parametrize("strategy", ["pfa", "robust-hdp+pfa", "fedavg+random"])
def test_a_bound_on_weights_and_a_projection_do_not_go_together(guard: str, strategy: str) -> None:
    with pytest.raises(TermsError, match=r"'guard'.*'strategy'"):
        make_strategy(terms_of(guard=guard, strategy=strategy))
    make_strategy(terms_of(guard="evidence", strategy=strategy))


def test_the_guards_state_can_be_kept_in_a_checkpoint() -> None:
    guard = Guard(terms_of(guard="evidence"), sums=True)
    guard.screen(updates_of(noise(9, 6)))
    resumed = Guard(terms_of(guard="evidence"), sums=True)
    arrays: dict[str, npt.NDArray[Any]] = {}
    facts = json.loads(json.dumps(save_state(guard.state, arrays)))
    resumed.state = load_state(GuardState, facts, arrays)
    assert resumed.state.evidence.places == guard.state.evidence.places != {}
    again = noise(9, 6)
    assert resumed.screen(updates_of(again)).sites == ()
