"""Any weights with any projection: the rule that weighs runs as it is, its terms go through."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.models.networks import flatten
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from server_app.run.rounds import RunResult, run
from strategies import PROJECTIONS, STRATEGIES, make_strategy
from strategies.core.base import State
from strategies.core.sampler import Sampler
from strategies.core.strategy_state import save_state
from strategies.multi_model.base import MultiModel
from strategies.noise_aware.mmse import MMSE
from strategies.projection.base import Projected
from strategies.splitting.base import Splitting
from strategies.splitting.own_starts import OwnStarts
from strategies.splitting.scaffold import Scaffold
from tests.federation import Answer, ScriptedGrid, Site, weighing

WEIGHTINGS = [
    name
    for name, rule in STRATEGIES.items()
    if not issubclass(rule, (Projected, MultiModel, Splitting, OwnStarts, Scaffold, MMSE))
]
FACTS = {"declared-records": (50, 500), "epsilon": (0.3, 8.0), "noise-std": (0.01, 3.0)}
D = 300


def combine(
    name: str, state: State | None = None, server_round: int = 1, **terms: Any
) -> tuple[State, Outcome]:
    generator = np.random.default_rng(7)
    rule = make_strategy(RunConfig.parse({"strategy": name, "public-split": "gmm", **terms}))
    disclosed = {fact: generator.uniform(*FACTS[fact], 8) for fact in sorted(FACTS)}
    rows = generator.standard_normal(D) + generator.standard_normal((8, D))
    updates = RoundUpdates(
        server_round,
        tuple(map(str, range(8))),
        rows.astype(np.float32),
        {fact: disclosed[fact] for fact in rule.declare().required_facts},
    )
    return rule.combine(state or rule.initial_state(), updates, RandomStream(bytes(32)))


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_weights_and_state_are_the_weighing_rules(weighting: str, projection: str) -> None:
    composed = f"{weighting}+{projection}"
    state, alone = combine(weighting, **weighing(weighting, "records"))
    own_state, both = combine(composed, **weighing(composed, "records"))
    np.testing.assert_array_equal(both.weights, alone.weights)
    for name, gauge in alone.gauges.items():
        np.testing.assert_array_equal(both.gauges[name], gauge)
    arrays: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    assert save_state(own_state, arrays[0]) == save_state(state, arrays[1])
    for name, array in arrays[1].items():
        np.testing.assert_array_equal(arrays[0][name], array)
    if weighting != "public-only":  # its private sites have no weight
        assert not np.allclose(both.update, alone.update, rtol=1e-3)


def test_random_directions_change_with_round_and_seed_and_with_nothing_else() -> None:
    first = combine("fedavg+random")[1].update
    np.testing.assert_array_equal(combine("fedavg+random")[1].update, first)
    assert not np.allclose(combine("fedavg+random", server_round=2)[1].update, first)
    assert not np.allclose(combine("fedavg+random", seed=2)[1].update, first)


def test_who_is_public_does_not_follow_from_who_is_asked() -> None:
    """Eight strict sites were asked, and all of them were public among themselves."""
    sampler = Sampler(RunConfig.parse({"public-split": "gmm"}))
    epsilons = {f"{i}": 0.5 + 0.01 * i for i in range(8)} | {f"{i}": 10.0 + i for i in range(8, 12)}
    sampler.draw(1, list(epsilons), epsilons)
    asked = {site: epsilons[site] for site in list(epsilons)[:8]}
    public = sampler.public_sites(asked)
    assert public == frozenset({"8", "9", "10", "11"})
    assert not public & set(asked)


# --- pFA+: two rounds by hand, who is asked for what, what is refused, and the bytes that it saves


EPSILONS = np.array([0.4, 9.0, 0.5, 8.0, 0.3])
PUBLIC = EPSILONS > 5
SHARES = EPSILONS / EPSILONS.sum()
SIZE = 650


def rows_of(seed: int = 0, rounds: int = 3) -> np.ndarray:
    """Return what each site found in each round, shape (rounds, sites, d), of norm near 1."""
    generator = np.random.default_rng(seed)
    shape = (rounds, len(EPSILONS), SIZE)
    rows = generator.standard_normal(SIZE) + generator.standard_normal(shape)
    return (rows / 40).astype(np.float32)


def terms_of(folder: Path, **more: Any) -> RunConfig:
    config = {
        "strategy": "pfa-plus", "rounds": 2, "evaluation": "none", "quorum": 1,
        "learning-rate": 0.1,
    }  # fmt: skip
    more = {key.replace("_", "-"): value for key, value in more.items()}
    return RunConfig.parse({**config, "runs-dir": str(folder), **more})


class Watched(ScriptedGrid):
    """Notes the models and what each site is asked for; sites send what ``answers`` say."""

    def __init__(self, sites: dict[str, Site]) -> None:
        super().__init__(sites, {str(i): {"epsilon": float(e)} for i, e in enumerate(EPSILONS)})
        self.models: dict[int, np.ndarray] = {}
        self.digests: dict[int, str] = {}
        self.before: dict[int, int] = {}
        self.projects: dict[int, dict[str, str | None]] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == wire.TRAIN:
                read = wire.read_instructions(message.content)
                arrays = {name: array.numpy() for name, array in read.model.items()}
                self._note(read.server_round, flatten(arrays), read.model_digest)
                asked = self.projects.setdefault(read.server_round, {})
                asked[self.names[message.metadata.dst_node_id]] = read.project
        return super().send_and_receive(messages, timeout=timeout)

    def _note(self, server_round: int, model: np.ndarray, digest: str) -> None:
        """Note a round's model, and the last round that had another one."""
        last = server_round - 1
        same = self.digests.get(last) == digest
        self.before[server_round] = self.before[last] if same else last
        self.models[server_round], self.digests[server_round] = model, digest

    def step(self, server_round: int, since: int = 0) -> np.ndarray:
        """Return the direction to project on in a round, from the model of round ``since``."""
        before = self.models[since or self.before[server_round]]
        step = (self.models[server_round] - before).astype(np.float64)
        unit: np.ndarray = step / np.linalg.norm(step)
        return unit


