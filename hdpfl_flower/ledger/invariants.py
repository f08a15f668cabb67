"""Invariants of a ledger, verified over all its entries, from the first to the last.

``ledger.py`` never writes an entry that breaks one of them. They are verified here by code that
shares nothing with it but the sums: a chain that was rewritten from its first entry has digests
that agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hdpfl_flower.ledger.account import APPROVED, CLOSED, REFUSED, ChargedPlan, Key, sum_within
from hdpfl_flower.ledger.hash_chain import Entry
from hdpfl_flower.ledger.recompute import read_plan, recompute_by_pld
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.privacy.policy import CLIPPED_UPDATE, COUNTS, SCORES, TUNING

UNCOVERED = frozenset({"metrics", CLIPPED_UPDATE})
"""Kinds of release that no plan pays for: ε does not cover them, and the report says so."""
_MAY_FOLLOW = {"sealed": "reserved", "lost": "reserved", "sent": "sealed"}


@dataclass(frozen=True)
class Assumption:
    """One thing the promise rests on.

    Attributes:
        name: what machines know it by; never changes.
        claim: what must be true.
        how: how it was checked, or why it was not.
        checked: whether it was.
        failures: what contradicts it; empty where it holds.
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
    """Return what the entries themselves can show, each with what contradicts it."""
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
    """Yield each release that no plan charged before it pays for: by run, round, kind or number.

    Of each kind a plan pays for a number of its own: updates, and private choices of a model. A
    private personal model leaves no release; its plan must pay for two models a round.
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
        elif entry.kind == "reserved" and body["kind"] not in UNCOVERED:
            if body["run_id"] not in plans:
                yield f"entry {entry.seq} belongs to run '{body['run_id']}', which is not charged"
                continue
            plan = plans[body["run_id"]]
            rounds = taken.setdefault((body["run_id"], body["kind"]), set())
            # A set: a release that was lost and taken again counts once.
            rounds.add(body["round"])
            if plan is None or not plan.covers(body["round"]):
                yield f"entry {entry.seq} is round {body['round']}, which the plan does not pay for"
            elif len(rounds) > (paid := _paid(plan, body["kind"])):
                yield (
                    f"entry {entry.seq} is one {body['kind']} more than the {paid} that the plan "
                    "pays for"
                )


def above_cap(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield each entry after which Σε or Σδ was above the cap of that moment."""
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
            # After each entry, not at the end: a cap that was raised later excuses nothing.
            if charges and not sum_within(charges, cap):
                yield f"after entry {entry.seq} the sum of {name} was above the cap"


def broken_releases(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield each step of a release out of order, and each second payload for one release."""
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
    """Yield each charge and each release of a run that was closed before it."""
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
        # "sent" may follow: what was sealed before was handed over.
        if run in closed and entry.kind in ("plan", "reserved", "sealed"):
            yield f"entry {entry.seq} is of run '{run}', which was closed before it"


def after_refusal(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield each charge, release and approval of a run that was refused before it."""
    refused: set[str] = set()
    for entry in entries:
        run = entry.body.get("run_id")
        if entry.kind == REFUSED:
            refused.add(entry.body["run_id"])
        # "sealed" and "sent" may follow: they are of a release that was taken before.
        elif run in refused and entry.kind in ("plan", "reserved", APPROVED):
            yield f"entry {entry.seq} is of run '{run}', which was refused before it"


def undercharged(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield each plan whose ε, computed again, is above what was charged or cannot be computed."""
    for entry in entries:
        if entry.kind != "plan":
            continue
        frozen = _frozen(entry)
        found = recompute_by_pld(frozen)
        if found is None:
            yield f"run '{entry.body['run_id']}': no ε can be computed from its plan"
        # Written so that a NaN counts as more.
        elif not found <= frozen.epsilon:
            yield f"run '{entry.body['run_id']}' costs more than it was charged"


def _paid(plan: Plan, kind: str) -> int:
    """Return how many releases of a kind a plan pays for; none of a kind that it does not know."""
    if kind == "update":
        return plan.rounds
    if kind == "choice":
        return plan.choices.count if plan.choices else 0
    once = {COUNTS: plan.counts, SCORES: plan.scores, TUNING: plan.tuning}
    return int(once.get(kind) is not None)


def _models(text: str) -> int:
    """Return how many models a round trains with noise, by the terms that a plan was frozen with.

    The text is read as it stands: terms of another version are to be counted as well.
    """
    try:
        terms = json.loads(text)
        private = terms.get("personal-noise") == "records" and terms.get("personal-lambda")
    except (ValueError, AttributeError):
        return 1
    return 2 if private else 1


def _frozen(entry: Entry) -> ChargedPlan:
    body = entry.body
    return ChargedPlan(body["plan"], body["terms"], body["epsilon"], body["delta"])


_RULES: tuple[tuple[str, str, str, Callable[[Sequence[Entry]], Iterator[str]]], ...] = (
    (
        "charged-once",
        "no run was charged twice",
        "every charge of the ledger has another run's name",
        charged_twice,
    ),
    (
        "paid-for",
        "every noisy update, and every private choice, belongs to a run charged before it, and to "
        "those that its plan pays for",
        "each reservation was held against the plans charged before it, and counted by its kind",
        unpaid,
    ),
    (
        "cap",
        "what was spent never passed the cap",
        "Σε and Σδ were added up exactly after every entry, against the cap of that moment",
        above_cap,
    ),
    (
        "one-payload",
        "one payload was sealed for each run, round and kind, and none without a reservation",
        "each release was followed from entry to entry: reserved, then sealed and sent, or lost",
        broken_releases,
    ),
    (
        "closed",
        "nothing of a run was released after its model was tuned here without noise",
        "every entry after one that closes a run was held against that run",
        after_close,
    ),
    (
        "refused",
        "nothing of a run was released after its refusal",
        "every entry after one that refuses a run was held against that run",
        after_refusal,
    ),
    (
        "recount",
        "no run costs more than it was charged",
        "ε of every plan was computed again from the ledger alone, by PLD, rounded up",
        undercharged,
    ),
)
