"""A profile and terms to make plans from, and what such a plan costs."""

from __future__ import annotations

import copy
from typing import Any

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_tools.simulation.sites import nominal_noise
from hdpfl_tools.site.ledger_checks.recompute import recompute_epsilon

SECRET = 1.2345678
PROFILE: dict[str, Any] = {
    "budget": {"epsilon": 9.0, "delta": 1e-4},
    "run": {"epsilon": SECRET, "delta": 1e-5},
    "training": {"batch-size": 50, "declared-records": 200},
    "policy": {"max-rounds": 30, "min-clip-norm": 0.1, "max-clip-norm": 10.0},
}


def profile(**sections: dict[str, Any]) -> Profile:
    """Return the profile above with other values in its sections."""
    data = copy.deepcopy(PROFILE)
    for section, values in sections.items():
        data.setdefault(section, {}).update(values)
    return Profile.parse(data)


def terms(**changes: Any) -> RunTerms:
    return RunTerms.parse({"rounds": 3, **{k.replace("_", "-"): v for k, v in changes.items()}})


def planned(site: Profile, asked: RunTerms) -> Plan:
    """Return the plan of a simulated site, by a paper's formula where the terms name one."""
    return make_plan(site, asked, nominal_noise=nominal_noise(site, asked))


def cost_of(plan: Plan) -> float:
    """Return ε as a report computes it from the ledger."""
    found = recompute_epsilon(ChargedPlan(plan.to_json(), "{}", plan.epsilon, plan.delta))
    assert found is not None
    return found.pld
