"""The report's numbers: from the ledger alone, and as another library finds them."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from pathlib import Path

import pytest

from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import Reservation
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_tools.site.ledger_checks.recompute import _ORDERS

AGREEMENT = 0.02
"""How far Opacus' PRV accountant may be from the report; the bound that the project has set."""
PRV_ERROR = 0.005
DELTA = 1e-5
SCHEDULES = {
    "a few steps": ((Steps(0.25, 2),) * 3, 1.5),
    "many small batches": ((Steps(0.04, 90),) * 25, 1.5),
    "little noise": ((Steps(0.01, 50),) * 10, 0.8),
    "full batches": ((Steps(1.0, 1),) * 4, 5.0),
    "rounds of two kinds": ((Steps(0.1, 20), Steps(0.1, 20), Steps(0.3, 8)), 1.2),
}


def charged(path: Path, plans: dict[str, Plan]) -> Path:
    """Return a ledger that the site's own code wrote, with a release of each plan."""
    ledger = Ledger.create(path, 1000.0, 1e-2)
    for run_id, plan in plans.items():
        frozen = ChargedPlan(plan.to_json(), "{}", plan.epsilon, plan.delta)
        taken = ledger.reserve(Request(run_id, 1, "update", "digest"), frozen)
        assert isinstance(taken, Reservation)
        with taken:
            taken.seal(run_id.encode())
    ledger.close()
    return path


def plan_of(schedule: tuple[Steps, ...], noise_multiplier: float, epsilon: float = 20.0) -> Plan:
    return Plan(epsilon, DELTA, noise_multiplier, 10.0, schedule, 1e-4, 1e4)


def facts_of(site, path: Path) -> dict:
    result = site.bare("report", "--ledger", path, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def opacus(accountant: str, schedule: tuple[Steps, ...], noise_multiplier: float) -> float:
    """Return ε as Opacus computes it, from the schedule itself and nothing of the package."""
    from opacus.accountants import PRVAccountant, RDPAccountant

    counts: Counter[float] = Counter()  # one entry a probability: PRV composes entries slowly
    for steps in schedule:
        counts[steps.sampling_prob] += steps.count
    history = [(noise_multiplier, probability, count) for probability, count in counts.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if accountant == "prv":
            prv = PRVAccountant()
            prv.history = history
            return float(prv.get_epsilon(DELTA, eps_error=PRV_ERROR))
        rdp = RDPAccountant()
        rdp.history = history
        return float(rdp.get_epsilon(DELTA, alphas=list(_ORDERS)))


def check_agreement(site, path: Path, *, scale: float = 1.0) -> None:
    """Hold the report of a ledger against Opacus, which is told ``scale`` times the noise."""
    runs = {run["run-id"]: run for run in facts_of(site, path)["runs"]}
    for name, (schedule, noise_multiplier) in SCHEDULES.items():
        epsilon = opacus("prv", schedule, scale * noise_multiplier)
        assert abs(runs[name]["plan"]["epsilon-pld"] - epsilon) <= AGREEMENT, name


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    plans = {name: plan_of(*schedule) for name, schedule in SCHEDULES.items()}
    return charged(tmp_path / "ledger.sqlite", plans)


def test_the_report_agrees_with_opacus_prv(site, recorded: Path) -> None:
    check_agreement(site, recorded)


@pytest.mark.parametrize("scale", [2 / 3, 0.98, 1.02, 1.5])
def test_other_noise_refused(site, tmp_path: Path, scale: float) -> None:
    """Also 2 % of noise is seen, in the schedule that shows it most."""
    name = "many small batches"
    schedule, noise_multiplier = SCHEDULES[name]
    path = charged(tmp_path / "one.sqlite", {name: plan_of(schedule, noise_multiplier)})
    (run,) = facts_of(site, path)["runs"]
    epsilon = opacus("prv", schedule, scale * noise_multiplier)
    assert abs(run["plan"]["epsilon-pld"] - epsilon) > AGREEMENT


def test_rdp_is_opacus_rdp_and_never_below_pld(site, recorded: Path) -> None:
    for run in facts_of(site, recorded)["runs"]:
        plan = run["plan"]
        epsilon = opacus("rdp", *SCHEDULES[run["run-id"]])
        # Whole orders: the two libraries agree to 1e-9, times an ε of at most 20.
        assert plan["epsilon-rdp"] == pytest.approx(epsilon, rel=1e-8)
        assert plan["epsilon-pld"] <= plan["epsilon-rdp"]
        assert plan["epsilon-pld"] <= run["epsilon"]


def test_the_event_is_spelled_out(site, recorded: Path) -> None:
    runs = {run["run-id"]: run for run in facts_of(site, recorded)["runs"]}
    run = runs["rounds of two kinds"]
    assert run["plan"]["schedule"] == [
        {"rounds": 2, "steps": 20, "sampling-prob": 0.1, "noise-factor": 1.0},
        {"rounds": 1, "steps": 8, "sampling-prob": 0.3, "noise-factor": 1.0},
    ]
    assert (run["rounds"], run["delta"], run["epsilon"]) == (3, DELTA, 20.0)
    assert run["plan"]["noise-multiplier"] == 1.2
    text = site.whole_report("--ledger", recorded)
    assert "2 × 20" in text
    assert "1 × 8" in text


def test_no_noise_has_no_finite_epsilon(site, tmp_path: Path) -> None:
    plan = plan_of(SCHEDULES["full batches"][0], 0.0, epsilon=math.inf)
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger.create(path, math.inf, 1e-2)
    frozen = ChargedPlan(plan.to_json(), "{}", plan.epsilon, plan.delta)
    taken = ledger.reserve(Request("run", 1, "update", "d"), frozen)
    assert isinstance(taken, Reservation)
    with taken:
        taken.seal(b"raw")
    ledger.close()
    report = facts_of(site, path)
    assert report["runs"][0]["plan"]["epsilon-pld"] == "inf"
    assert report["runs"][0]["plan"]["epsilon-rdp"] == "inf"
    assert report["no-privacy"]


def test_numbers_come_from_the_ledger_and_not_from_the_profile(opened) -> None:
    """Charge a run, change everything in the profile that ε and noise depend on, and report."""
    before = make_plan(opened.profile, opened.terms)
    opened.charge("run-1", rounds=1)
    opened.write_profile(
        ("epsilon = 1.2345678\ndelta = 1e-5", "epsilon = 0.5\ndelta = 1e-6"),
        ("batch-size = 10", "batch-size = 20"),
    )
    result = opened("report", "--json")
    assert result.code == 0, result.err
    (run,) = json.loads(result.out)["runs"]
    assert (run["epsilon"], run["delta"]) == (before.epsilon, before.delta)
    assert run["plan"]["noise-multiplier"] == before.noise_multiplier
    assert run["plan"]["schedule"][0]["sampling-prob"] == 0.25
    # Calibrated to 0.3 % of noise at most, so ε lies no further than 1 % below the target.
    assert 0.99 * before.epsilon < run["plan"]["epsilon-pld"] <= before.epsilon
