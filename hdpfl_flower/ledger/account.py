"""Account of a ledger: its cap, the plans charged, the status of each release."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from hdpfl_flower.errors import Declined, LedgerError, Reason, Refused
from hdpfl_flower.ledger.hash_chain import Entry

if TYPE_CHECKING:
    from hdpfl_flower.config.terms import RunTerms
    from hdpfl_flower.privacy.plan import Plan

CLOSED = "closed"
"""Kind of the entry after which nothing of a run may be released."""
APPROVED, REFUSED = "approved", "refused"
"""Kinds of the entries by which the site's operator decides on a run."""
Key = tuple[str, int, str]
"""A release: (run, server round, kind)."""


@dataclass(frozen=True, repr=False)
class ChargedPlan:
    """A plan as the ledger stores it: its JSON, the JSON of the public terms, its cost."""

    plan: str
    terms: str
    epsilon: float
    delta: float

    def read(self) -> Plan:
        """Return the plan; raises ``AccountingError`` or ``LedgerError`` where it is none."""
        from hdpfl_flower.privacy.plan import Plan  # the ledger itself needs no library

        return Plan.from_json(self.plan)

    def read_terms(self) -> RunTerms:
        """Return the terms; raises ``TermsError`` where they are none."""
        from hdpfl_flower.privacy.plan import charged_terms

        return charged_terms(self.plan, self.terms)


@dataclass(frozen=True)
class Request:
    """What the server asks for.

    Attributes:
        run_id: the run.
        server_round: from 1.
        kind: of release.
        digest: covers everything that is asked but Flower's own ids.
        epsilon: the ε that this site declared to a server that adds the noise; None where the
            site accounts for itself.
    """

    run_id: str
    server_round: int
    kind: str
    digest: str
    epsilon: float | None = None

    @property
    def key(self) -> Key:
        """The release that is asked for."""
        return self.run_id, self.server_round, self.kind

    def entry(self) -> dict[str, object]:
        """Return the body of the ledger's entry."""
        declared = {} if self.epsilon is None else {"told": self.epsilon}
        return {
            "run_id": self.run_id,
            "round": self.server_round,
            "kind": self.kind,
            "request": self.digest,
            **declared,
        }


@dataclass(frozen=True)
class Approval:
    """What an operator approves: one request, no other.

    Attributes:
        run_id: the run.
        request: SHA-256 of all that is approved: terms and app.
        terms: the public terms, JSON.
        app: SHA-256 of the app that may work under them.
        by: who approves.
    """

    run_id: str
    request: str
    terms: str
    app: str
    by: str

    def entry(self) -> dict[str, object]:
        """Return the body of the ledger's entry."""
        return asdict(self)


@dataclass
class Release:
    """Status of one release."""

    seq: int
    request: str
    status: str
    payload_digest: str = ""


@dataclass(repr=False)
class Account:
    """State that the entries add up to, in their order.

    Attributes:
        cap_epsilon: lifetime cap on Σε.
        cap_delta: lifetime cap on Σδ.
        plans: run → the plan charged for it.
        releases: every release that was ever reserved.
        declared: run → the ε declared to a server that adds the noise.
        closed: runs of which nothing more may be released here.
        approved: run → the requests of it that were approved, by their digests.
        refused: runs that were refused, before or after an approval.
    """

    cap_epsilon: float = 0.0
    cap_delta: float = 0.0
    plans: dict[str, ChargedPlan] = field(default_factory=dict)
    releases: dict[Key, Release] = field(default_factory=dict)
    declared: dict[str, float] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    approved: dict[str, set[str]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    _by_seq: dict[int, Release] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Add one more entry."""
        body = entry.body
        if entry.kind == "cap":
            self.cap_epsilon, self.cap_delta = body["epsilon"], body["delta"]
        elif entry.kind == "plan":
            self.plans[body["run_id"]] = ChargedPlan(
                body["plan"], body["terms"], body["epsilon"], body["delta"]
            )
        elif entry.kind == CLOSED:
            self.closed.add(body["run_id"])
        elif entry.kind == APPROVED:
            self.approved.setdefault(body["run_id"], set()).add(body["request"])
        elif entry.kind == REFUSED:
            self.refused.add(body["run_id"])
        elif entry.kind == "reserved":
            key = (body["run_id"], body["round"], body["kind"])
            release = Release(entry.seq, body["request"], "reserved")
            self.releases[key] = self._by_seq[entry.seq] = release
            if "told" in body:
                self.declared[body["run_id"]] = body["told"]
        else:
            release = self._by_seq[body["release"]]
            release.status = entry.kind
            release.payload_digest = body.get("payload", release.payload_digest)

    def check_left(self, request: Request, most: float) -> None:
        """Decline a new release of a run that took ``most`` of its kind, of whichever rounds.

        Every one counts that was ever reserved: worked on, sealed, sent or lost. One that was
        taken before is no new one.
        """
        taken = [key for key in self.releases if (key[0], key[2]) == (request.run_id, request.kind)]
        # A repeated request passes: it takes no further release.
        if request.key not in taken and len(taken) >= most:
            raise Declined(Reason.BUDGET, "the releases that the run's plan pays for are used up")

    def check_open(self, request: Request) -> None:
        """Decline any release of a run that was closed or refused here, repeated ones too.

        Raises:
            Declined: it is closed.
            Refused: its operator refused it, perhaps after the message was accepted.
        """
        if request.run_id in self.refused:
            raise Refused("the run was refused at this site")
        if request.run_id in self.closed:
            raise Declined(
                Reason.POLICY,
                "the run is closed at this site: its model was tuned here without noise",
            )

    def check_declared(self, request: Request) -> None:
        """Decline a release that the server would noise at another ε than this site asks for now.

        The server uses what the site disclosed when it joined, and does not ask again.
        """
        if request.epsilon not in (None, self.declared.get(request.run_id, request.epsilon)):
            raise Declined(
                Reason.PROFILE,
                "'run.epsilon' changed in mid-run, and the server uses the one that it "
                "received first; set it back, or sit out the rest of this run",
            )

    def spent(self) -> tuple[float, float]:
        """Return (ε, δ) charged so far, rounded up."""
        return (
            sum_rounded_up(plan.epsilon for plan in self.plans.values()),
            sum_rounded_up(plan.delta for plan in self.plans.values()),
        )


def as_fraction(value: float) -> Fraction:
    """Return the decimal number that was written for ``value``: ten runs of 0.1 make 1."""
    return Fraction(repr(value))


def check_cost(epsilon: float, delta: float) -> None:
    """Raise ``LedgerError`` unless both are numbers ≥ 0: no charge makes what is spent fall."""
    if not (epsilon >= 0 and delta >= 0):  # NaN is not
        raise LedgerError("ledger: ε and δ must be numbers that are not negative")


def sum_within(values: list[float], limit: float) -> bool:
    """Return whether the exact sum is at most ``limit``; an infinite sum needs an infinite one."""
    if math.inf in values or math.isinf(limit):
        return math.isinf(limit) and limit > 0
    # Exact rationals: float sums would let a cap be passed by rounding.
    return sum(map(as_fraction, values)) <= as_fraction(limit)


def sum_rounded_up(values: Iterable[float]) -> float:
    """Return the sum as the least float that is not below it."""
    numbers = list(values)
    if math.inf in numbers:
        return math.inf
    total = sum(map(as_fraction, numbers), Fraction(0))
    nearest = float(total)
    # Rounded up by at most one float, so that what is reported spent is never too little.
    return nearest if as_fraction(nearest) >= total else math.nextafter(nearest, math.inf)
