"""Work and cost of a client-level run, for ``hdpfl-site plan``."""

from __future__ import annotations

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_tools.site.reports.rendering import lines


def client_level_lines(site: Profile, run: RunTerms) -> list[str]:
    """Return the work and cost of a run with the client as unit, in words.

    Raises:
        AccountingError: no noise can pay for the terms.
    """
    plan = None if not run.source.site_plans else make_plan(site, run)
    return lines(
        "client_level",
        plan=plan,
        delta=run.delta,
        epsilon=plan.epsilon if plan else site.run.epsilon,
        disclosed="epsilon" in site.disclose,
    )
