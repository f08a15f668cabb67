"""The ledger against a model of it: any order of runs, rounds, retries, replays and crashes.

The model is a dictionary of releases and sums of fractions; it shares no code with the ledger.
After every step the two agree, what is spent has not fallen, and the file verifies.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import Reservation

Key = tuple[str, int, str]
MEMORY = Path("/dev/shm")  # waiting for a disk would be most of the time
INFINITE = (math.inf, math.inf)

runs = st.sampled_from(["a", "b", "c", "d", "e"])
rounds = st.integers(1, 5)
digests = st.sampled_from(["d", "d", "d", "other"])
epsilons = st.sampled_from([0.1, 0.1, 0.2, 0.3, 0.7, 1e-3, 0.30000000000000004])
plans = st.builds(
    ChargedPlan, st.sampled_from(["{}", "{}", "{1}"]), st.just("{}"), epsilons, st.just(1e-6)
)
caps = st.sampled_from([INFINITE, INFINITE, (0.2, 1.0), (1.0, 2e-6)])
fates = st.sampled_from(["sealed", "sealed", "sent", "failed", "crashed", "held"])
sides = st.sampled_from([0, 1])


def as_fraction(value: float) -> Fraction:
    return Fraction(repr(value))


@dataclass
class Release:
    """A release in the model; ``payload`` is None once the ledger need not keep it."""

    digest: str
    status: str = "reserved"
    payload: bytes | None = None
    held: Reservation | None = None


class LedgerMachine(RuleBasedStateMachine):
    """Two processes (here two open ledgers) answer whatever they are asked."""

    @initialize(cap=st.sampled_from([0.3, 1.0]))
    def create(self, cap: float) -> None:
        where = MEMORY if MEMORY.is_dir() else None
        self.folder = tempfile.TemporaryDirectory(dir=where)
        self.path = Path(self.folder.name) / "ledger.sqlite"
        self.anchor = Path(self.folder.name) / "anchor"
        Ledger.create(self.path, cap, 4e-6, self.anchor).close()
        self.open = [Ledger(self.path, self.anchor), Ledger(self.path, self.anchor)]
        self.cap = (cap, 4e-6)
        self.plans: dict[str, ChargedPlan] = {}
        self.releases: dict[Key, Release] = {}
        self.made = 0
        self.spent = (0.0, 0.0)

    # What the ledger should say.

    def spent_with(self, *more: ChargedPlan) -> tuple[Fraction, Fraction]:
        charged = [*self.plans.values(), *more]
        return (
            sum((as_fraction(p.epsilon) for p in charged), Fraction(0)),
            sum((as_fraction(p.delta) for p in charged), Fraction(0)),
        )

    def expect(
        self, request: Request, plan: ChargedPlan | None, max_runs: int, cap: tuple[float, float]
    ) -> str:
        """Return the word that a refusal must contain, or nothing."""
        known = self.releases.get(request.key)
        if known is not None and known.digest != request.digest:
            return "another request"
        if known is not None and known.status == "reserved":
            return "in progress" if known.held is not None else "lost"
        if known is not None and known.status == "lost":
            return "lost"
        if known is not None:
            return "" if known.payload is not None else "no longer kept"
        if plan is None:
            return ""
        if request.run_id in self.plans:
            return "" if self.plans[request.run_id] == plan else "another plan"
        if max_runs and len(self.plans) >= max_runs:
            return "policy"
        limits = [min(mine, theirs) for mine, theirs in zip(cap, self.cap, strict=True)]
        over = [
            math.isfinite(limit) and total > as_fraction(limit)
            for total, limit in zip(self.spent_with(plan), limits, strict=True)
        ]
        return "budget" if any(over) else ""

    # What happens.

    @rule(
        run=runs, at=rounds, digest=digests, plan=plans, fate=fates, side=sides, cap=caps,
        max_runs=st.sampled_from([0, 0, 2]), metrics=st.booleans(),
    )  # fmt: skip
    def ask(
        self, run: str, at: int, digest: str, plan: ChargedPlan, fate: str, side: int,
        cap: tuple[float, float], max_runs: int, metrics: bool,
    ) -> None:  # fmt: skip
        """Ask for anything: new runs, rounds, changed requests, changed plans."""
        kind = "metrics" if metrics else "update"
        self.answer(
            side, Request(run, at, kind, digest), None if metrics else plan, max_runs, cap, fate
        )

    @precondition(lambda self: self.releases)
    @rule(data=st.data(), side=sides, fate=fates)
    def ask_again(self, data: Any, side: int, fate: str) -> None:
        """Send a request of any earlier round once more."""
        key = data.draw(st.sampled_from(sorted(self.releases)))
        run, at, kind = key
        request = Request(run, at, kind, self.releases[key].digest)
        self.answer(side, request, self.plans.get(run), 0, INFINITE, fate)

    @precondition(lambda self: self.plans)
    @rule(data=st.data(), side=sides, fate=fates, at=rounds)
    def go_on(self, data: Any, side: int, fate: str, at: int) -> None:
        """Ask for a round of a run that was charged, under its plan."""
        run = data.draw(st.sampled_from(sorted(self.plans)))
        self.answer(side, Request(run, at, "update", "d"), self.plans[run], 0, INFINITE, fate)

    def answer(
        self, side: int, request: Request, plan: ChargedPlan | None, max_runs: int,
        cap: tuple[float, float], fate: str,
    ) -> None:  # fmt: skip
        word = self.expect(request, plan, max_runs, cap)
        known = self.releases.get(request.key)
        try:
            taken = self.open[side].reserve(request, plan, max_runs=max_runs, cap=cap)
        except Declined as reason:
            assert word, f"declined: {reason}"
            assert word in str(reason)
            if word == "lost" and known is not None:
                known.status = "lost"
            return
        assert not word, f"not declined: {word}"
        if known is not None:
            assert taken == known.payload
            return
        assert isinstance(taken, Reservation)
        if plan is not None:
            self.plans.setdefault(request.run_id, plan)
        release = self.releases[request.key] = Release(request.digest, held=taken)
        if fate != "held":
            self.end_work(request.key, release, fate)

    @precondition(lambda self: self.held())
    @rule(data=st.data(), fate=fates)
    def end_held_work(self, data: Any, fate: str) -> None:
        """Let work that went on meanwhile come to an end."""
        key = data.draw(st.sampled_from(self.held()))
        self.end_work(key, self.releases[key], fate)

    def held(self) -> list[Key]:
        return sorted(key for key, release in self.releases.items() if release.held is not None)

    def end_work(self, key: Key, release: Release, fate: str) -> None:
        reservation, release.held = release.held, None
        assert reservation is not None
        if fate == "crashed":  # its process is gone, and with it the lock alone
            reservation.free()
            return
        with reservation:
            if fate == "failed":
                release.status = "lost"
                return
            self.made += 1
            release.payload = reservation.seal(b"noise %d" % self.made)
            release.status = "sealed"
        run, at, kind = key
        for (other, past, what), older in self.releases.items():
            if (other, what) == (run, kind) and past <= at - 2:
                older.payload = None
        if fate == "sent":
            self.open[0].mark_sent(key)
            release.status = "sent"

    @rule(side=sides)
    def reopen(self, side: int) -> None:
        """A deployed site does so for every message."""
        if not self.held():  # else work under way would lose its ledger
            self.open[side].close()
            self.open[side] = Ledger(self.path, self.anchor)

    @rule(cap=st.tuples(st.sampled_from([0.2, 0.3, 1.0, 1.1]), st.sampled_from([1e-6, 4e-6, 9e-6])))
    def raise_cap(self, cap: tuple[float, float]) -> None:
        if cap[0] < self.cap[0] or cap[1] < self.cap[1]:
            with pytest.raises(LedgerError, match="only be raised"):
                self.open[0].raise_cap(*cap)
        else:
            self.open[0].raise_cap(*cap)
            self.cap = cap

    # What always holds.

    @invariant()
    def the_two_agree(self) -> None:
        fresh = Ledger(self.path, self.anchor)  # verifies the chain and the anchor
        for ledger in (fresh, *self.open):
            account = ledger.account()
            assert (account.cap_epsilon, account.cap_delta) == self.cap
            assert account.plans == self.plans
            statuses = {key: release.status for key, release in account.releases.items()}
            assert statuses == {key: release.status for key, release in self.releases.items()}
            for run in "abcde":
                assert ledger.frozen_plan(run) == self.plans.get(run)
        spent = fresh.account().spent()
        fresh.close()
        for shown, before, truth, cap in zip(
            spent, self.spent, self.spent_with(), self.cap, strict=True
        ):
            assert shown >= before, "spent fell"
            assert truth <= as_fraction(cap)
            assert as_fraction(shown) >= truth, "rounded down"
            assert truth == 0 or as_fraction(math.nextafter(shown, 0)) < truth, "rounded too far up"
        self.spent = spent

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for key in self.held():
                self.end_work(key, self.releases[key], "failed")
            for ledger in self.open:
                ledger.close()
            self.folder.cleanup()


def run_machine(examples: int, steps: int, **more: Any) -> None:
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )
