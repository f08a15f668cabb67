"""Noise that falls over the rounds by a public factor: one frozen plan, accounted as it runs."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from hdpfl_flower.errors import AccountingError, Declined
from hdpfl_flower.ledger.renyi import prices_of
from hdpfl_flower.privacy.accounting import Steps, event_of, merge
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_flower.privacy.policy import check_unchanged
from hdpfl_flower.weighting.claimed_noise import least_noise_std
from tests.hdpfl_flower.ledger.plans import SECRET, cost_of, profile, terms

LATE: dict[str, Any] = {"rounds": 8, "spend": {"kind": "late", "ratio": 8}}
FACTORS = [8.0, 8.0, 4.0, 4.0, 2.0, 2.0, 1.0, 1.0]


def late(**more: Any) -> Plan:
    return make_plan(profile(), terms(**{**LATE, **more}))


def drawn(plan: Plan) -> list[dp_accounting.DpEvent]:
    """Return a round's event each, by the noise that its sums really get."""
    found = []
    for server_round in range(1, plan.rounds + 1):
        this = plan.round(server_round, 3.0)
        event = dp_accounting.GaussianDpEvent(this.noise_std / 3.0)
        if this.steps.sampling_prob < 1:
            event = dp_accounting.PoissonSampledDpEvent(this.steps.sampling_prob, event)
        found.append(dp_accounting.SelfComposedDpEvent(event, this.steps.count))
    return found


@pytest.mark.parametrize("first", ["same", "full"])
def test_what_is_drawn_costs_the_runs_epsilon(first: str) -> None:
    plan = late(work={"kind": "plain", "first-batch": first})
    found = [plan.round(r, 1.0).noise_std / plan.noise_multiplier for r in range(1, 9)]
    np.testing.assert_allclose(found, FACTORS)
    library = PLDAccountant(value_discretization_interval=1e-3)
    library.compose(dp_accounting.ComposedDpEvent(drawn(plan)))
    assert 0.98 * SECRET < library.get_epsilon(1e-5) <= 1.003 * SECRET
    assert cost_of(plan) <= plan.epsilon == SECRET


def test_noise_is_taken_from_the_last_rounds_and_given_to_the_first() -> None:
    even = make_plan(profile(), terms(rounds=8))
    assert late().noise_multiplier < even.noise_multiplier < 8 * late().noise_multiplier
    assert make_plan(profile(), terms(rounds=8, spend={"kind": "late", "ratio": 1})) == even


def test_the_ledger_keeps_the_factors() -> None:
    assert Plan.from_json(late().to_json()) == late()


def test_tuning_has_the_noise_of_the_last_rounds() -> None:
    plan = late(after={"tuning": {"steps": 5}})
    assert plan.steps_beside("tuning", 1.0).noise_std == plan.round(8, 1.0).noise_std
    assert cost_of(plan) <= SECRET


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 7, 30])
def test_the_last_round_is_the_unit_and_none_is_quieter(rounds: int) -> None:
    asked = terms(rounds=rounds, spend={"kind": "late", "ratio": 3})
    found = [asked.noise_factor(each) for each in range(1, rounds + 1)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == 1
    assert found[0] == (3 if rounds > 1 else 1)
    assert found.count(1.0) == asked.spend.quietest(rounds)
    assert len(set(found)) <= 4


def test_each_round_has_its_own_price() -> None:
    plan = late()
    prices = {price.server_round: price for price in prices_of(plan, 8)}
    assert set(prices) == {0, 1, 2, 3, 4, 5, 6}
    assert sum(price.count for price in prices.values()) == 8
    for server_round, event in enumerate(drawn(plan), start=1):
        exact = float(RdpAccountant(orders=[8]).compose(event)._rdp[0])
        price = prices.get(server_round, prices[0]).each
        assert exact * (1 - 1e-12) <= price <= exact * (1 + 1e-6) + 1e-12


def test_what_the_site_approved_is_what_it_draws() -> None:
    """A server that asks for another factor in mid-run is declined, and nothing of it is drawn."""
    asked, plan = terms(**LATE), late()
    with pytest.raises(Declined, match=r"'spend\.ratio' changed"):
        check_unchanged(asked, asked.updated(spend={"kind": "late", "ratio": 2}), plan)
    with pytest.raises(Declined, match=r"'spend\.ratio' changed"):
        check_unchanged(asked, asked.updated(spend={"kind": "late", "ratio": 9}), plan)
    with pytest.raises(Declined, match=r"'spend\.kind' changed"):
        check_unchanged(asked, asked.updated(spend={"kind": "even"}), plan)


def test_steps_of_unlike_noise_are_not_merged_and_order_does_not_matter() -> None:
    steps = [Steps(0.1, 2, 2.0), Steps(0.1, 3), Steps(0.1, 4, 2.0)]
    assert merge(steps) == merge(steps[::-1]) == [Steps(0.1, 3), Steps(0.1, 6, 2.0)]
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(AccountingError, match="factor"):
            event_of([Steps(0.1, 1, wrong)], 1.0)


@pytest.mark.parametrize("ratio", [1.5, 16.0])
@pytest.mark.parametrize("rounds", [1, 2, 8, 25])
def test_an_honest_site_is_never_quieter_than_its_claim(ratio: float, rounds: int) -> None:
    asked = terms(rounds=rounds, spend={"kind": "late", "ratio": ratio})
    site = profile(budget={"epsilon": 2.0, "delta": 1e-3}, run={"epsilon": 2.0, "delta": 1e-3})
    plan = make_plan(site, asked)
    for server_round in range(1, rounds + 1):
        least = least_noise_std(asked, server_round, 2.0, 50.0, 200.0)
        std = plan.update_noise_std(server_round, asked.clip_norm, asked.learning_rate)
        assert 0.2 * std < least <= std
