"""Constants of a site that its profile discloses to the server."""

from __future__ import annotations

import contextlib

from client_app.site.site import Site
from hdpfl_flower.errors import Declined


def disclosed_facts(site: Site) -> dict[str, int | float]:
    """Return the disclosed facts by name, without records or charges."""
    disclose, profile, terms = site.profile.disclose, site.profile, site.terms
    facts: dict[str, int | float] = {}
    if site.partition is not None:
        facts["partition"] = site.partition
    if "batch-size" in disclose:
        facts["batch-size"] = profile.training.batch_size
    if "declared-records" in disclose:
        facts["declared-records"] = profile.training.declared_records
    if "epsilon" in disclose:
        facts["epsilon"] = profile.run.epsilon
    noise = "noise-std" in disclose and site.tells("noise-std")
    if noise and terms.source.own_noise:
        with contextlib.suppress(Declined):  # no plan, no noise: it declines to train, too
            plan = site.paid_plan.plan
            facts["noise-std"] = plan.update_noise_std(1, terms.clip_norm, terms.learning_rate)
    return facts
