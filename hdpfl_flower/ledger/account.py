"""What a ledger's entries say: the cap, the plans charged, where each release stands."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from hdpfl_flower.ledger.hash_chain import Entry
from hdpfl_flower.errors import Declined, LedgerError

Key = tuple[str, int, str]
"""A release: (run, server round, kind)."""


@dataclass(frozen=True, repr=False)
class FrozenPlan:
    """A plan as it was charged: its JSON, the public terms it was made for, its cost."""

    plan: str
    terms: str
    epsilon: float
    delta: float


@dataclass(frozen=True)
class Request:
    """What the server asks for.

    Attributes:
        run_id: the run.
        server_round: from 1.
        kind: of release.
        digest: covers everything that is asked but Flower's own ids.
        epsilon: what this site told the server to noise it at, where the server does that; None
            where the site accounts for itself.
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
        """Return what the ledger notes of it."""
        told = {} if self.epsilon is None else {"told": self.epsilon}
        return {
            "run_id": self.run_id,
            "round": self.server_round,
            "kind": self.kind,
            "request": self.digest,
            **told,
        }


@dataclass
class Release:
    """Where one release stands."""

    seq: int
    request: str
    status: str
    payload_digest: str = ""


@dataclass(repr=False)
class Account:
    """Everything the entries say, folded in order."""

    cap_epsilon: float = 0.0
    cap_delta: float = 0.0
    plans: dict[str, FrozenPlan] = field(default_factory=dict)
    releases: dict[Key, Release] = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)
    _by_seq: dict[int, Release] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Take one more entry into account."""
        body = entry.body
        if entry.kind == "cap":
            self.cap_epsilon, self.cap_delta = body["epsilon"], body["delta"]
        elif entry.kind == "plan":
            self.plans[body["run_id"]] = FrozenPlan(
                body["plan"], body["terms"], body["epsilon"], body["delta"]
            )
        elif entry.kind == "reserved":
            key = (body["run_id"], body["round"], body["kind"])
            release = Release(entry.seq, body["request"], "reserved")
            self.releases[key] = self._by_seq[entry.seq] = release
            if "told" in body:
                self.told[body["run_id"]] = body["told"]
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
        if request.key not in taken and len(taken) >= most:
            raise Declined("budget: the releases that the run's plan pays for are used up")

    def check_told(self, request: Request) -> None:
        """Decline a release that the server would noise at another ε than this site asks for now.

        The server goes by what the site disclosed when it joined, and does not ask again.
        """
        if request.epsilon not in (None, self.told.get(request.run_id, request.epsilon)):
            raise Declined(
                "profile: 'run.epsilon' changed in mid-run, and the server goes by the one that it "
                "was told; set it back, or sit out the rest of this run"
            )

    def spent(self) -> tuple[float, float]:
        """Return (ε, δ) charged so far, rounded up."""
        return (
            sum_up(plan.epsilon for plan in self.plans.values()),
            sum_up(plan.delta for plan in self.plans.values()),
        )


def exact(value: float) -> Fraction:
    """Return the decimal number that was written for ``value``: ten runs of 0.1 make 1."""
    return Fraction(repr(value))


def check_cost(epsilon: float, delta: float) -> None:
    """Raise ``LedgerError`` unless both are numbers ≥ 0: no charge makes what is spent fall."""
    if not (epsilon >= 0 and delta >= 0):  # NaN is not
        raise LedgerError("ledger: ε and δ must be numbers that are not negative")


def fits(values: list[float], limit: float) -> bool:
    """Tell exactly whether the sum is at most ``limit``; nothing fits an infinite sum but inf."""
    if math.inf in values or math.isinf(limit):
        return math.isinf(limit) and limit > 0
    return sum(map(exact, values)) <= exact(limit)


def sum_up(values: Iterable[float]) -> float:
    """Return the sum as the least float that is not below it."""
    numbers = list(values)
    if math.inf in numbers:
        return math.inf
    total = sum(map(exact, numbers), Fraction(0))
    nearest = float(total)
    return nearest if exact(nearest) >= total else math.nextafter(nearest, math.inf)
