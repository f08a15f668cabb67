"""A profile and terms to make plans from, and what such a plan costs."""

from __future__ import annotations

import copy
from typing import Any

from hdpfl_flower.ledger.account import FrozenPlan
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.ledger.recompute import recount

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


def cost_of(plan: Plan) -> float:
    """Return ε as a report computes it from the ledger."""
    found = recount(FrozenPlan(plan.to_json(), "{}", plan.epsilon, plan.delta))
    assert found is not None
    return found.pld
