"""The rules of a plan one by one; where noise is asked for, the test gives a number."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

import hdpfl_flower.privacy.plan as module
import hdpfl_flower.releases.base as releases
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import AccountingError, Declined
from hdpfl_flower.privacy import affordable_rounds
from hdpfl_flower.privacy.accounting import Gaussians, PureSelections, Steps, event_of
from hdpfl_flower.privacy.plan import OF_A_RECORD, OF_AN_UPDATE, Plan, make_plan, planned_steps
from hdpfl_flower.privacy.policy import FREE_TERMS, changed_terms, check_policy, check_unchanged
from hdpfl_tools.simulation.scenarios.paper_formulas import pfa_multiplier, robust_hdp_multiplier
from tests.client_app.messages import SCHEMA
from tests.hdpfl_flower.ledger.plans import SECRET, planned, profile, terms

ONE, OTHER, THIRD = Steps(0.5, 1), Steps(0.25, 4), Steps(0.125, 9)
PAPERS: dict[str, Callable[..., float]] = {
    "robust-hdp": robust_hdp_multiplier,
    "pfa": pfa_multiplier,
}


def plan(*steps: Steps, **values: Any) -> Plan:
    """A plan with z = 3, b = 64 and C in [0.5, 4]."""
    return Plan(1.0, 1e-5, 3.0, 64.0, steps, 0.5, 4.0, **values)


# A plan's rounds.


@pytest.mark.parametrize("sensitivity", [0.0, 0.5, 1.5, 3.0, 4.0, -1.0, -2.0, math.nan])
def test_what_is_released_moves_by_one_clip_norm_or_by_two(sensitivity: float) -> None:
    assert (OF_A_RECORD, OF_AN_UPDATE) == (1.0, 2.0)
    for known in (1.0, 2.0):
        assert plan(ONE, sensitivity=known).round(1, 0.5).noise_std == 3 * known * 0.5
    with pytest.raises(AccountingError, match="sensitivity"):
        plan(ONE, sensitivity=sensitivity)


@pytest.mark.parametrize(
    ("steps", "last_round", "alike"),
    [
        ((ONE, ONE), 3, True),
        ((ONE,), 9, True),
        ((ONE, OTHER), 2, True),
        ((ONE, OTHER), 0, True),
        ((ONE, OTHER), 3, False),
        ((ONE, OTHER, THIRD), 4, False),
        ((), 1, False),
    ],
)
def test_unpaid_rounds_are_equal(steps: tuple[Steps, ...], last_round: int, alike: bool) -> None:
    if alike:
        assert plan(*steps, last_round=last_round).rounds == len(steps)
        return
    with pytest.raises(AccountingError, match="alike"):
        plan(*steps, last_round=last_round)


def test_a_round_takes_its_own_steps_and_what_comes_later_the_last() -> None:
    made = plan(ONE, OTHER, THIRD, first_divisor=200.0)
    found = [made.round(r, 0.5) for r in (1, 2, 3, 4)]
    assert [one.steps for one in found] == [ONE, OTHER, THIRD, THIRD]
    assert [one.divisor for one in found] == [200.0, 64.0, 64.0, 64.0]
    assert {one.noise_std for one in found} == {1.5}
    assert plan(ONE).round(1, 0.5).divisor == 64.0


def test_a_plan_covers_what_it_pays_for_or_what_may_be_asked() -> None:
    rounds = range(-1, 7)
    assert [r for r in rounds if plan(ONE, ONE).covers(r)] == [1, 2]
    assert [r for r in rounds if plan(ONE, ONE, last_round=5).covers(r)] == [1, 2, 3, 4, 5]
    assert [r for r in rounds if plan(ONE, ONE, last_round=1).covers(r)] == [1]


def test_an_event_holds_all_models_and_all_choices() -> None:
    made = plan(ONE, OTHER, models=2)
    assert made.schedule == (ONE, OTHER, ONE, OTHER)
    assert made.event() == event_of([ONE, ONE, OTHER, OTHER], 3.0)
    for choices in (Gaussians(9.0, 2), PureSelections(0.1, 2)):
        chosen = plan(ONE, OTHER, releases=(("choice", choices),))
        assert chosen.event() == event_of([ONE, OTHER], 3.0, [choices])
        assert Plan.from_json(chosen.to_json()) == chosen


def test_the_noise_of_an_update_is_the_root_of_its_steps_times_the_rate() -> None:
    """√k·η·z·C/b = √9 · 0.2 · 3 · 0.5 / 64."""
    found = plan(ONE, THIRD).update_noise_std(2, 0.5, 0.2)
    assert found == pytest.approx(3 * 0.2 * 1.5 / 64, rel=1e-12)
    assert plan(ONE, first_divisor=8.0).update_noise_std(1, 0.5, 0.2) == pytest.approx(0.3 / 8)
    with pytest.raises(AccountingError, match="noise of its round"):
        plan(ONE, sensitivity=OF_AN_UPDATE).update_noise_std(1, 0.5, 0.2)


def test_a_plan_that_lacks_a_field_is_none() -> None:
    """A default in its place could ask for less noise."""
    whole = json.loads(plan(ONE, OTHER).to_json())
    assert list(whole) == sorted(whole)
    read = Plan.from_json(json.dumps(whole))
    assert read == plan(ONE, OTHER) and repr(read) == "Plan(<private>)"
    for key in whole.keys() - {"format"}:
        with pytest.raises(AccountingError, match="is no plan"):
            Plan.from_json(json.dumps({k: v for k, v in whole.items() if k != key}))


# How a plan is made.


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What noise was asked for: z is always 5."""
    made: list[tuple[object, ...]] = []

    def calibrate(*at: object) -> float:
        made.append(at)
        return 5.0

    for each in (module, releases):
        monkeypatch.setattr(each, "calibrate", calibrate)
    return made


