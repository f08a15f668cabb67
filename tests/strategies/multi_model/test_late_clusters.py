"""Late clusters: when sites part, what each cluster starts from, and what holds nobody up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import RoundUpdates
from strategies import make_strategy
from strategies.core.interface import State
from strategies.multi_model.late_clusters import LateClusters

SIZE = 1000
HEAD = Head(0, 10, 99)
SITES = tuple(f"site-{i}" for i in range(8))
TRUE = np.array([0, 0, 0, 0, 1, 1, 1, 1])
NOISES = np.full(8, 0.05)


def rule_of(name: str = "late-clusters", **more: Any) -> LateClusters:
    rule = make_strategy(RunConfig.parse({"strategy": name, "rounds": 100, **more}))
    assert isinstance(rule, LateClusters)
    return rule


def updates_of(
    round_: int,
    noises: npt.NDArray[np.float64] = NOISES,
    steps: npt.NDArray[np.float64] | None = None,
    gap: float = 0.5,
) -> npt.NDArray[np.float32]:
    """Return a round's updates: a common way, a group's, each times the steps, and noise."""
    ways = np.random.default_rng(1).standard_normal((3, SIZE))
    ways *= np.array([1.0, gap, gap])[:, None] / np.linalg.norm(ways, axis=1)[:, None]
    rows = (ways[0] + ways[1:][TRUE]) * (np.ones(8) if steps is None else steps)[:, None]
    noise = np.random.default_rng([2, round_]).standard_normal((8, SIZE))
    return (rows + noises[:, None] * noise).astype(np.float32)


class Run:
    """Rounds of a rule: its state, and how far every model has come."""

    def __init__(self, rule: LateClusters, head: Head | None = HEAD) -> None:
        self.rule, self.head, self.state = rule, head, rule.initial_state()
        self.moved = np.zeros((1, SIZE))
        self.gauges: dict[int, Any] = {}
        self.parted = 0
        self._round = 0

    def step(self, rows: npt.NDArray[np.float32], sites: Sequence[str] = SITES) -> None:
        self._round += 1
        group = np.array([max(self.state.group_of(site), 0) for site in sites])
        updates = RoundUpdates(self._round, tuple(sites), rows, {}, self.head, group)
        state, outcome = self.rule.combine(self.state, updates, RandomStream(bytes(32)))
        self.state: State = state
        if len(outcome.update) > len(self.moved):
            self.moved = np.repeat(self.moved, len(outcome.update), axis=0)
            self.parted = self._round
        self.moved = self.moved + outcome.update
        self.gauges[self._round] = dict(outcome.gauges)

    def groups(self) -> list[int]:
        return [self.state.group_of(site) for site in SITES]


def run_of(rounds: int, rule: LateClusters | None = None, **more: Any) -> Run:
    run = Run(rule or rule_of())
    for t in range(1, rounds + 1):
        run.step(updates_of(t, **more))
    return run


def are_true(groups: Sequence[int]) -> bool:
    found = np.array(groups)
    return np.array_equal(found[:, None] == found, TRUE[:, None] == TRUE)


def test_the_sites_part_when_what_one_round_hides_has_added_up() -> None:
    run = run_of(40, noises=np.full(8, 0.2))
    mss = {t: g["clusters_mss"] for t, g in run.gauges.items() if "clusters_mss" in g}
    assert list(mss)[:7] == [2, 3, 4, 5, 7, 9, 13]  # after 1, 2, 3, 4, 6, 8, 12
    assert mss[2] < 2
    assert 9 <= run.parted <= 33
    assert run.state.models == 2
    assert are_true(run.groups())
    before, at = run.gauges[run.parted - 1], run.gauges[run.parted]
    assert before["clusters"] == 1
    assert (at["clusters"], at["clusters_separated"]) == (2, 1)
    assert at["cluster_confidence"].min() > 0.99
    assert max(mss) == run.parted  # nobody looks again


def test_no_site_parts_before_three_looks() -> None:
    """Without noise the first has it all; two groups that look like one need the others."""
    run = run_of(4, noises=np.full(8, 1e-3))
    for round_ in (2, 3):
        assert run.gauges[round_]["clusters_mss"] > 10
        assert run.gauges[round_]["clusters_separated"] == 0
    assert run.parted == 4


def test_each_cluster_starts_where_it_would_be_alone() -> None:
    """These updates do not depend on the model, so that it is exact."""
    run = run_of(7)
    rows = np.stack([updates_of(t) for t in range(1, 8)]).astype(np.float64)
    assert 4 <= run.parted <= 6
    for site in (0, 7):
        alone = rows[:, TRUE[site] == TRUE].mean(axis=1).sum(axis=0)
        np.testing.assert_allclose(run.moved[run.groups()[site]], alone, atol=1e-4)


def test_without_groups_it_stays_one_model() -> None:
    run = run_of(40, gap=0.0)
    assert not run.parted
    assert run.state.models == 1
    rows = np.stack([updates_of(t, gap=0.0) for t in range(1, 41)]).astype(np.float64)
    np.testing.assert_allclose(run.moved[0], rows.mean(axis=1).sum(axis=0), atol=1e-3)


def test_a_site_hidden_in_noise_holds_nobody_up_for_long() -> None:
    noises = NOISES.copy()
    noises[3] = 50.0
    run = run_of(20, noises=noises)
    assert run_of(20).parted < run.parted <= 17
    groups = run.groups()
    assert len({groups[i] for i in (0, 1, 2)}) == len({groups[i] for i in (4, 5, 6, 7)}) == 1
    assert groups[0] != groups[7]
    assert groups[3] in (groups[0], groups[7])


def test_one_that_missed_rounds_is_placed_and_a_newcomer_gets_the_largest_cluster() -> None:
    run = Run(rule_of())
    for t in range(1, 8):
        rows = updates_of(t)
        here = [i for i in range(8) if i != 0 or t in (2, 4)]
        run.step(rows[here], [SITES[i] for i in here])
    assert 4 <= run.parted <= 6
    assert are_true(run.groups())
    largest = np.bincount(run.groups()).argmax()
    assert run.rule.model_of_site(run.state, "new") == largest
    assert run.rule.model_of_site(run.state, "site-0") == run.groups()[0]
