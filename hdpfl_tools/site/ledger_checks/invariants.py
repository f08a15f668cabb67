"""Invariants of a ledger, verified over all its entries.

``ledger.py`` never writes an entry that breaks one of them. They are verified here by code that
shares only the sums with it: a chain rewritten from its first entry has consistent
digests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from hdpfl_flower.ledger.account import (
    APPROVED,
    CLOSED,
    REFUSED,
    ChargedPlan,
    Key,
    filter_capacity,
    price_of,
    reserved,
    sum_within,
)
from hdpfl_flower.ledger.hash_chain import Entry
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases import is_covered
from hdpfl_tools.site.ledger_checks.recompute import read_plan, recompute_by_pld

_MAY_FOLLOW = {"sealed": "reserved", "lost": "reserved", "sent": "sealed"}


@dataclass(frozen=True)
class Assumption:
    """Assumption behind the privacy promise.

    Attributes:
        name: fixed name for programs.
        claim: statement that must be true.
        how: how it was checked, or why it was not.
        checked: whether it was.
        failures: contradictions; empty if it holds.
    """

    name: str
    claim: str
    how: str
    checked: bool = True
    failures: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """``holds``, ``fails`` or ``not checked``."""
        if not self.checked:
            return "not checked"
        return "fails" if self.failures else "holds"


def check_entries(entries: Sequence[Entry]) -> list[Assumption]:
    """Return the assumptions that entries can show, with contradictions."""
    return [
        Assumption(name, claim, how, failures=tuple(look(entries)))
        for name, claim, how, look in _RULES
    ]


def charged_twice(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield each run that was charged a second time."""
    seen = set()
    for entry in entries:
        if entry.kind == "plan":
            if entry.body["run_id"] in seen:
                yield f"entry {entry.seq} charges run '{entry.body['run_id']}' again"
            seen.add(entry.body["run_id"])


