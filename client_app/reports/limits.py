"""Limits of a site's promise, in plain words and without gaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from client_app.reports.ledger_view import exact_answers
from client_app.reports.units import RECORD

_DISCLOSED = {
    "batch-size": "the expected batch size, sent to the server when the site joins",
    "declared-records": "the declared number of records, sent to the server when the site joins",
    "epsilon": "the ε of a run, sent to the server when the site joins",
    "noise-std": "the noise of a coordinate of its updates, sent to the server when it joins; "
    "it follows from ε, δ, batch size, records and the terms, and can be estimated without it",
    "metrics": "accuracy, loss and errors on records of this site, without any noise",
    "personal-metrics": "the same of the model that this site keeps for itself",
}


def not_covered(facts: dict[str, Any]) -> Iterator[str]:
    """Yield leaks and inferences outside of (ε, δ)."""
    if facts["simulation"]:
        yield "Everything: a simulation's noise can be computed again from the seed."
    if facts["no-privacy"]:
        yield "Runs with an infinite ε: this site opted out of noise, and they give no privacy."
    if facts["disclosed"] is None:
        yield (
            "What only the profile holds, and it is not at hand: what it discloses, whether the "
            "site is a simulation, whether an id makes a person the unit, and when replies leave."
        )
    for name in facts["disclosed"] or ():
        yield f"'{name}', which the profile discloses: {_DISCLOSED[name]}."
    if facts["clipped-updates-released"]:
        yield (
            f"Clipped updates without noise: {facts['clipped-updates-released']} were released to "
            "a server that this site trusts ('trust-server'). Against that server there is no "
            "privacy. Whoever sees the models alone is promised client-level differential privacy "
            "(this site there or not) by that server, at the ε that this site disclosed (nothing "
            "where it is infinite); its noise and its account cannot be checked here."
        )
    yield (
        f"Metrics without noise: {facts['metrics-released'] or 'none'} were released so far "
        f"({exact_answers(**facts['exact-answers'])}). Each may show more than one record."
    )
    if facts["tuned-runs"]:
        yield (
            "Models that were tuned here without noise ('hdpfl-site model tune'): no ε covers "
            "them, whoever they are shown to."
        )
    if RECORD in (facts["promise"]["unit"], *(each["unit"] for each in facts["sums"])):
        yield (
            "A person with several records: the promise holds for each record, not for all of "
            "them together ('data.id' names a column that makes the person the unit)."
        )
    yield (
        "The declared number of records N: it counts as public (batches, steps and noise are "
        "planned with it, never with the true number)."
    )
    yield _time_of_replies(facts["reply-after"])
    yield (
        "What was done with the same records outside of this ledger: tuning of hyper-parameters, "
        "other training, other statistics, a second ledger."
    )
    yield (
        "What the site's own people hand on: numbers or predictions that "
        "'hdpfl-site model' computes here from this site's records."
    )
    yield (
        "Other code than this package: a node runs the app that the server ships, unless the site "
        "pins it, and whoever ships the code owns ledger and noise."
    )
    yield (
        "Whoever can read or watch this machine: its disk, its memory, the times of its work. "
        "That the noise is computed with 64-bit numbers, rounded to a public grid, is a "
        "mitigation of attacks on low-order bits, not a proof."
    )


def _time_of_replies(reply_after: float | None) -> str:
    """Return the disclosure by reply times under ``reply-after``; None: unknown."""
    if reply_after:
        return (
            "The time of a reply whose work took longer than the constant 'reply-after': it leaves "
            "at the next multiple, which shows that it was late. This site's log says so each time."
        )
    known = "no constant time of reply ('reply-after') is set"
    asked = "unless the profile sets a constant time of reply ('reply-after')"
    return (
        "The time a reply takes: it grows with the records that a batch happens to hold, "
        f"{asked if reply_after is None else f'and {known}'}."
    )
