"""The audit over the real code: a healthy build passes it, and no mutant does.

The checks rest on the sure bound and on its upper counterpart: one audit in a million of right code
is rejected by each. The noise is fresh in every run, as at a site.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.engines import dpsgd
from hdpfl_flower.engines.unit_engines import UnitEngine
from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy import plan as mechanism
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.audit import gaussian_epsilon
from hdpfl_flower.privacy.noise import RandomStream, add_noise
from hdpfl_flower.privacy.plan import Plan, RoundPlan, make_plan
from hdpfl_tools.site.audit import ENGINES, SURE, WIDTH, Finding, attack, claimed, default_training

CANARIES = 50_000
EPSILONS = (1.0, 4.0, 8.0)


def found(plan: Plan, engine: str = "linear", canaries: int = CANARIES) -> Finding:
    return attack(plan, engine, canaries, default_training())


def check_healthy(finding: Finding) -> None:
    """The sure bound lies between half the claim and the claim, and the claim is not too modest.

    Calibration takes at most 0.3 % too much noise, so 1.003 times the upper bound on μ pays for the
    claim.
    """
    claim, delta = finding.plan.epsilon, finding.plan.delta
    assert not finding.violates
    assert claim / 2 < finding.bound(SURE) <= claim
    assert gaussian_epsilon(1.003 * finding.evidence.mu_bound(1 - SURE), delta) >= claim


def noise_times(scale: float) -> Callable[..., torch.Tensor]:
    return lambda total, std, stream: add_noise(total, scale * std, stream)


# The healthy build.


@pytest.mark.parametrize(
    ("engine", "epsilon"),
    [
        pytest.param(
            engine, epsilon, marks=[] if engine == "linear" or epsilon == 4 else pytest.mark.slow
        )
        for engine in ENGINES
        for epsilon in EPSILONS
    ],
)
def test_a_healthy_build_is_consistent_with_its_claim(engine: str, epsilon: float) -> None:
    finding = found(claimed(epsilon), engine)
    assert finding.canaries == CANARIES
    check_healthy(finding)


def of_pairs() -> Finding:
    """Return the findings where each canary is two records of a unit."""
    return attack(claimed(4.0), "vmap", WIDTH, default_training(), most=2)


def test_units_are_clipped_whole_not_record_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = of_pairs()
    assert not finding.violates
    assert finding.bound(SURE) > 2  # half the claim
    add = UnitEngine._add

    def one_by_one(self: UnitEngine, total: Any, x: Any, y: Any, *rest: Any) -> None:
        for place in range(2):
            alone = y.clone()
            alone[:, :, 1] = torch.arange(2) == place
            add(self, total, x, alone, *rest)

    monkeypatch.setattr(UnitEngine, "_add", one_by_one)
    assert of_pairs().violates


@pytest.mark.parametrize("scale", [2 / 3, 1.5])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_other_noise_refused(monkeypatch: pytest.MonkeyPatch, epsilon: float, scale: float) -> None:
    monkeypatch.setattr(dpsgd, "add_noise", noise_times(scale))
    finding = found(claimed(epsilon))
    assert finding.violates == (scale < 1), "too much noise is no violation"
    with pytest.raises(AssertionError):
        check_healthy(finding)


def test_several_rounds_at_q_1_are_healthy_too() -> None:
    """Full-batch steps compose to one Gaussian, so the claim can still be asserted."""
    check_healthy(found(several_rounds(), canaries=CANARIES))


def several_rounds() -> Plan:
    budget = {"epsilon": 4.0, "delta": 1e-5}
    training = {"batch-size": WIDTH, "declared-records": WIDTH}
    profile = Profile.parse({"budget": budget, "run": budget, "training": training})
    return make_plan(profile, RunTerms(rounds=2).updated(local_steps=2))


# Mutants: the code with a fault put in.


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_half_the_noise_is_caught(monkeypatch: pytest.MonkeyPatch, epsilon: float) -> None:
    monkeypatch.setattr(dpsgd, "add_noise", noise_times(0.5))
    finding = found(claimed(epsilon))
    assert finding.bound(SURE) > epsilon
    assert finding.violates


def unclipped(
    squared_norm: torch.Tensor, count: int, clip_norm: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones_like(squared_norm, dtype=torch.bool), torch.ones_like(squared_norm)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_clipping_caught(monkeypatch: pytest.MonkeyPatch, engine: str, epsilon: float) -> None:
    monkeypatch.setattr("hdpfl_flower.engines.engines.clip_factor", unclipped)
    monkeypatch.setattr("hdpfl_flower.engines.ghost_clipping.clip_factor", unclipped)
    assert found(claimed(epsilon), engine, 5_000).bound(SURE) > epsilon


def one_number_for_all(total: torch.Tensor, std: float, stream: RandomStream) -> torch.Tensor:
    return total + std * float(stream.normal(1))


def no_noise(total: torch.Tensor, std: float, stream: RandomStream) -> torch.Tensor:
    return total.clone()


def noise_without_c(plan: Plan, server_round: int, clip_norm: float) -> RoundPlan:
    steps = plan.steps[server_round - 1]
    return RoundPlan(steps, clip_norm, plan.noise_multiplier, plan.divisor)


def twice(stream: RandomStream, count: int, probability: float) -> np.ndarray:
    return np.repeat(np.arange(count), 2)


def clipped_to_2c(
    squared_norm: torch.Tensor, count: int, clip_norm: float
) -> tuple[torch.Tensor, torch.Tensor]:
    finite = torch.isfinite(squared_norm)
    return finite, (2 * clip_norm * squared_norm.rsqrt()).clamp(max=1.0)


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "one number noises all coordinates": (dpsgd, "add_noise", one_number_for_all),
    "no noise": (dpsgd, "add_noise", no_noise),
    "noise that forgets C": (Plan, "round", noise_without_c),
    "a record taken twice": (RandomStream, "bernoulli", twice),
    "clipped to 2C": ("hdpfl_flower.engines.engines.clip_factor", "", clipped_to_2c),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    place, name, wrong = MUTANTS[mutant]
    if name:
        monkeypatch.setattr(place, name, wrong)
    else:
        monkeypatch.setattr(place, wrong)
    assert found(claimed(4.0)).violates


def test_a_plan_that_pays_for_one_step_and_takes_four_is_caught() -> None:
    cheap = dataclasses.replace(claimed(4.0), steps=(Steps(1.0, 2),) * 2)
    assert found(cheap).violates


def test_a_calibration_for_another_delta_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        mechanism, "calibrate", lambda schedule, epsilon, *_: _calibrate(schedule, epsilon, 1e-2)
    )
    assert found(claimed(4.0)).violates


_calibrate = mechanism.calibrate


def test_noise_in_the_first_round_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Plan.round

    def first_alone(plan: Plan, server_round: int, clip_norm: float) -> RoundPlan:
        made = honest(plan, server_round, clip_norm)
        return made if server_round == 1 else dataclasses.replace(made, noise_std=0.0)

    plan = several_rounds()
    monkeypatch.setattr(Plan, "round", first_alone)
    assert found(plan).violates


def test_an_update_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpsgd, "add_noise", lambda total, std, stream: total * math.nan)
    with pytest.raises(AccountingError, match="not finite"):
        found(claimed(1.0), canaries=1_000)


# Sampled batches: an estimate, of which nothing is asserted but that it is a number.


def test_at_q_below_1_there_is_an_estimate() -> None:
    budget = {"epsilon": 2.0, "delta": 1e-5}
    training = {"batch-size": 32, "declared-records": 260}
    profile = Profile.parse({"budget": budget, "run": budget, "training": training})
    finding = found(make_plan(profile, RunTerms(rounds=3)), canaries=1_000)
    assert math.isfinite(finding.estimate)
