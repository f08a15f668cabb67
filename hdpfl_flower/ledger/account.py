"""Account of a ledger: cap, charged plans, release status."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from hdpfl_flower.errors import AccountingError, Declined, LedgerError, Reason, Refused
from hdpfl_flower.ledger.hash_chain import Entry
from hdpfl_flower.ledger.renyi import Price, capacity

if TYPE_CHECKING:
    from hdpfl_flower.config.terms import RunTerms
    from hdpfl_flower.privacy.plan import Plan

CLOSED = "closed"
"""Entry kind that forbids further releases of a run."""
APPROVED, REFUSED = "approved", "refused"
"""Entry kinds of the operator's decision on a run."""
RECORDS = "records"
"""Entry kind that binds a run to its prepared records."""
WITHDRAWN, READMITTED = "withdrawn", "readmitted"
"""Entry kinds of a unit's withdrawal of consent, and of its taking back."""
Key = tuple[str, int, str]
"""Release key: (run, server round, kind)."""


@dataclass(frozen=True, repr=False)
class ChargedPlan:
    """Stored plan: its JSON, the public terms' JSON, its cost.

    ``prices`` are those that a Rényi filter charges; only the ledger sets them, at its own order.
    """

    plan: str
    terms: str
    epsilon: float
    delta: float
    prices: tuple[Price, ...] = field(default=(), compare=False)

    def at(self, order: int) -> ChargedPlan:
        """Return the plan with its prices at ``order``, computed anew from its text alone.

        Raises:
            AccountingError, LedgerError: the text is no plan, or has no price.
        """
        from hdpfl_flower.ledger.renyi import prices_of

        return replace(self, prices=prices_of(self.read(), order))

    def recounts(self, order: int) -> bool:
        """Return whether the stored prices are those of the plan's text at ``order``."""
        try:
            recounted = self.at(order).prices
        except (AccountingError, ArithmeticError, TypeError, ValueError):
            return False
        # As many kinds and releases, none cheaper; another machine may round its logarithms else.
        return [(p.kind, p.server_round, p.count) for p in recounted] == [
            (p.kind, p.server_round, p.count) for p in self.prices
        ] and all(
            mine.each >= its.each * (1 - 1e-10)
            for mine, its in zip(self.prices, recounted, strict=True)
        )

    def entry(self, run_id: str) -> dict[str, object]:
        """Return the body of the ledger's entry."""
        prices = {"prices": [[*asdict(price).values()] for price in self.prices]}
        return {
            "run_id": run_id,
            "plan": self.plan,
            "terms": self.terms,
            "epsilon": self.epsilon,
            "delta": self.delta,
            **(prices if self.prices else {}),
        }

    @staticmethod
    def from_entry(body: dict[str, Any]) -> ChargedPlan:
        """Return the plan in an entry's body."""
        prices = tuple(Price(*price) for price in body.get("prices", ()))
        return ChargedPlan(body["plan"], body["terms"], body["epsilon"], body["delta"], prices)

    def read(self) -> Plan:
        """Return the plan; raises ``AccountingError`` or ``LedgerError`` if invalid."""
        from hdpfl_flower.privacy.plan import Plan  # the ledger itself needs no library

        return Plan.from_json(self.plan)

    def read_terms(self) -> RunTerms:
        """Return the terms; raises as :meth:`read`, or ``TermsError`` where they are none."""
        from hdpfl_flower.config.terms import RunTerms  # the ledger itself needs no library

        self.read()  # the plan's number is that of its terms, too
        return RunTerms.from_json(self.terms)


@dataclass(frozen=True)
class Request:
    """Server's request for a release.

    Attributes:
        run_id: the run.
        server_round: from 1.
        kind: of release.
        digest: covers all of the request except Flower's own ids.
        epsilon: the ε that this site declared to a server that adds the noise; None if the
            site accounts for itself.
        exact: exact answers in the release: models tested on held-out records.
    """

    run_id: str
    server_round: int
    kind: str
    digest: str
    epsilon: float | None = None
    exact: int = 0

    @property
    def key(self) -> Key:
        """Key of the requested release."""
        return self.run_id, self.server_round, self.kind

    def entry(self) -> dict[str, object]:
        """Return the body of the ledger's entry."""
        declared = {} if self.epsilon is None else {"told": self.epsilon}
        exact = {"exact": self.exact} if self.exact else {}
        return {
            "run_id": self.run_id,
            "round": self.server_round,
            "kind": self.kind,
            "request": self.digest,
            **declared,
            **exact,
        }