@pytest.mark.parametrize(
    ("changes", "rounds"),
    [
        ({}, (OTHER,) * 3),
        ({"participations": 2}, (OTHER,) * 2),
        ({"participations": 4}, (OTHER,) * 3),
        ({"local_steps": 7}, (Steps(0.25, 7),) * 3),
        (
            {"work": {"kind": "plain", "first-batch": "full"}, "local_epochs": 2},
            (Steps(1.0, 2), *(Steps(0.25, 8),) * 2),
        ),
        ({"noise": "client"}, (Steps(1.0, 1),) * 3),
        ({"noise": "client", "participations": 1}, (Steps(1.0, 1),)),
        ({"epsilon_cap": 0.5}, (OTHER,) * 3),
        ({"epsilon_cap": 9.0}, (OTHER,) * 3),
        ({"choice": {"kind": "none"}}, (OTHER,) * 3),
    ],
    ids=str,
)
def test_a_plan_is_what_the_terms_ask_for(
    changes: dict[str, Any], rounds: tuple[Steps, ...], asked: list[tuple[object, ...]]
) -> None:
    made, client = make_plan(profile(), terms(**changes)), changes.get("noise") == "client"
    epsilon = min(SECRET, changes.get("epsilon_cap", SECRET))
    assert made == Plan(
        epsilon, 1e-5, 5.0, 1.0 if client else 50.0, rounds, 0.1, 10.0, last_round=3,
        first_divisor=200.0 if "full" in str(changes) else 0.0,
        sensitivity=OF_AN_UPDATE if client else OF_A_RECORD,
    )  # fmt: skip
    assert asked == [(rounds, epsilon, 1e-5, [])]


@pytest.mark.parametrize(
    ("personal", "models"),
    [({"second": {"kind": "private"}}, 2), ({"second": {"kind": "kept"}}, 1), ({}, 1)],
    ids=str,
)
def test_a_personal_model_with_noise_doubles_the_steps(
    personal: dict[str, Any], models: int, asked: list[tuple[object, ...]]
) -> None:
    run = terms(**personal)
    assert make_plan(profile(), run).models == models
    assert asked == [((OTHER,) * 3 * models, SECRET, 1e-5, [])]
    assert planned_steps(profile(), run) == 12 * models