def unpaid(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield releases without a prior paying plan.

    A release may be unpaid by its run, round, kind or number. A plan pays for a separate number of
    each kind: updates, and private choices of a model. A private personal model leaves no release;
    its plan must pay for two models a round.
    """
    plans: dict[str, Plan | None] = {}
    taken: dict[tuple[str, str], set[int]] = {}
    for entry in entries:
        body = entry.body
        if entry.kind == "plan":
            plan = plans.setdefault(body["run_id"], read_plan(_frozen(entry)))
            if plan is not None and plan.models < _models(body["terms"]):
                yield (
                    f"run '{body['run_id']}' trains a private personal model, which its plan does "
                    "not pay for"
                )
        elif entry.kind == "reserved" and is_covered(body["kind"]):
            if body["run_id"] not in plans:
                yield f"entry {entry.seq} belongs to run '{body['run_id']}', which is not charged"
                continue
            plan = plans[body["run_id"]]
            rounds = taken.setdefault((body["run_id"], body["kind"]), set())
            # A set: a release lost and taken again counts once.
            rounds.add(body["round"])
            if plan is None or not plan.covers(body["round"]):
                yield f"entry {entry.seq} is round {body['round']}, which the plan does not pay for"
            elif len(rounds) > (paid := plan.paid(body["kind"])):
                yield (
                    f"entry {entry.seq} is a {body['kind']} more than the {paid} that the plan "
                    "pays for"
                )


def above_cap(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield entries after which the cap was passed: by Σε or Σδ, or in the Rényi filter."""
    if _order(entries):
        yield from _above_capacity(entries)
        return
    caps: tuple[float, float] = (0.0, 0.0)
    sums: tuple[list[float], list[float]] = ([], [])
    for entry in entries:
        if entry.kind not in ("cap", "plan"):
            continue
        amount = entry.body["epsilon"], entry.body["delta"]
        if not all(value >= 0 for value in amount):  # NaN is not
            yield f"entry {entry.seq} has an ε or δ that is negative or no number"
            continue
        if entry.kind == "cap":
            caps = amount
        else:
            for charges, value in zip(sums, amount, strict=True):
                charges.append(value)
        for name, charges, cap in zip("εδ", sums, caps, strict=True):
            # After each entry, not at the end: a cap raised later is no excuse.
            if charges and not sum_within(charges, cap):
                yield f"after entry {entry.seq} the sum of {name} was above the cap"


def _above_capacity(entries: Sequence[Entry]) -> Iterator[str]:
    order, cap = _order(entries), (0.0, 0.0)
    plans: dict[str, ChargedPlan] = {}
    taken: dict[str, set[tuple[str, int]]] = {}
    # By run: all of an open one, and the reserved releases of an ended one.
    counted: dict[str, Fraction | float] = {}
    for entry in entries:
        run = entry.body.get("run_id", "")
        if entry.kind == "cap":
            cap = entry.body["epsilon"], entry.body["delta"]
        elif entry.kind == "plan":
            plans[run] = _frozen(entry)
            counted[run] = reserved(plans[run].prices)
        elif entry.kind == "reserved":
            taken.setdefault(run, set()).add((entry.body["kind"], entry.body["round"]))
        elif entry.kind in (CLOSED, REFUSED) and run in plans:
            prices = (
                price_of(plans[run].prices, *release) for release in sorted(taken.get(run, ()))
            )
            counted[run] = reserved([replace(price, count=1) for price in prices if price])
        if entry.kind not in ("cap", "plan"):
            continue
        if not sum_within(list(counted.values()), filter_capacity(order, cap)):
            yield f"after entry {entry.seq} the Rényi divergence was above that of the cap"


def _order(entries: Sequence[Entry]) -> int:
    """Return the order of the ledger's Rényi filter; 0: none."""
    return int(entries[0].body.get("order", 0)) if entries else 0


def broken_releases(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield steps out of order and second payloads of releases."""
    keys: dict[int, Key] = {}
    status: dict[int, str] = {}
    payloads: dict[Key, str] = {}
    for entry in entries:
        body = entry.body
        if entry.kind == "reserved":
            keys[entry.seq] = (body["run_id"], body["round"], body["kind"])
            status[entry.seq] = "reserved"
        elif entry.kind in _MAY_FOLLOW:
            seq = body["release"]
            before = status.get(seq, "unknown")
            if before != _MAY_FOLLOW[entry.kind]:
                yield f"entry {entry.seq}: a release that was {before} became {entry.kind}"
            status[seq] = entry.kind
            if entry.kind == "sealed" and seq in keys:
                # By run, round and kind, across reservations: a seeded simulation may seal the same
                # bytes again.
                first = payloads.setdefault(keys[seq], body["payload"])
                if first != body["payload"]:
                    yield f"entry {entry.seq} seals a second payload for one release"


def after_close(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield charges and releases of a run after its close."""
    closed: set[str] = set()
    # By the entry that reserved a release: later entries name that number.
    owners: dict[int, str] = {}
    for entry in entries:
        run = entry.body.get("run_id") or owners.get(entry.body.get("release", 0), "")
        if entry.kind == CLOSED:
            closed.add(run)
            continue
        if entry.kind == "reserved":
            owners[entry.seq] = run
        # "sent" may follow: a payload sealed before was handed over.
        if run in closed and entry.kind in ("plan", "reserved", "sealed"):
            yield f"entry {entry.seq} is of run '{run}', which was closed before it"


def after_refusal(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield charges, releases and approvals of a run after its refusal."""
    refused: set[str] = set()
    for entry in entries:
        run = entry.body.get("run_id")
        if entry.kind == REFUSED:
            refused.add(entry.body["run_id"])
        # "sealed" and "sent" may follow: they belong to a release taken before.
        elif run in refused and entry.kind in ("plan", "reserved", APPROVED):
            yield f"entry {entry.seq} is of run '{run}', which was refused before it"


def undercharged(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield plans with recomputed ε or divergence above the charge, or without one."""
    order = _order(entries)
    for entry in entries:
        if entry.kind != "plan":
            continue
        frozen = _frozen(entry)
        recomputed = recompute_by_pld(frozen)
        if recomputed is None:
            yield f"run '{entry.body['run_id']}': no ε can be computed from its plan"
        # Written so that a NaN counts as more.
        elif not recomputed <= frozen.epsilon:
            yield f"run '{entry.body['run_id']}' costs more than it was charged"
        elif order and not frozen.recounts(order):
            yield f"run '{entry.body['run_id']}' has a divergence that is not that of its plan"


def _models(text: str) -> int:
    """Return the number of models trained with noise per round.

    The text is read as it stands: a wrong value elsewhere in it does not hide the count.
    """
    try:
        second = json.loads(text).get("second.kind")
    except (ValueError, AttributeError):
        return 1
    return 2 if second == "private" else 1


def _frozen(entry: Entry) -> ChargedPlan:
    return ChargedPlan.from_entry(entry.body)


_RULES: tuple[tuple[str, str, str, Callable[[Sequence[Entry]], Iterator[str]]], ...] = (
    (
        "charged-once",
        "no run was charged twice",
        "every charge of the ledger has another run's name",
        charged_twice,
    ),
    (
        "paid-for",
        "every noisy update and every private choice belongs to a run that was charged before, "
        "and the run's plan pays for it",
        "each reservation was compared with the plans that were charged before it, and "
        "counted by its kind",
        unpaid,
    ),
    (
        "cap",
        "the charges never exceeded the cap",
        "after every charge, Σε and Σδ, or the divergences of a Rényi filter, were added up "
        "exactly and compared with the cap of that moment",
        above_cap,
    ),
    (
        "one-payload",
        "for each run, round and kind one payload was sealed, and none without a reservation",
        "each release was followed from entry to entry: reserved, then sealed and sent, or lost",
        broken_releases,
    ),
    (
        "closed",
        "nothing of a run was released after it was closed here",
        "every entry after one that closes a run was compared with that run",
        after_close,
    ),
    (
        "refused",
        "nothing of a run was released after its refusal",
        "every entry after one that refuses a run was compared with that run",
        after_refusal,
    ),
    (
        "recount",
        "no run costs more than it was charged",
        "the ε and the Rényi divergence of every plan were computed again from nothing but the "
        "ledger, and rounded up",
        undercharged,
    ),
)
