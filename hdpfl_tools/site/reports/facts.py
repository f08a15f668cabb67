"""Facts of a site's report by name, from ledger and profile.

Charges and their recomputed costs come from the ledger's entries, never from the profile: a profile
can change after the charge.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.ledger.account import APPROVED, REFUSED, ChargedPlan
from hdpfl_flower.privacy.accounting import Gaussians, Steps
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases import RELEASES, sent_once
from hdpfl_flower.releases.base import Cost
from hdpfl_flower.releases.rounds import ClippedUpdate, Metrics, Update
from hdpfl_tools.site.ledger_checks.invariants import Assumption, check_entries
from hdpfl_tools.site.ledger_checks.recompute import read_plan, recompute_epsilon
from hdpfl_tools.site.reports.attack import attack_rates
from hdpfl_tools.site.reports.ledger_view import STATUSES, LedgerView, most_exact, notes_on_cap
from hdpfl_tools.site.reports.lifetime import RENYI, SUM, budget_status, shares_of_runs
from hdpfl_tools.site.reports.rendering import sentences
from hdpfl_tools.site.reports.units import (
    SEVERAL,
    promise_of_charged,
    promised_by_server,
    relation_of,
    sums,
    terms_of,
    unit_of_all,
    unit_of_run,
)

ADVERSARY = (
    "the server and everybody who works with it: they see every byte that this site ever sends, "
    "in all rounds and all runs, and choose what they send back; other sites may help them"
)
PRIVATE_EPSILON = (
    "The site's own ε, δ and batch size are private. This means that the site does not send them, "
    "except those that 'disclose' lists; it does not mean that they are secret. Others can "
    "estimate the noise of an update from the update itself."
)
_PAYLOAD_DIGITS = 12


@dataclass(frozen=True, repr=False)
class Source:
    """Sources of a report.

    Attributes:
        view: the ledger, verified.
        ledger: where it lies.
        profile: the site's profile; None where only the ledger is at hand.
    """

    view: LedgerView
    ledger: Path
    profile: Profile | None


def gather(source: Source) -> dict[str, Any]:
    """Return all facts by name; spent ε and δ are rounded up, left down.

    Without a profile its facts are None. Under a Rényi filter nothing is spent or left in ε: both
    are None, and ``full`` is the share of the promise that is taken.
    """
    view, site = source.view, source.profile
    account, budget = view.account, site.budget if site else None
    now, shares = budget_status(account, budget), shares_of_runs(account, budget)
    runs = [{**_run(view, run_id), "share": shares.get(run_id)} for run_id in view.runs]
    opted_out = _clipped_for_nothing(view)
    rows = sums(runs)
    for row in rows:
        row["attacker-finds"] = attack_rates([account.plans[run_id] for run_id in row["runs"]])
    unit = unit_of_all(rows, site)
    facts: dict[str, Any] = {
        "site": site.name if site else "",
        "made": f"{datetime.now(UTC):%Y-%m-%d}",
        "ledger": _ledger(source),
        "cap": _amount(now.cap),
        "composition": RENYI if now.order else SUM,
        "order": now.order or None,
        "full": now.full,
        "spent": None if now.order else _amount(now.spent),
        "left": None if now.order else _amount(now.left),
        "notes": list(notes_on_cap(account, budget)) if budget else [],
        "runs": runs,
        "updates": {status: view.count(status, kind=Update.release) for status in STATUSES},
        "metrics-released": view.released(Metrics.release),
        "exact-answers": {"given": account.exact_answers, "most": most_exact(site)},
        "exact-releases": [
            {"run-id": run_id, "round": number, "answers": release.exact, "status": release.status}
            for (run_id, number, kind), release in account.releases.items()
            if (release.exact or kind == Metrics.release) and release.status in ("sealed", "sent")
        ],
        "decisions": list(_decisions(view)),
        "withdrawn": _withdrawn_by_day(view),
        "declared-records": site.training.declared_records if site else None,
        "clipped-updates-released": view.released(ClippedUpdate.release),
        "clipped-updates-opted-out": opted_out,
        "released": {kind.release: view.released(kind.release) for kind in sent_once().values()},
        "stays": {
            name: view.count("sealed", kind=name)
            for name, kind in sorted(RELEASES.items())
            if not kind.is_sent
        },
        "closed-runs": sorted(account.closed),
        "tuned-runs": sorted(account.tuned),
        "releases": _releases(view),
        "no-privacy": math.inf in (site.run.epsilon if site else 0.0, now.spent[0])
        or opted_out > 0,
        "simulation": site.simulated if site else None,
        "disclosed": list(site.disclose) if site else None,
        "reply-after": site.reply_after if site else None,
        "sums": rows,
        "trusted-server": promised_by_server(runs, account.declared),
        "promise": {
            "unit": unit,
            "relation": "that of each unit's sum" if unit == SEVERAL else relation_of(unit),
            "adversary": ADVERSARY,
            "private-epsilon": PRIVATE_EPSILON,
            "row": site.data.row_used if site and site.data and site.data.id else None,
            "absent": site.data.absent_columns if site and site.data else [],
        },
        "assumptions": [
            {
                "name": assumption.name,
                "claim": assumption.claim,
                "how": assumption.how,
                "status": assumption.status,
                "failures": list(assumption.failures),
            }
            for assumption in _assumptions(source)
        ],
    }
    facts["not-covered"] = sentences(facts, "limits")
    return facts


def as_json(facts: dict[str, Any]) -> str:
    """Return the facts as JSON; an infinity is ``inf``."""
    return json.dumps(_plain(facts), indent=2, allow_nan=False)


def _ledger(source: Source) -> dict[str, Any]:
    entries, site = source.view.entries, source.profile
    return {
        "path": str(source.ledger),
        "entries": len(entries),
        "digest": source.view.digest(),
        "from": entries[0].at[:10] if entries else "",
        "to": entries[-1].at[:10] if entries else "",
        "anchor": bool(site and site.ledger and site.ledger.anchor),
        "cap-raised-on": [e.at[:10] for e in entries if e.kind == "cap"][1:],
    }


def _clipped_for_nothing(view: LedgerView) -> int:
    """Return the clipped updates sent while the site opted out."""
    opted_out = {
        (entry.body["run_id"], entry.body["round"], entry.body["kind"])
        for entry in view.entries
        if entry.kind == "reserved" and entry.body.get("told") == math.inf
    }
    releases = view.account.releases
    return sum(releases[key].status in ("sealed", "sent") for key in opted_out)


def _decisions(view: LedgerView) -> Iterator[dict[str, str]]:
    """Yield the operator's approvals and refusals, in the ledger's order."""
    for entry in view.entries:
        if entry.kind in (APPROVED, REFUSED):
            terms = terms_of(entry.body.get("terms", ""))
            yield {
                "run-id": entry.body["run_id"],
                "decision": entry.kind,
                "at": entry.at,
                "by": entry.body["by"],
                **{name: str(terms.get(name, "")) for name in ("coordinator", "purpose")},
            }


def _withdrawn_by_day(view: LedgerView) -> dict[str, int]:
    """Return day (UTC) → units that withdrew their consent on it and did not give it again."""
    noted = max(view.account.withdrawn.values(), key=len, default={})
    return dict(sorted(Counter(time[:10] for time in noted.values()).items()))


def _run(view: LedgerView, run_id: str) -> dict[str, Any]:
    frozen = view.account.plans.get(run_id)
    terms = terms_of(frozen.terms if frozen else "")
    plan = _event(frozen) if frozen else None
    return {
        "run-id": run_id,
        "charged": view.charged_days().get(run_id, ""),
        **{name: str(terms.get(name, "")) for name in ("strategy", "coordinator", "purpose")},
        "rounds": sum(rounds["rounds"] for rounds in plan["schedule"]) if plan else 0,
        "epsilon": frozen.epsilon if frozen else None,
        "delta": frozen.delta if frozen else None,
        "plan": plan,
        "unit": unit_of_run(frozen, view.released(ClippedUpdate.release, run_id)),
        "noise-promise": promise_of_charged(frozen) if frozen else None,
        "updates": {status: view.count(status, run_id, Update.release) for status in STATUSES},
        "metrics-released": view.released(Metrics.release, run_id),
        "closed": run_id in view.account.closed,
    }


def _event(frozen: ChargedPlan) -> dict[str, Any] | None:
    """Return a plan's schedule and recomputed cost; None for no readable plan."""
    plan, recomputed = read_plan(frozen), recompute_epsilon(frozen)
    if plan is None or recomputed is None:
        return None
    return {
        "schedule": [
            {
                "rounds": len(list(rounds)),
                "steps": steps.count,
                "sampling-prob": steps.sampling_prob,
                "noise-factor": steps.noise_factor,
            }
            for steps, rounds in itertools.groupby(plan.steps)
        ],
        "noise-multiplier": plan.noise_multiplier,
        "sensitivity": plan.sensitivity,
        "divisor": plan.divisor,
        "models": plan.models,
        "releases": {name: _cost(cost, plan) for name, cost in plan.releases},
        "epsilon-pld": recomputed.pld,
        "epsilon-rdp": recomputed.rdp,
    }


