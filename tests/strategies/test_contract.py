"""What every rule must do, over the table of rules: a new row is tested without a new line here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies import STRATEGIES, check_strategy, make_strategy
from strategies.core.checks import check_outcome

FACTS = {
    "batch-size": (4, 40),
    "declared-records": (50, 500),
    "epsilon": (0.3, 8.0),
    "noise-std": (0.01, 3.0),
}
NAMES = (*STRATEGIES, "fedavg+random", "robust-hdp+pfa", "weiavg+r-dpcfl")
VARIANTS = [(name, weights) for name in NAMES for weights in ("uniform", "records")]
NO_SUM = ("pfa", "pfa-plus", "random-projection", "fedhdp", "fedavg+random", "robust-hdp+pfa")
"""Rules that must not say that their update is a weighted sum, under default terms."""


def is_sum(name: str) -> bool:
    """What a rule says it can promise; ``test_projected.py`` holds what the others do instead."""
    return check_strategy(name).is_weighted_sum(RunTerms.parse({"strategy": name}))


def combine(name: str, weights: str, updates: RoundUpdates, **terms: object) -> Outcome:
    rule = make_strategy(RunTerms.parse({"strategy": name, "weights": weights, **terms}))
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
    if is_sum(variant[0]):
        total = outcome.scale * (taken(outcome) @ updates.updates.astype(np.float64))
        np.testing.assert_allclose(outcome.update, total, rtol=1e-5, atol=1e-6)


def test_exactly_the_rules_that_are_no_weighted_sum_say_so() -> None:
    """Guards act by the weights of the others: who says no for nothing has half a guard."""
    assert tuple(name for name in NAMES if not is_sum(name)) == NO_SUM


@pytest.mark.parametrize("noise", ["records", "client", "server"])
@pytest.mark.parametrize("ratio", ["auto", " auto", "precision", "0.1", "0"])
@pytest.mark.parametrize("name", ["fedhdp", "dp-fedavg"])
def test_levels_are_a_weighted_sum_but_with_ratios_of_many_directions_or_the_servers_noise(
    name: str, ratio: str, noise: str
) -> None:
    config = {"strategy": name, "level-ratio": ratio, "server-learning-rate": 0.7, "noise": noise}
    said = check_strategy(name).is_weighted_sum(RunTerms.parse(config))
    assert said == (noise != "server" and (name == "dp-fedavg" or "auto" not in ratio))
    if noise == "server":
        return
    updates = updates_of(name, "uniform", rows_of(13))
    updates.disclosed["epsilon"][:4] = np.inf  # type: ignore[index]
    outcome = combine(name, "uniform", updates, **config)
    assert outcome.scale == 0.7
    if said:
        total = outcome.scale * (outcome.weights @ updates.updates.astype(np.float64))
        np.testing.assert_allclose(outcome.update, total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("guard", ["none", "cap", "centred-clipping", "evidence"])
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("pfa-plus")])
def test_every_guard_works_with_a_rule_or_is_refused_by_name_before_the_run(
    name: str, guard: str
) -> None:
    """Refused with all that have several models; bounds on weights where there is no sum."""
    terms = RunTerms.parse({"strategy": name, "guard": guard})
    several = getattr(check_strategy(name), "many_models", False)
    if guard != "none" and (several or (not is_sum(name) and guard != "evidence")):
        with pytest.raises(HDPFLError, match="'guard'"):
            make_strategy(terms)
        return
    rule, updates = make_strategy(terms), updates_of(name, "uniform", rows_of(13))
    kept = rule.guard.screen(updates)
    assert kept.sites == updates.sites
    _, outcome = rule.combine(rule.initial_state(), kept, RandomStream(bytes(32)))
    guarded = rule.guard.reweigh(outcome, kept)
    check_outcome(guarded, kept)
    if guard == "cap":
        assert guarded.weights.max() <= 3 / 13 * (1 + 1e-9)
        total = outcome.scale * (guarded.weights @ updates.updates.astype(np.float64))
        np.testing.assert_allclose(guarded.update, total, rtol=1e-5, atol=1e-6)


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
    if is_sum(variant[0]):  # but for the length of the step, which a rule may choose
        used = outcome.update if outcome.group is None else outcome.update[outcome.group]
        expected = np.broadcast_to(outcome.scale * row[0], used.shape)
        np.testing.assert_allclose(used, expected, rtol=1e-5)


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