def whole(row: np.ndarray) -> Answer:
    return wire.write_update(wire.encode_update(row), SIZE)


def number(value: float) -> Answer:
    return wire.write_update(wire.encode_update(np.array([value], np.float32)), SIZE)


def honest(rows: np.ndarray, always_whole: Iterable[int] = ()) -> Watched:
    """Return sites that send ``rows``, as one number where they are asked for that."""
    grid = Watched({})

    def site(index: int) -> Site:
        def answer(server_round: int) -> Answer:
            row = rows[server_round - 1, index]
            project = grid.projects[server_round][str(index)]
            if not project or index in always_whole:
                return whole(row)
            since = next(past for past, digest in grid.digests.items() if digest == project)
            return number(float(grid.step(server_round, since) @ row))

        return answer

    sites = {str(i): site(i) for i in range(len(EPSILONS))}
    Watched.__init__(grid, sites)
    return grid


def outcome(result: RunResult) -> np.ndarray:
    return flatten(result.arrays).astype(np.float64)


def by_hand(start: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Algorithm 3 in round 1, Algorithm 5 after it, V the last global step; in float64."""
    model, rows = start.astype(np.float64), rows.astype(np.float64)
    direction = SHARES[PUBLIC] @ rows[0, PUBLIC]
    for found in rows:
        direction = direction / np.linalg.norm(direction)
        private = SHARES[~PUBLIC] @ found[~PUBLIC]
        step = SHARES[PUBLIC] @ found[PUBLIC] + direction * (direction @ private)
        model, direction = model + step, step
    return model


@pytest.mark.parametrize("always_whole", [(), (0,), (0, 2, 4)])
def test_rounds_computed_by_hand(tmp_path: Path, always_whole: tuple[int, ...]) -> None:
    rows = rows_of()
    grid = honest(rows, always_whole)
    result = run(grid, terms_of(tmp_path, rounds=3))
    expected = by_hand(grid.models[1], rows)
    # float32: a model below 1 is rounded three times, a step's direction by 2⁻²⁴ of the model
    assert np.abs(outcome(result) - expected).max() < 1e-6
    assert np.abs(outcome(result) - by_hand(grid.models[1], rows[::-1])).max() > 1e-3
    gauges = [event["gauges"] for event in result.rounds]
    assert [gauge["warm_up"] for gauge in gauges] == [1, 0, 0]
    sent = [float(not loose and i not in always_whole) for i, loose in enumerate(PUBLIC)]
    assert gauges[1]["sent_numbers"] == gauges[2]["sent_numbers"] == sent
    for gauge in gauges:
        assert gauge["public"] == PUBLIC.tolist()


def test_the_split_is_that_of_the_sites_asked_not_of_those_that_answered(tmp_path: Path) -> None:
    """Without the public sites' answers, the loosest private site is not a public one."""
    rows, grid = rows_of(), honest(rows_of())
    for loose in np.flatnonzero(PUBLIC):
        answers = grid.sites[str(loose)]
        grid.sites[str(loose)] = lambda r, a=answers: a(r) if r == 1 else None  # type: ignore[misc]
    result = run(grid, terms_of(tmp_path))
    gauges = result.rounds[1]["gauges"]
    assert gauges["public"] == [0, 0, 0]
    shares = EPSILONS[~PUBLIC] / EPSILONS[~PUBLIC].sum()
    direction = grid.step(2)
    step = direction * (direction @ (shares @ rows[1, ~PUBLIC].astype(np.float64)))
    assert np.abs(outcome(result) - grid.models[2] - step).max() < 1e-6


def test_a_returning_site_projects_from_its_last_model(tmp_path: Path) -> None:
    rows = rows_of(rounds=3)
    grid = honest(rows)
    answers = grid.sites["0"]
    grid.sites["0"] = lambda r: answers(r) if r != 2 else None
    result = run(grid, terms_of(tmp_path, rounds=3))
    assert grid.projects[3] == {
        "0": grid.digests[1], "2": grid.digests[2], "4": grid.digests[2],
        "1": server_wire.WHOLE, "3": server_wire.WHOLE,
    }  # fmt: skip
    found = rows[2].astype(np.float64)
    step = SHARES[PUBLIC] @ found[PUBLIC]
    for site, since in ((0, 1), (2, 2), (4, 2)):
        direction = grid.step(3, since)
        step = step + SHARES[site] * direction * (direction @ found[site])
    assert result.rounds[2]["gauges"]["sent_numbers"] == [1, 0, 1, 0, 1]
    assert np.abs(outcome(result) - grid.models[3] - step).max() < 1e-6


LIES: dict[str, Answer] = {
    "NaN": number(np.nan),
    "infinite": number(np.inf),
    "too large": number(1.1e6),
    "two numbers": wire.write_update(wire.encode_update(np.ones(2, np.float32)), 2),
    "no number": wire.write_update(wire.encode_update(np.ones(0, np.float32)), 0),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_number_that_cannot_be_used_is_dropped(tmp_path: Path, lie: str) -> None:
    grid = honest(rows_of())
    answers = grid.sites["0"]
    grid.sites["0"] = lambda r: answers(r) if r == 1 else LIES[lie]
    result = run(grid, terms_of(tmp_path))
    assert set(result.rounds[1]["rejected"]) == {"0"}
    assert result.rounds[1]["accepted"] == ["1", "2", "3", "4"]


def test_a_number_is_taken_only_from_whom_it_is_asked(tmp_path: Path) -> None:
    grid = honest(rows_of())
    public, private = grid.sites["1"], grid.sites["0"]
    grid.sites["1"] = lambda r: public(r) if r == 1 else number(0.5)
    grid.sites["0"] = lambda r: number(0.5) if r == 1 else private(r)
    result = run(grid, terms_of(tmp_path))
    assert [set(event["rejected"]) for event in result.rounds] == [{"0"}, {"1"}]