def _cost(cost: Cost, plan: Plan) -> dict[str, Any]:
    """Return the price of a kind of release: steps and q, or a count, and its noise or ε."""
    if isinstance(cost, Steps):
        noise = plan.noise_multiplier * cost.noise_factor
        return {"steps": cost.count, "sampling-prob": cost.sampling_prob, "noise": noise}
    if isinstance(cost, Gaussians):
        return {"count": cost.count, "noise": cost.noise_multiplier}
    return {"count": cost.count, "epsilon": cost.epsilon}


def _releases(view: LedgerView) -> list[dict[str, Any]]:
    """Return every release that was ever taken, in the order of the ledger."""
    rows: dict[int, dict[str, Any]] = {}
    for entry in view.entries:
        body = entry.body
        if entry.kind == "reserved":
            # Keyed by the entry that reserved it: later entries name that number.
            rows[entry.seq] = {
                "run-id": body["run_id"],
                "round": body["round"],
                "kind": body["kind"],
                "status": entry.kind,
                "at": entry.at,
                "payload": "",
            }
        elif entry.kind in STATUSES:
            row = rows[body["release"]]
            row.update({"status": entry.kind, "at": entry.at})
            row["payload"] = body.get("payload", row["payload"])[:_PAYLOAD_DIGITS]
    return list(rows.values())


