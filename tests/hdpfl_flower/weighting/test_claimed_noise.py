"""The noise that a site's claims bound: never above an honest site's, and what it is for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.engines import dpsgd
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.accounting import ExtraRelease, Steps, epsilon_of, event_of, interval_for
from hdpfl_flower.privacy.noise import RandomStream, ReleaseStreams
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_flower.updates import RoundUpdates
from hdpfl_flower.weighting.claimed_noise import least_noise_multiplier, least_noise_std
from hdpfl_tools.simulation.scenarios.budgets import draw_epsilons
from strategies import make_kernel, make_strategy
from tests.hdpfl_flower.engines.oracle import make_engine
from tests.hdpfl_flower.engines.updates import plan_of, records_of, start_of

FACTOR = 0.6
"""The bound is at least this share of an honest site's noise at δ = 1e-5, N up to 3,000."""
EPSILON, BATCH, RECORDS = 1.0, 12, 60
SMALL = {"rounds": 4, "learning-rate": 0.1, "clip-norm": 0.5}


def calibrate(
    schedule: Sequence[Steps], epsilon: float, delta: float, beside: Sequence[ExtraRelease] = ()
) -> float:
    """The least noise within 2 %, on a grid a hundred times as coarse as a site's."""
    interval = 100 * interval_for(epsilon, sum(steps.count for steps in schedule))
    low, high = 0.5, 20.0
    while high > 1.02 * low:
        middle = math.sqrt(low * high)
        fits = epsilon_of(event_of(schedule, middle, beside), delta, interval) <= epsilon
        low, high = (low, middle) if fits else (middle, high)
    return high


@pytest.fixture(autouse=True)
def _quick_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdpfl_flower.privacy.plan.calibrate", calibrate)


def plan(terms: RunTerms, delta: float = 0.999 / RECORDS) -> Plan:
    """The plan of an honest site with the longest δ that a profile may have."""
    budget = {"epsilon": EPSILON, "delta": delta}
    training = {"batch-size": BATCH, "declared-records": RECORDS}
    return make_plan(Profile.parse({"budget": budget, "run": budget, "training": training}), terms)


def bound(terms: RunTerms, server_round: int = 1, epsilon: float = EPSILON) -> float:
    return least_noise_std(terms, server_round, epsilon, BATCH, RECORDS)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"participations": 2},
        {"local-steps": 3},
        {"local-epochs": 2},
        {"epsilon-cap": 0.5},
        {"after": {"tuning": {"steps": 5}, "prior": {"share": 0.1}}},
        {"after": {"scores": {"share": 0.1}}},
        {"second": {"kind": "private", "pull": 0.1}},
        {"work": {"kind": "plain", "first-batch": "full"}},
        {"noise": "client"},
    ],
    ids=lambda keys: "-".join(keys) or "plain",
)
def test_an_honest_site_is_never_quieter_than_its_bound(keys: dict[str, Any]) -> None:
    """Whatever the terms ask of it beside, and with the longest δ that a profile allows."""
    terms = RunTerms.parse({**SMALL, **keys})
    honest = plan(terms)
    for server_round in (1, 2):
        if terms.noise == "client":
            true = honest.round(server_round, terms.clip_norm).noise_std
        else:
            true = honest.update_noise_std(server_round, terms.clip_norm, terms.learning_rate)
        found = bound(terms, server_round)
        assert found <= true
        assert found > FACTOR * true


