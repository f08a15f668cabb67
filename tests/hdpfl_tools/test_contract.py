"""The contract suite over the table of strategies: a new row needs no new line here."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import ServerTerms
from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Revision
from hdpfl_tools.contract import CHECKS, Subject, rows_of
from strategies import SERVER_STEPS, STRATEGIES, check_strategy, make_kernel, make_strategy
from strategies.averaging.fedavg import FedAvg
from strategies.core.checks import check_outcome, shares_of
from tests.cases import sampled
from tests.federation import weighing

STEPS = tuple(f"mmse+{step}" for step in SERVER_STEPS)
SPLIT = ("scaffold", "mmse+scaffold", "robust-hdp+scaffold+adam")
NAMES = (*STRATEGIES, "fedavg+random", "robust-hdp+pfa", "weiavg+r-dpcfl", *STEPS,
         "robust-hdp+fedrp", "weiavg+fedpi", *SPLIT[1:])  # fmt: skip
VARIANTS = [
    (name, weights)
    for name in NAMES
    for weights in ("uniform", "records")
    if weights == "uniform" or weighing(name, weights)
]
"""Names with each setting of their weights; some have none."""
FAMILIES = ("fedavg", "mmse", "pfa", "fedhdp", "ifca", "splitting")
"""One strategy of each family, for ``make test``."""
OWN_STARTS = ("fedsplit", "fedpi", "splitting", "weiavg+fedpi")
NO_SUM = (*OWN_STARTS, "pfa", "pfa-plus", "random-projection", "fedhdp")
NO_SUM += ("fedavg+random", "robust-hdp+pfa")
"""Strategies whose first update may be a weighted sum of these rows, and whose later ones are
not."""


def is_sum(name: str) -> bool:
    """What a rule says it can promise; ``test_projected.py`` holds what the others do instead."""
    return make_strategy(RunConfig.parse({"strategy": name})).declare().is_weighted_sum


def subject_of(name: str, weights: str = "uniform", **terms: object) -> Subject:
    return Subject(RunConfig.parse({"strategy": name, **weighing(name, weights), **terms}))


@pytest.mark.parametrize(
    ("name", "weights"), sampled(VARIANTS, [(name, "uniform") for name in FAMILIES])
)
def test_every_strategy_keeps_its_contract(name: str, weights: str) -> None:
    broken = {}
    for check, hold in CHECKS.items():
        try:
            hold(subject_of(name, weights))
        except HDPFLError as error:
            broken[check] = str(error)
    assert broken == {}


@pytest.mark.parametrize("name", NAMES)
def test_unanimous_clients_get_their_way(name: str) -> None:
    row = rows_of(1)
    subject = subject_of(name)
    outcome = subject.combine(subject.updates(np.repeat(row, 7, axis=0)))
    if is_sum(name):  # but for the length of the step, which a strategy may choose
        used = outcome.update if outcome.group is None else outcome.update[outcome.group]
        expected = np.broadcast_to(outcome.scale * row[0], used.shape)
        np.testing.assert_allclose(used, expected, rtol=1e-5)


def test_exactly_the_strategies_that_may_leave_the_clients_updates_say_so() -> None:
    leave = {"mmse", "fedrp", "robust-hdp+fedrp", *STEPS, *SPLIT, *NO_SUM}
    assert {name for name in NAMES if not subject_of(name).new().declare().is_convex} == leave


def test_exactly_the_strategies_that_revise_say_so() -> None:
    """Guards take nothing out of their models; inside a part the steps are final."""
    said = {name for name in NAMES if not subject_of(name).new().declare().is_final}
    assert said == {"mmse", *STEPS}


def test_a_revision_after_final_steps_breaks_the_contract() -> None:
    class Revising(FedAvg):
        def combine(self, state, updates, noise):
            state, outcome = super().combine(state, updates, noise)
            return state, replace(outcome, revision=Revision(outcome.update, 1.0, 1.0))

    class Its(Subject):
        def new(self):
            return Revising(self.config)

    subject = Its(RunConfig.parse({"strategy": "fedavg"}))
    with pytest.raises(HDPFLError, match="declare is_final=False"):
        CHECKS["the state survives a checkpoint"](subject)


def test_exactly_the_rules_that_are_no_weighted_sum_say_so() -> None:
    """Guards act by the weights of the others: who says no for nothing has half a guard."""
    said = {name for name in NAMES if not is_sum(name)}
    assert said >= set(NO_SUM)
    for name in said - set(NO_SUM):
        subject = subject_of(name)
        updates = subject.updates(rows_of(13))
        outcome = subject.combine(updates)
        total = outcome.scale * (shares_of(outcome) @ updates.updates.astype(np.float64))
        assert np.abs(outcome.update - total).max() > 0.01, name


@pytest.mark.parametrize("noise", ["records", "client", "server"])
@pytest.mark.parametrize("ratio", ["auto", " auto", "precision", "0.1", "0"])
@pytest.mark.parametrize("name", ["fedhdp", "dp-fedavg"])
def test_levels_are_a_weighted_sum_unless_stated(name: str, ratio: str, noise: str) -> None:
    config = {"strategy": name, "noise": noise}
    if name == "fedhdp":
        config["fedhdp.level-ratio"] = ratio
    said = make_strategy(RunConfig.parse(config)).declare().is_weighted_sum
    assert said == (noise != "server" and (name == "dp-fedavg" or "auto" not in ratio))
    if noise == "server":
        return
    updates = subject_of(name).updates(rows_of(13))
    updates.disclosed["epsilon"][:4] = np.inf  # type: ignore[index]
    outcome = Subject(RunConfig.parse(config)).combine(updates)
    assert outcome.scale == 1
    if said:
        total = outcome.scale * (outcome.weights @ updates.updates.astype(np.float64))
        np.testing.assert_allclose(outcome.update, total, rtol=1e-5, atol=1e-6)


GUARDS = get_args(ServerTerms.model_fields["guard"].annotation)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("name", sampled([n for n in NAMES if n != "pfa-plus"], FAMILIES))
def test_every_guard_works_with_a_rule_or_is_refused(name: str, guard: str) -> None:
    """Refused with several models, starts or control variates; bounds on weights without a sum."""
    terms = RunConfig.parse({"strategy": name, "guard": guard})
    offers, work = subject_of(name).new().declare(), subject_of(name).new().terms.work
    never = not (offers.one_model and offers.common_start and offers.fresh_noise)
    in_parts = work.sent_part and guard == "content"
    if guard != "none" and (never or in_parts or (not is_sum(name) and guard == "cap")):
        with pytest.raises(HDPFLError, match="'guard'"):
            make_strategy(terms)
        return
    kernel = make_kernel(terms)
    # As large as the run's model, in whose class rows content is read.
    updates = subject_of(name).updates(rows_of(13, 650))
    kept = kernel.guard.screen(updates)
    assert kept.sites == updates.sites
    _, outcome = kernel.strategy.combine(kernel.state, kept, RandomStream(bytes(32)))
    guarded = kernel.guard.reweigh(outcome, kept)
    check_outcome(guarded, kept)
    if guard == "cap":
        assert guarded.weights.max() <= 3 / 13 * (1 + 1e-9)
        total = outcome.scale * (guarded.weights @ updates.updates.astype(np.float64))
        np.testing.assert_allclose(guarded.update, total, rtol=1e-5, atol=1e-6)


def test_a_row_of_the_table_is_named_as_its_class_says() -> None:
    assert {name: rule.name for name, rule in STRATEGIES.items()} == {n: n for n in STRATEGIES}


def test_an_unknown_rule_is_named_beside_the_known_ones() -> None:
    with pytest.raises(Exception, match="'strategy': 'fedsgd' is not known; choose one of fedavg"):
        check_strategy("fedsgd")