def _assumptions(source: Source) -> Iterator[Assumption]:
    """Yield the conditions of the promise; chain and anchor are verified."""
    view, paths = source.view, source.profile.ledger if source.profile else None
    yield Assumption(
        "chain",
        "no entry of the ledger was changed, removed or inserted",
        f"every digest was computed again, from entry 1 to entry {len(view.entries)}",
    )
    anchored = paths is not None and paths.anchor is not None
    yield Assumption(
        "anchor",
        "the ledger is the newest, not an older copy",
        "it contains the entry that its anchor names"
        if anchored
        else "the profile names no anchor"
        if paths
        else "the report was made without a profile, so without an anchor: compare the last "
        "digest with the one that the site shows",
        checked=anchored,
    )
    yield from check_entries(view.entries)
    yield Assumption(
        "noise",
        "the noise was fresh, and the code that ran was this package, unchanged",
        "a ledger cannot show it; a site pins the app, see docs/concepts/threat-model.md",
        checked=False,
    )
    yield Assumption(
        "records",
        "the declared number of records N is close to the true number",
        "this report reads no record; see: hdpfl-site profile check --terms FILE",
        checked=False,
    )


def _amount(amount: tuple[float, float]) -> dict[str, float]:
    return {"epsilon": amount[0], "delta": amount[1]}


def _plain(value: Any) -> Any:
    """Return ``value`` for JSON: an infinity becomes 'inf'."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return "inf" if value == math.inf else value