def test_one_gaussian_is_bounded_just_below_the_least_there_is() -> None:
    """Balle and Wang (ICML 2018), theorem 8: δ = Φ(1/2z − εz) − e^ε·Φ(−1/2z − εz)."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    for epsilon, delta in ((0.1, 1e-3), (1.0, 1e-5), (4.0, 1e-2), (20.0, 1e-4)):

        def excess(z: float, e: float = epsilon, d: float = delta) -> float:
            return float(ndtr(0.5 / z - e * z) - math.exp(e) * ndtr(-0.5 / z - e * z)) - d

        exact = brentq(excess, 0.05, 100)
        assert 0.99 * exact < least_noise_multiplier(1.0, 1, epsilon, delta) <= exact
        # Of T steps, all records in each, the sum is all there is: z grows with √T.
        assert 9.9 * exact < least_noise_multiplier(1.0, 100, epsilon, delta) <= 10 * exact


@pytest.mark.parametrize("number", range(1, 10))
def test_the_claims_of_dist_1_to_9_bound_the_noise(number: int) -> None:
    """An accountant of its own: at the bound the run costs more than ε, at δ = 1/N."""
    batch = (16, 32, 64, 128)[number % 4]
    records, rounds = 1_000, 6
    epsilon = float(np.median(draw_epsilons(f"dist{number}", 20, seed=3)))
    steps = rounds * math.ceil(records / batch)

    def cost(multiplier: float, delta: float) -> float:
        event = event_of([Steps(batch / records, steps)], multiplier)
        return epsilon_of(event, delta, 10 * interval_for(epsilon, steps))

    found = least_noise_multiplier(batch / records, steps, epsilon, 1 / records)
    assert cost(found, 1 / records) > epsilon
    assert cost(found / FACTOR, 1e-5) < epsilon


def test_what_a_pull_leaves_of_the_noise() -> None:
    """Steps of real local training without a record in a batch: all that moves is noise."""
    terms = RunTerms.parse({**SMALL, "work": {"kind": "plain", "pull": 3}, "local-steps": 6})
    task = Task.classification((400,), 10)
    start = start_of("logreg", task)
    noise_std = least_noise_multiplier(0.2, 24, EPSILON, 1 / RECORDS) * terms.clip_norm
    update = dpsgd.train(
        make_engine("linear", "logreg", task), start, records_of(task, 3),
        plan_of(q=1e-9, steps=6, noise_std=noise_std, divisor=float(BATCH)),
        terms.learning_rate, ReleaseStreams.simulated(5, "site", 1, "update"), 100,
        pull=(terms.work.pull_factor, start),
    )  # fmt: skip
    # The standard deviation of d normals deviates by 1/√2d: 5 of those are one in 3 million.
    doubt = 5 / math.sqrt(2 * len(update))
    assert float(update.std()) == pytest.approx(bound(terms), rel=doubt)
    with pytest.raises(AssertionError):
        without = bound(terms.updated(work={"kind": "plain"}))
        assert float(update.std()) == pytest.approx(without, rel=doubt)


def test_given_noise_is_its_own_bound_and_needs_no_epsilon() -> None:
    terms = RunTerms.parse({**SMALL, "noise-multiplier": 4.0})
    of_a_step = 0.1 * 4.0 * 0.5 / BATCH
    assert bound(terms, epsilon=math.nan) == pytest.approx(math.sqrt(5) * of_a_step, rel=1e-12)
    # All steps but one may train what stays at the site.
    alternate = terms.updated(work={"kind": "alternate"})
    assert bound(alternate) == pytest.approx(of_a_step, rel=1e-12)
    of_client = terms.updated(noise="client")
    assert bound(of_client) == pytest.approx(2 * 4.0 * 0.5, rel=1e-12)


def quiet_liar(name: str, epsilon: float) -> tuple[float, dict[str, Any]]:
    """Weight of a site of ten that claims ``epsilon`` and sends next to no noise; the gauges."""
    terms = {"strategy": name, "rounds": 4, "learning-rate": 0.1}
    strategy = make_strategy(RunConfig.parse(terms))
    honest = bound(strategy.terms, epsilon=1.0)
    generator = np.random.default_rng(7)
    signal, noise = generator.standard_normal(2_000), generator.standard_normal((10, 2_000))
    rows = honest * (signal + noise)
    rows[0] = honest * (signal + 0.05 * noise[0])
    facts = {"epsilon": np.full(10, 1.0), "batch-size": np.full(10, 12.0)}
    facts["declared-records"] = np.full(10, 60.0)
    facts["epsilon"][0] = epsilon
    updates = RoundUpdates(1, tuple("abcdefghij"), rows.astype(np.float32), facts)
    outcome = strategy.combine(strategy.initial_state(), updates, RandomStream(bytes(32)))[1]
    return float(outcome.weights[0]), dict(outcome.gauges)


def test_a_quiet_site_that_claims_a_strict_epsilon_gets_no_more_than_its_claim() -> None:
    lying, gauges = quiet_liar("mmse", 1.0)
    open_, _ = quiet_liar("mmse", math.inf)
    assert gauges["noise_raised"][0] == 1
    assert gauges["noise_bound"].shape == (10,)
    # The estimate stays in the journal as the updates have it.
    assert gauges["noise_std"][0] < 0.2 * gauges["noise_bound"][0]
    assert lying < 0.25
    # Whoever claims no privacy has the weight of its quiet: the bound is for claims alone.
    assert open_ > 1.4 * lying


def test_what_robust_hdp_asks_for_and_gets_stays_as_published() -> None:
    kernel = make_kernel(RunConfig.parse({"strategy": "robust-hdp"}))
    assert not kernel.needs | kernel.welcomes
    assert quiet_liar("robust-hdp", 1.0)[0] > 0.5