@dataclass
class Release:
    """Status of one release."""

    seq: int
    request: str
    status: str
    payload_digest: str = ""
    exact: int = 0


@dataclass(repr=False)
class Account:
    """State summed from the entries, in their order.

    Attributes:
        cap_epsilon: ε of the lifetime promise.
        cap_delta: δ of the lifetime promise.
        order: of the Rényi filter that holds the promise; 0: Σε and Σδ hold it. Set by the first
            entry alone.
        plans: run → the plan charged for it.
        releases: all releases ever reserved.
        declared: run → the ε declared to a server that adds the noise.
        closed: runs that may release no more here.
        tuned: closed runs with a model that was tuned here without noise.
        approved: run → its approved requests, by their digests.
        refused: runs that were refused, before or after an approval.
        records: run → SHA-256 of its prepared records, the run bound last at the end.
        withdrawn: the site's own column of ids → digest of an id → when its unit withdrew.
        withdrawal_key: name of the key of these digests.
        begun: time of the first entry, which identifies the ledger.
    """

    cap_epsilon: float = 0.0
    cap_delta: float = 0.0
    order: int = 0
    plans: dict[str, ChargedPlan] = field(default_factory=dict)
    releases: dict[Key, Release] = field(default_factory=dict)
    declared: dict[str, float] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    tuned: set[str] = field(default_factory=set)
    approved: dict[str, set[str]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    records: dict[str, str] = field(default_factory=dict)
    withdrawn: dict[str, dict[str, str]] = field(default_factory=dict)
    withdrawal_key: str = ""
    begun: str = ""
    _by_seq: dict[int, Release] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Add one more entry."""
        body = entry.body
        self.begun = self.begun or entry.at
        if entry.kind == "cap":
            self.cap_epsilon, self.cap_delta = body["epsilon"], body["delta"]
            self.order = body.get("order", 0) if entry.seq == 1 else self.order
        elif entry.kind == "plan":
            self.plans[body["run_id"]] = ChargedPlan.from_entry(body)
        elif entry.kind in (CLOSED, APPROVED, REFUSED, RECORDS):
            self._note_decision(entry)
        elif entry.kind in (WITHDRAWN, READMITTED):
            self._note_withdrawal(entry)
        elif entry.kind == "reserved":
            key = (body["run_id"], body["round"], body["kind"])
            exact = body.get("exact", 0)
            release = Release(entry.seq, body["request"], "reserved", exact=exact)
            self.releases[key] = self._by_seq[entry.seq] = release
            if "told" in body:
                self.declared[body["run_id"]] = body["told"]
        else:
            release = self._by_seq[body["release"]]
            release.status = entry.kind
            release.payload_digest = body.get("payload", release.payload_digest)

    def check_left(self, request: Request, most: float) -> None:
        """Decline a new release beyond ``most`` of its run and kind.

        All releases ever reserved in any round count: worked on, sealed, sent or lost. A release
        taken before is not new.
        """
        taken = [key for key in self.releases if (key[0], key[2]) == (request.run_id, request.kind)]
        # A repeated request passes: it takes no new release.
        if request.key not in taken and len(taken) >= most:
            raise Declined(Reason.BUDGET, "all releases that the run's plan pays for are used up")

    def _note_decision(self, entry: Entry) -> None:
        body, run = entry.body, entry.body["run_id"]
        if entry.kind == CLOSED:
            self.closed.add(run)
            if body.get("tuned"):
                self.tuned.add(run)
        elif entry.kind == APPROVED:
            self.approved.setdefault(run, set()).add(body["request"])
        elif entry.kind == REFUSED:
            self.refused.add(run)
        else:
            self.records.pop(run, None)  # put at the end
            self.records[run] = body["records"]

    def _note_withdrawal(self, entry: Entry) -> None:
        body = entry.body
        if body["key"] != self.withdrawal_key:  # all were noted anew, see Ledger.withdraw
            self.withdrawn, self.withdrawal_key = {}, body["key"]
        noted = self.withdrawn.setdefault(body["column"], {})
        if entry.kind == WITHDRAWN:
            noted.setdefault(body["unit"], entry.at)
        else:
            noted.pop(body["unit"], None)
        if not noted:
            del self.withdrawn[body["column"]]

    @property
    def withdrawn_units(self) -> int:
        """Number of units that withdrew; one may have ids in several columns."""
        return max(map(len, self.withdrawn.values()), default=0)

    @property
    def exact_answers(self) -> int:
        """Exact answers ever reserved, including sealed, sent and lost ones."""
        return sum(release.exact for release in self.releases.values())

    @property
    def runs(self) -> set[str]:
        """Runs charged, or with clipped updates sent to a trusted server."""
        return self.plans.keys() | self.declared.keys()

    def check_exact(self, request: Request, most: float) -> None:
        """Decline a release that raises exact answers above ``most``.

        Raises:
            Declined: the limit would be passed.
        """
        if request.exact and self.exact_answers + request.exact > most:
            raise Declined(Reason.BUDGET, "'budget.exact-answers' are used up")

    def check_runs(self, request: Request, most: float) -> None:
        """Decline a new run if ``most`` runs were charged, or sent clipped updates, already."""
        if request.run_id not in self.runs and len(self.runs) >= most:
            raise Declined(Reason.POLICY, "'policy.runs' runs were charged already")

    def check_open(self, request: Request) -> None:
        """Decline all releases, also repeated ones, of closed or refused runs.

        Raises:
            Declined: it is closed.
            Refused: its operator refused it, perhaps after the message was accepted.
        """
        if request.run_id in self.refused:
            raise Refused("the run was refused at this site")
        if request.run_id in self.closed:
            raise Declined(Reason.POLICY, "the run is closed at this site")

    def check_declared(self, request: Request) -> None:
        """Decline a release if the declared ε has changed.

        The server noises at the ε disclosed when the site joined, and does not ask again.
        """
        if request.epsilon not in (None, self.declared.get(request.run_id, request.epsilon)):
            raise Declined(
                Reason.PROFILE,
                "'run.epsilon' changed during the run, but the server uses the value that it "
                "received first; set it back, or take no part in the rest of this run",
            )

    def spent(self) -> tuple[float, float]:
        """Return (Σε, Σδ) over the charged plans, rounded up."""
        return (
            sum_rounded_up(plan.epsilon for plan in self.plans.values()),
            sum_rounded_up(plan.delta for plan in self.plans.values()),
        )

    def check_fits(self, plan: ChargedPlan, cap: tuple[float, float]) -> None:
        """Decline a new plan that passes the cap together with all charged before.

        Args:
            plan: with its prices, if a Rényi filter holds the promise.
            cap: (ε, δ); the lower of it and the ledger's counts.

        Raises:
            Declined: it does not fit.
        """
        limit = min(cap[0], self.cap_epsilon), min(cap[1], self.cap_delta)
        if self.order:
            room = filter_capacity(self.order, limit)
            fits = sum_within([*self.divergences().values(), reserved(plan.prices)], room)
            spent = [] if fits else ["the capacity of its Rényi filter"]
        else:
            # Basic composition, Σε and Σδ, the new plan included.
            charges = [*self.plans.values(), plan]
            costs = {"ε": [p.epsilon for p in charges], "δ": [p.delta for p in charges]}
            spent = [
                f"the sum of {name}"
                for (name, values), most in zip(costs.items(), limit, strict=True)
                if not sum_within(values, most)
            ]
        if spent:
            raise Declined(
                Reason.BUDGET,
                f"the run does not fit into the remaining budget: {' and '.join(spent)} of the "
                "charged runs and this one is above the cap; raise the cap, if that is right for "
                "the records: hdpfl-site ledger --raise-cap, or Ledger.raise_cap",
            )

    def check_recount(self) -> None:
        """Refuse prices that their plans' texts do not have at this ledger's order.

        Raises:
            LedgerError: names the run.
        """
        for run, plan in self.plans.items() if self.order else ():
            if not plan.recounts(self.order):
                raise LedgerError(
                    f"ledger: the divergence of run {run!r} is not that of its plan; nothing is "
                    "sent; restore the ledger"
                )

    def check_priced(self, request: Request, plan: ChargedPlan) -> None:
        """Decline a release that its run's prices do not count, or one more than they count.

        Raises:
            Declined: it would leave beside the Rényi filter.
        """
        price = price_of(plan.prices, request.kind, request.server_round)
        taken = [
            key
            for key in self.releases
            if key[0] == request.run_id and price_of(plan.prices, key[2], key[1]) is price
        ]
        if price is None or (request.key not in taken and len(taken) >= price.count):
            raise Declined(Reason.BUDGET, "the run's plan does not pay for this release")

    @property
    def ended(self) -> set[str]:
        """Closed and refused runs, which release no more."""
        return self.closed | self.refused

    def divergences(self) -> dict[str, Fraction | float]:
        """Return each run's divergence in the Rényi filter, exactly.

        An open run counts whole. Of an ended one, each release ever reserved counts, sealed, sent
        or lost: a mechanism was chosen, and its divergence is in the composition.
        """
        ended, divergences = self.ended, {}
        for run, plan in self.plans.items():
            divergences[run] = Fraction(0) if run in ended else reserved(plan.prices)
        for run, server_round, kind in self.releases:
            if run not in ended or run not in self.plans:
                continue
            if price := price_of(self.plans[run].prices, kind, server_round):
                divergences[run] += reserved([replace(price, count=1)])
        return divergences


def filter_capacity(order: int, cap: tuple[float, float]) -> float:
    """Return the divergence that a filter of ``order`` holds under ``cap``; at least 0."""
    if cap[0] == math.inf or cap[1] >= 1:
        return math.inf
    return max(0.0, capacity(order, *cap)) if cap[1] > 0 else 0.0


def reserved(prices: Iterable[Price]) -> Fraction | float:
    """Return the divergence of a whole run, exactly; ∞ without noise."""
    divergences = [(price.each, price.count) for price in prices if price.count]
    if any(math.isinf(divergence) for divergence, _ in divergences):
        return math.inf
    return sum((Fraction(divergence) * count for divergence, count in divergences), Fraction(0))


def price_of(prices: Sequence[Price], kind: str, server_round: int) -> Price | None:
    """Return the price of a release; None if ε does not cover it."""
    mine = {price.server_round: price for price in prices if price.kind == kind}
    return mine.get(server_round) or mine.get(0)


def as_fraction(value: Fraction | float) -> Fraction:
    """Return the exact decimal written for ``value``: ten times 0.1 is 1."""
    return value if isinstance(value, Fraction) else Fraction(repr(value))


def check_cost(epsilon: float, delta: float) -> None:
    """Raise ``LedgerError`` unless both are ≥ 0: no charge lowers the total."""
    if not (epsilon >= 0 and delta >= 0):  # NaN is not
        raise LedgerError("ledger: ε and δ must be numbers that are not negative")


def sum_within(values: Sequence[Fraction | float], limit: float) -> bool:
    """Return whether the exact sum is at most ``limit`` (∞ needs ∞)."""
    if math.inf in values or math.isinf(limit):
        return math.isinf(limit) and limit > 0
    # Exact rationals: rounding of float sums could pass a cap.
    return sum(map(as_fraction, values)) <= as_fraction(limit)


def sum_rounded_up(values: Iterable[float]) -> float:
    """Return the sum as the least float not below it."""
    numbers = list(values)
    if math.inf in numbers:
        return math.inf
    total = sum(map(as_fraction, numbers), Fraction(0))
    nearest = float(total)
    # Rounded up by at most one float, so that the reported total is never too small.
    return nearest if as_fraction(nearest) >= total else math.nextafter(nearest, math.inf)
