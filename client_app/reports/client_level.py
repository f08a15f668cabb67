"""``hdpfl-site plan`` for runs whose unit is the client, in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from client_app.reports.formatting import ceil_digits
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.plan import make_plan

NOBODY = "ε is infinite: no noise is added for this site, and this run has no privacy"


def client_level_lines(site: Profile, run: RunTerms) -> Iterator[str]:
    """Yield the work and cost of a run with the client as unit.

    Raises:
        AccountingError: no noise can pay for the terms.
    """
    if run.noise == "server":
        yield "unit: this site with all of its records, there or not"
        yield (
            "noise = server: clipped updates leave this site WITHOUT noise, for 'trust-server' is "
            "set. Nothing is charged here: the server adds the noise and keeps the account, at the "
            f"ε that this site discloses and δ = {ceil_digits(run.delta)}"
        )
        if "epsilon" not in site.disclose:
            yield "the site will be left out: 'disclose' in its profile must list 'epsilon'"
        if math.isinf(site.run.epsilon):
            yield NOBODY
        return
    yield "unit: this site with all of its records, against any change of them, of one or of all"
    made = make_plan(site, run)
    yield (
        f"each of {made.rounds} rounds: one update, clipped to the clip norm C, with noise of "
        f"z·2C on every number, z = {ceil_digits(made.noise_multiplier)}, for a change of the "
        "records moves the update by up to 2C; no sampling is claimed"
    )
    price = f"ε = {ceil_digits(made.epsilon)}, δ = {ceil_digits(made.delta)}"
    yield f"charged when the run starts: {price}"
    if math.isinf(made.epsilon):
        yield NOBODY