def test_tuning_counts_and_masks_are_paid_for(asked: list[tuple[object, ...]]) -> None:
    """The counts alone cost their share of ε; then all steps are calibrated beside them."""
    run = terms(
        work={"kind": "joint", "mask": "charged-top-k"},
        after={"tuning": {"steps": 7}, "prior": {"share": 0.1}},
    )
    made = make_plan(profile(), run)
    rounds, tuning, counts = (Steps(0.25, 5),) * 3, Steps(0.25, 7), Gaussians(5.0, 1)
    assert (made.steps, made.cost_of("tuning"), made.cost_of("counts")) == (rounds, tuning, counts)
    assert made.schedule == (*rounds, tuning) and made.beside == (counts,)
    assert made.event() == event_of([*rounds, tuning], 5.0, [counts])
    alone, whole = asked
    assert alone == ([Steps(1.0, 1)], 0.1 * SECRET, 1e-5)
    assert whole == ((*rounds, tuning), SECRET, 1e-5, [counts])
    assert planned_steps(profile(), run) == 22
    assert (
        made.steps_beside("tuning", 0.5).steps == tuning
        and made.steps_beside("tuning", 0.5).noise_std == 2.5
    )
    assert Plan.from_json(made.to_json()) == made
    with pytest.raises(AccountingError, match="beside the rounds"):
        plan(ONE).steps_beside("tuning", 0.5)


@pytest.mark.parametrize("noise", ["server", "client"])
def test_the_work_of_a_run_without_noisy_steps_is_its_rounds(noise: str) -> None:
    assert planned_steps(profile(), terms(noise=noise)) == 3
    assert planned_steps(profile(), terms(noise=noise, participations=2)) == 2


# Papers' formulas, for simulations alone.


@pytest.mark.parametrize("calibration", ["robust-hdp", "pfa"])
def test_a_formula_is_for_a_simulation_whose_records_are_noised(calibration: str) -> None:
    simulated = profile(simulation={"seed": 1})
    planned(simulated, terms(calibration=calibration))
    for site, noise in (
        (profile(), "records"), (profile(), "client"), (simulated, "client"), (simulated, "server"),
    ):  # fmt: skip
        with pytest.raises(Declined, match="which gives no privacy"):
            asked = terms(calibration=calibration, noise=noise)
            make_plan(site, asked, nominal_noise=lambda _: 1.0)
    for site in (profile(), simulated):
        with pytest.raises(Declined, match="which gives no privacy"):
            make_plan(site, terms(calibration=calibration))
        with pytest.raises(Declined, match="which gives no privacy"):
            planned(profile(), terms(calibration=calibration))
    with pytest.raises(Declined, match="which gives no privacy"):
        make_plan(simulated, terms(), nominal_noise=lambda _: 1.0)


@pytest.mark.parametrize("calibration", PAPERS)
@pytest.mark.parametrize(
    ("changes", "steps"), [({"local_epochs": 2}, 6.25), ({"local_steps": 7}, 7)]
)
def test_given_noise_buys_rounds(calibration: str, changes: dict[str, Any], steps: float) -> None:
    """Between the formula's noise for r rounds and for r + 1, r are paid for, down to none."""
    site = profile(simulation={"seed": 1}, training={"batch-size": 64})
    asked = terms(rounds=4, calibration=calibration, **changes)
    of = [PAPERS[calibration](SECRET, 1e-5, 0.32, r * steps) for r in (1, 2, 3, 4)]
    assert planned(site, asked).noise_multiplier == of[3]
    assert sorted({*of}) == of
    for rounds, given in ((1, of[0]), (1, (of[0] + of[1]) / 2), (2, of[1]), (3, of[2]), (4, 99.0)):
        made = planned(site, asked.updated(noise_multiplier=given))
        assert (made.rounds, made.noise_multiplier, made.epsilon) == (rounds, given, SECRET)
    with pytest.raises(Declined, match="too small for a single round"):
        planned(site, asked.updated(noise_multiplier=of[0] * (1 - 1e-9)))


def test_given_noise_is_charged_for_the_rounds_it_affords(
    monkeypatch: pytest.MonkeyPatch, asked: list[tuple[object, ...]]
) -> None:
    affords = 2
    calls: list[tuple[object, ...]] = []

    def afford(*at: object) -> int:
        calls.append(at)
        return affords

    def charge(*at: object) -> float:
        calls.append(at)
        return 0.75

    monkeypatch.setattr(affordable_rounds, "affordable_rounds", afford)
    monkeypatch.setattr(affordable_rounds, "charge_for", charge)
    made = make_plan(profile(), terms(noise_multiplier=2.5))
    assert (made.steps, made.noise_multiplier, made.epsilon) == ((OTHER,) * 2, 2.5, 0.75)
    assert calls == [(OTHER, 2.5, SECRET, 1e-5, 3), (OTHER, 2, 2.5, SECRET, 1e-5)]
    assert asked == []
    affords = 0
    with pytest.raises(Declined, match="too small for a single round"):
        make_plan(profile(), terms(noise_multiplier=2.5))


