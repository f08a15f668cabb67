"""What every rule must do, over the table of rules: a new row is tested without a new line here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.config import RunTerms
from hdpfl_flower.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies import STRATEGIES, check_strategy, make_strategy
from strategies.checks import check_outcome

FACTS = {
    "batch-size": (4, 40),
    "declared-records": (50, 500),
    "epsilon": (0.3, 8.0),
    "noise-std": (0.01, 3.0),
}
NAMES = (*STRATEGIES, "fedavg+random", "robust-hdp+pfa", "weiavg+r-dpcfl")
VARIANTS = [(name, weights) for name in NAMES for weights in ("uniform", "records")]


def projects(name: str) -> bool:
    """What a rule says it cannot promise; ``test_projected.py`` holds what it does instead."""
    return getattr(check_strategy(name), "projects", False)


def combine(name: str, weights: str, updates: RoundUpdates) -> Outcome:
    rule = make_strategy(RunTerms.parse({"strategy": name, "weights": weights}))
    _, outcome = rule.combine(rule.initial_state(), updates, RandomStream(bytes(32)))
    check_outcome(outcome, updates)
    return outcome


def updates_of(name: str, weights: str, rows: npt.NDArray[np.float32]) -> RoundUpdates:
    generator = np.random.default_rng(3)
    rule = make_strategy(RunTerms.parse({"strategy": name, "weights": weights}))
    facts = sorted(rule.needs | rule.welcomes)
    disclosed = {fact: generator.uniform(*FACTS[fact], len(rows)) for fact in facts}
    return RoundUpdates(1, tuple(str(i) for i in range(len(rows))), rows, disclosed)


def taken(outcome: Outcome) -> npt.NDArray[np.float64]:
    """What the models take of each update: (n,), of several models (M, n)."""
    if outcome.group is None:
        return outcome.weights
    shares = np.zeros((len(outcome.update), len(outcome.weights)))
    shares[outcome.group, np.arange(len(outcome.weights))] = outcome.weights
    return shares


def rows_of(n: int, d: int = 400) -> npt.NDArray[np.float32]:
    generator = np.random.default_rng(n)
    scale = generator.uniform(0.1, 3, (n, 1))
    return (generator.standard_normal(d) + scale * generator.standard_normal((n, d))).astype(
        np.float32
    )


@pytest.fixture(params=VARIANTS, ids=lambda v: f"{v[0]}-{v[1]}")
def variant(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 13])
def test_weights_are_convex_and_the_update_is_their_sum(variant: tuple[str, str], n: int) -> None:
    updates = updates_of(*variant, rows_of(n))
    outcome = combine(*variant, updates)
    assert outcome.update.dtype == np.float32
    if not projects(variant[0]):
        total = taken(outcome) @ updates.updates.astype(np.float64)
        np.testing.assert_allclose(outcome.update, total, rtol=1e-5, atol=1e-6)


def test_the_order_of_clients_does_not_matter(variant: tuple[str, str]) -> None:
    updates = updates_of(*variant, rows_of(9))
    order = np.random.default_rng(0).permutation(9)
    shuffled = RoundUpdates(
        1,
        tuple(updates.sites[i] for i in order),
        updates.updates[order],
        {fact: column[order] for fact, column in updates.disclosed.items()},
    )
    one, other = combine(*variant, updates), combine(*variant, shuffled)
    np.testing.assert_allclose(other.weights, one.weights[order], rtol=1e-3)
    np.testing.assert_allclose(other.update, one.update, rtol=1e-3, atol=1e-4)


def test_unanimous_clients_get_their_way(variant: tuple[str, str]) -> None:
    row = rows_of(1)
    outcome = combine(*variant, updates_of(*variant, np.repeat(row, 7, axis=0)))
    if not projects(variant[0]):
        used = outcome.update if outcome.group is None else outcome.update[outcome.group]
        np.testing.assert_allclose(used, np.broadcast_to(row[0], used.shape), rtol=1e-5)


def test_zero_updates_change_nothing(variant: tuple[str, str]) -> None:
    outcome = combine(*variant, updates_of(*variant, np.zeros((5, 30), np.float32)))
    assert not outcome.update.any()


def test_one_zero_update_does_not_take_all_the_weight(variant: tuple[str, str]) -> None:
    rows = rows_of(6)
    rows[2] = 0
    assert combine(*variant, updates_of(*variant, rows)).update.any()


def test_the_inputs_stay_as_they_were(variant: tuple[str, str]) -> None:
    updates = updates_of(*variant, rows_of(5))
    rows = updates.updates.copy()
    columns = {fact: column.copy() for fact, column in updates.disclosed.items()}
    combine(*variant, updates)
    np.testing.assert_array_equal(updates.updates, rows)
    for fact, column in columns.items():
        np.testing.assert_array_equal(updates.disclosed[fact], column)


def test_the_same_updates_give_the_same_bits(variant: tuple[str, str]) -> None:
    updates = updates_of(*variant, rows_of(11))
    assert (
        combine(*variant, updates).update.tobytes() == combine(*variant, updates).update.tobytes()
    )


def test_a_row_of_the_table_is_named_as_its_class_says() -> None:
    assert {name: rule.name for name, rule in STRATEGIES.items()} == {n: n for n in STRATEGIES}


def test_every_rule_cites_its_paper_and_says_whom_it_trusts() -> None:
    import sys

    for rule in STRATEGIES.values():
        text = sys.modules[rule.__module__].__doc__ or ""
        assert "hreat model" in text
        assert any(venue in text for venue in ("ICML", "AISTATS", "VLDB", "TMLR")), rule.name


def test_an_unknown_rule_is_named_beside_the_known_ones() -> None:
    with pytest.raises(Exception, match="'strategy': 'fedsgd' is not known; choose one of fedavg"):
        check_strategy("fedsgd")


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(np.zeros(4, np.float32), np.array([0.5, 0.4])),
        Outcome(np.zeros(4, np.float32), np.array([1.5, -0.5])),
        Outcome(np.zeros(4, np.float32), np.array([np.nan, 1.0])),
        Outcome(np.zeros(4, np.float32), np.array([1.0])),
        Outcome(np.full(4, np.inf, np.float32), np.array([0.5, 0.5])),
        Outcome(np.zeros(3, np.float32), np.array([0.5, 0.5])),
        Outcome(np.zeros((2, 4), np.float32), np.array([0.5, 0.5]), group=np.array([0, 1])),
        Outcome(np.zeros((2, 4), np.float32), np.array([1.0, 1.0]), group=np.array([0, 2])),
        Outcome(np.zeros((2, 3), np.float32), np.array([1.0, 1.0]), group=np.array([0, 1])),
        Outcome(np.zeros((2, 4), np.float32), np.array([0.5, 0.5])),
    ],
)
def test_the_check_of_outcomes_can_fail(outcome: Outcome) -> None:
    with pytest.raises(Exception, match="the rule gave"):
        check_outcome(outcome, RoundUpdates(1, ("a", "b"), np.zeros((2, 4), np.float32)))
