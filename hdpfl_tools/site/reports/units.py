"""Protected units of a ledger's runs, and sums for each unit.

Units are never added up under one name. A run that protects all records of the site against any
change of them protects one record too, so it counts beside the runs of a smaller unit; nothing else
follows from a run for another unit.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError, HDPFLError
from hdpfl_flower.ledger.account import Account, ChargedPlan, sum_rounded_up
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.privacy.policy import id_of
from hdpfl_flower.privacy.unit import OF_FOLDER, OF_ID

RECORD = "one record"
WHOLE_SITE = "this site with all of its records"
BY_SERVER = "none at this site, which trusts the server"
SEVERAL = "units of different size, each with its own sum"

MORE_OR_LESS = "adding or removing one such unit"
ANY_CHANGE = "any change of one or of all of these records"
NOT_HERE = "that this site takes part or not, as the server counts it"

_RELATIONS = {WHOLE_SITE: ANY_CHANGE, BY_SERVER: NOT_HERE}


class NoisePromise(Protocol):
    """Promise of a run whose source of noise has one of its own."""

    def sentence(self) -> str:
        """Return it in one sentence, each ε rounded up."""

    def facts(self) -> dict[str, Any]:
        """Return it for JSON: ``sentence``, ``scope``, ``left`` and its numbers."""


class NoiseWords(Protocol):
    """Site's words on a source of noise, one of its modules.

    Attributes:
        REMEDY: for members whose keys the site lacks.
    """

    REMEDY: str

    def promise_of(self, plan: Plan, terms: RunTerms) -> NoisePromise | None:
        """Return the promise of a site's plan, if it has one beside (ε, δ)."""

    def noise_of_mean(self, std: float, terms: RunTerms) -> float:
        """Return the noise of the mean of sites like this one."""

    def known_members(self, site: Profile, terms: RunTerms) -> dict[str, str]:
        """Return each member with the name of its key at the site, or empty."""


def half_of(terms: RunTerms) -> NoiseWords | None:
    """Return the words on the run's source of noise, if it has some of its own."""
    return cast("NoiseWords | None", terms.source.half("hdpfl_tools.site.reports.{}"))


def promise_of(plan: Plan, terms: RunTerms) -> NoisePromise | None:
    """Return the promise beside (ε, δ) of a plan, if the source of noise has one."""
    half = half_of(terms)
    return half.promise_of(plan, terms) if half else None


def promise_of_charged(frozen: ChargedPlan) -> dict[str, Any] | None:
    """Return the facts of :func:`promise_of` of a charged run; None for a damaged plan, too."""
    try:
        promise = promise_of(frozen.read(), frozen.read_terms())
    except (HDPFLError, TypeError):
        return None
    return promise.facts() if promise else None


def of_id(column: str) -> str:
    """Return the unit where a column names it."""
    return OF_ID.format(column)


def relation_of(unit: str) -> str:
    """Return which two data sets the promise for ``unit`` compares."""
    return _RELATIONS.get(unit, MORE_OR_LESS)


def unit_of_profile(site: Profile | None) -> str:
    """Return the unit of a site's next run, by its profile: the id's, or one record."""
    if not site or not site.data or not site.data.id:
        return RECORD
    return of_id(site.data.column) if site.data.column else OF_FOLDER


def unit_of_run(frozen: ChargedPlan | None, clipped: int) -> str:
    """Return the unit that a run protects, from the ledger.

    Args:
        frozen: its plan; None for a run that was not charged.
        clipped: updates that left without noise in it.
    """
    if frozen is None:
        return BY_SERVER if clipped else RECORD
    return _unit_of(terms_of(frozen.terms))


def unit_of_terms(terms: RunTerms) -> str:
    """Return the unit of a run that a site will charge."""
    return _unit_of(json.loads(terms.to_json()))


def _unit_of(terms: Mapping[str, Any]) -> str:
    if terms.get("noise") == "client":
        return WHOLE_SITE
    with contextlib.suppress(DataError):
        if column := id_of(str(terms.get("schema", ""))):
            return of_id(column)
    return OF_FOLDER if terms.get("task.id") == "folder" else RECORD


def terms_of(text: str) -> dict[str, Any]:
    """Return the terms in a ledger's text; empty where it holds none."""
    with contextlib.suppress(ValueError):
        terms = json.loads(text)
        return terms if isinstance(terms, dict) else {}
    return {}


def sums_of(account: Account) -> list[dict[str, Any]]:
    """Return :func:`sums` over a ledger's charged runs."""
    runs = [
        {
            "run-id": run_id,
            "unit": unit_of_run(frozen, 0),
            "epsilon": frozen.epsilon,
            "delta": frozen.delta,
        }
        for run_id, frozen in account.plans.items()
    ]
    return sums(runs)


def sums(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row a unit: the sum of its charged runs alone, rounded up.

    ``with-all-records`` also counts the runs that protect all records of the site; it is None
    without these runs, and for all but smaller units.
    """
    charged: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["epsilon"] is not None:
            charged.setdefault(run["unit"], []).append(run)
    whole = charged.get(WHOLE_SITE, [])
    return [
        {
            "unit": unit,
            "relation": relation_of(unit),
            "runs": [run["run-id"] for run in runs_of_unit],
            **_amount(runs_of_unit),
            "with-all-records": _amount([*runs_of_unit, *whole])
            # A run that protects all records protects one of them; the reverse does not follow.
            if whole and unit not in _RELATIONS
            else None,
        }
        for unit, runs_of_unit in charged.items()
    ]


def promised_by_server(
    runs: Sequence[Mapping[str, Any]], declared: Mapping[str, float]
) -> dict[str, Any]:
    """Return a trusted server's promising runs, and their declared ε.

    Args:
        runs: as for :func:`sums`.
        declared: run → the ε that this site disclosed to it. Runs of an infinite ε promise
            nothing, and are left out.
    """
    promising = [
        run["run-id"]
        for run in runs
        if run["unit"] == BY_SERVER and declared.get(run["run-id"]) != math.inf
    ]
    epsilon = sum_rounded_up(declared[run] for run in promising) if promising else None
    return {"runs": promising, "epsilon": epsilon}


def unit_of_all(rows: Sequence[Mapping[str, Any]], site: Profile | None) -> str:
    """Return the unit of all runs, or :data:`SEVERAL`."""
    units = [row["unit"] for row in rows] or [unit_of_profile(site)]
    return str(units[0]) if len(units) == 1 else SEVERAL


def _amount(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {
        "epsilon": sum_rounded_up(run["epsilon"] for run in runs),
        "delta": sum_rounded_up(run["delta"] for run in runs),
    }