# What a site refuses.


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"noise": "server"}, "'trust-server'"),
        ({"noise": "client"}, "'client-noise'"),
        ({"dataset": "site", "schema": 'id = "ward"\n' + SCHEMA}, "'data.id'"),
        (
            {"work": {"kind": "plain", "first-batch": "full"}, "participations": 2},
            "'work.first-batch' = 'full'",
        ),
        ({"strategy": "minimum"}, "'strategy'"),
        ({"model": "a.b:d"}, "'model'"),
        ({"rounds": 6}, "'policy.max-rounds'"),
        ({"clip_norm": 0.09}, "'clip-norm'"),
        ({"clip_norm": 11.0}, "'clip-norm'"),
        ({"local_epochs": 4}, "'policy.max-local-epochs'"),
        ({"local_steps": 31}, "'policy.max-local-steps'"),
        ({"local_steps": 30, "rounds": 4}, "'policy.max-steps'"),
    ],
    ids=str,
)
def test_each_rule_refuses_alone(changes: dict[str, Any], why: str) -> None:
    policy = {"strategies": [terms().strategy], "models": ["a.b:c"], "max-rounds": 5,
              "max-steps": 100, "max-local-epochs": 3, "max-local-steps": 30}  # fmt: skip
    site = profile(policy=policy)
    for allowed in (
        {}, {"model": "a.b:c"}, {"model": "mlp:8"}, {"rounds": 5}, {"local_epochs": 3},
        {"local_steps": 30}, {"clip_norm": 0.1}, {"clip_norm": 10.0},
        {"local_steps": 20, "rounds": 5},
    ):  # fmt: skip
        check_policy(site, terms(**allowed))
    check_policy(profile(), terms(strategy="minimum"))
    with pytest.raises(Declined, match=why) as caught:
        check_policy(site, terms(**changes))
    assert not re.search(r"[\d\n]", str(caught.value))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "os:system"}, "'model'"),
        ({"local_epochs": 10**6}, "'policy.max-local-epochs'"),
        ({"local_steps": 10**6}, "'policy.max-local-steps'"),
        ({"rounds": 10**9}, "'rounds'"),
    ],
    ids=str,
)
def test_a_profile_without_a_policy_has_bounds(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Declined, match=why):
        check_policy(profile(), terms(**changes))


# What may change in a run.


def test_the_free_terms_are_these() -> None:
    assert {"clip-norm", "work.pull", "scales"} == FREE_TERMS
    work = {"kind": "joint", "pull": 0.5, "mask": "random", "share": 0.25}
    one = terms(work=work)
    assert not changed_terms(one, terms(work={**work, "pull": 2}))
    for other in ({"share": 0.3}, {"first-batch": "full"}, {"stays": "body"}):
        assert changed_terms(one, terms(work={**work, **other})) == [f"work.{next(iter(other))}"]
    changed = changed_terms(one, terms(work={**work, "kind": "alternate"}))
    assert changed == ["work.kind", "work.own-steps"]
    assert changed_terms(one, terms(work={"kind": "plain", "pull": 0.5}))[0] == "work.kind"


def test_the_first_changed_term_is_named() -> None:
    frozen = RunTerms.parse({**terms().as_config(), "run-id": "r"})
    check_unchanged(frozen, frozen.updated(clip_norm=2.0), plan(ONE))
    with pytest.raises(Declined, match="'local-epochs' changed"):
        check_unchanged(frozen, frozen.updated(local_epochs=9, rounds=9, clip_norm=2.0), plan(ONE))


@pytest.mark.parametrize(
    ("clip", "inside"), [(0.5, True), (4.0, True), (0.4999, False), (4.0001, False)]
)
def test_the_clip_norm_stays_within_the_frozen_plans(clip: float, inside: bool) -> None:
    if inside:
        check_unchanged(terms(), terms(clip_norm=clip), plan(ONE))
        return
    with pytest.raises(Declined, match="frozen with the plan"):
        check_unchanged(terms(), terms(clip_norm=clip), plan(ONE))
