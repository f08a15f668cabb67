"""The Rényi filter against a server that picks each mechanism after the outputs so far.

What was drawn is composed anew by dp-accounting, from the events of the releases that were ever
reserved: it shares no number with the ledger. Runs go on at once, crash, end early and give back
their rest, and caps are raised.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import dp_accounting
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
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
from hdpfl_flower.privacy.accounting import Gaussians, PureSelections, Steps, epsilon_of, event_of
from hdpfl_flower.privacy.plan import Plan
from hdpfl_tools.site.reports.lifetime import order_for
from tests.crash.machine import MEMORY

Mechanism = tuple[str, int]
"""Kind and round of a release."""


def plan(
    z: float,
    steps: tuple[Steps, ...],
    models: int = 1,
    sensitivity: float = 1.0,
    last_round: int = 0,
    **releases: Any,
) -> Plan:
    beside = tuple(sorted(releases.items()))
    return Plan(
        1.0, 1e-6, z, 20.0, steps, 0.1, 1.0, last_round,
        models=models, sensitivity=sensitivity, releases=beside,
    )  # fmt: skip


PLANS = (
    plan(6.0, (Steps(0.2, 5),) * 3),
    plan(6.0, (Steps(1.0, 1), Steps(0.2, 5), Steps(0.2, 5))),
    plan(9.0, (Steps(0.2, 5),) * 2, models=2, choice=PureSelections(0.1, 2)),
    plan(9.0, (Steps(0.1, 5),) * 2, tuning=Steps(0.1, 9), counts=Gaussians(12.0, 1)),
    plan(9.0, (Steps(0.1, 5),) * 2, scores=Gaussians(11.0, 1), choice=Gaussians(20.0, 1)),
    plan(8.0, (Steps(1.0, 1),) * 2, sensitivity=2.0, last_round=5),
    plan(2.5, (Steps(0.3, 4),) * 2),
    plan(5.0, (Steps(0.2, 5, 3.0), Steps(0.2, 5, 3.0), Steps(0.2, 5, 1.5), Steps(0.2, 5))),
)
ALL = ("update", "choice", "counts", "scores", "tuning")


def mechanisms(plan: Plan) -> list[Mechanism]:
    """Return all that a plan pays for."""
    found = [("update", each) for each in range(1, plan.rounds + 1)]
    found += [("choice", each + 1) for each in range(plan.paid("choice"))]
    return found + [(kind, 1) for kind in ("counts", "scores", "tuning") if plan.paid(kind)]


def alike(plan: Plan, mechanism: Mechanism) -> Mechanism:
    """Return what a mechanism shares its number of releases with: a round of other steps is alone.

    That of the last round's steps stands for all of its kind.
    """
    kind, at = mechanism
    alone = kind == "update" and plan.steps[min(at, plan.rounds) - 1] != plan.steps[-1]
    return kind, at if alone else 0


def event(plan: Plan, mechanism: Mechanism) -> dp_accounting.DpEvent:
    """Return what one release draws."""
    kind, server_round = mechanism
    z = plan.noise_multiplier
    if kind == "update":
        steps = plan.steps[min(server_round, plan.rounds) - 1]
        return event_of([steps] * plan.models, z)
    if kind == "tuning":
        tuning = plan.cost_of("tuning")
        assert isinstance(tuning, Steps)
        return event_of([tuning], z)
    if kind == "choice":
        choice = plan.cost_of("choice")
        assert choice and not isinstance(choice, Steps)
        return event_of((), 1.0, [replace(choice, count=1)])
    noise = plan.cost_of(kind)
    assert isinstance(noise, Gaussians)
    return dp_accounting.GaussianDpEvent(noise.noise_multiplier)


@lru_cache
def divergence(number: int, mechanism: Mechanism, order: int) -> float:
    choices = PLANS[number].cost_of("choice")
    if mechanism[0] == "choice" and isinstance(choices, PureSelections):
        # Randomized response: the library has no divergence of it.
        p = 1 / (1 + math.exp(-choices.epsilon))
        moment = p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)
        return math.log(moment) / (order - 1)
    accountant = RdpAccountant(orders=[order]).compose(event(PLANS[number], mechanism))
    return float(accountant._rdp[0])


@dataclass
class Run:
    """A run in the model: which plan, and every release ever reserved."""

    number: int
    taken: set[Mechanism] = field(default_factory=set)
    held: dict[Mechanism, Reservation] = field(default_factory=dict)
    ended: bool = False


class FilterMachine(RuleBasedStateMachine):
    """Two processes of a site, and a server that knows all that left."""

    @initialize(epsilon=st.sampled_from([1.0, 1.0, 3.0]))
    def create(self, epsilon: float) -> None:
        where = MEMORY if MEMORY.is_dir() else None
        self.folder = tempfile.TemporaryDirectory(dir=where)
        path = Path(self.folder.name) / "ledger.sqlite"
        self.cap, self.order = (epsilon, 1e-5), order_for(epsilon, 1e-5)
        Ledger.create(path, *self.cap, order=self.order).close()
        self.open = [Ledger(path), Ledger(path)]
        self.path, self.runs, self.seen = path, dict[str, Run](), 0

    def divergence_of(self, run: Run, mechanisms: Iterator[Mechanism]) -> float:
        return math.fsum(divergence(run.number, each, self.order) for each in mechanisms)

    def executed(self) -> float:
        return math.fsum(self.divergence_of(run, iter(run.taken)) for run in self.runs.values())

    def promised(self) -> float:
        """Return what is executed, and all that open runs may still ask for."""
        return math.fsum(
            self.divergence_of(run, iter(run.taken if run.ended else mechanisms(PLANS[run.number])))
            for run in self.runs.values()
        )

    def epsilon(self, divergence: float) -> float:
        return float(compute_epsilon([self.order], [divergence], self.cap[1])[0])

    # What the server asks for.

    @rule(side=st.sampled_from([0, 1]), pick=st.integers(0, len(PLANS) - 1), fate=st.integers(0, 3))
    def start(self, side: int, pick: int, fate: int) -> None:
        """Begin a run whose mechanism follows from what was seen."""
        number, name = (pick + self.seen) % len(PLANS), f"run-{len(self.runs)}"
        run = Run(number)
        whole = self.promised() + self.divergence_of(run, iter(mechanisms(PLANS[number])))
        try:
            self.ask(side, name, run, ("update", 1), fate)
        except Declined as reason:
            assert "budget" in str(reason)
            over = self.epsilon(whole) > self.cap[0] * (1 - 1e-6)
            assert over, "declined, and it would have fit"
            return
        self.runs[name] = run
        assert self.epsilon(self.promised()) <= self.cap[0], "two promises for one budget"

    @precondition(lambda self: self.runs)
    @rule(
        data=st.data(), side=st.sampled_from([0, 1]), kind=st.sampled_from((*ALL, "update", "new")),
        at=st.integers(1, 5), fate=st.integers(0, 3),
    )  # fmt: skip
    def go_on(self, data: Any, side: int, kind: str, at: int, fate: int) -> None:
        """Ask for anything of a run, paid for or not, ended or not."""
        name = data.draw(st.sampled_from(sorted(self.runs)))
        run, mechanism = self.runs[name], (kind, at)
        plan = PLANS[run.number]
        again = mechanism in run.taken
        paid, taken = (
            sum(alike(plan, each) == alike(plan, mechanism) for each in those)
            for those in (mechanisms(plan), run.taken)
        )
        left = paid > taken
        try:
            self.ask(side, name, run, mechanism, fate)
        except Declined:
            assert run.ended or again or not left, "declined, and it was paid for"
            return
        assert not run.ended, "an ended run released"
        assert again or left, "more was released than was paid for"

    def ask(self, side: int, name: str, run: Run, mechanism: Mechanism, fate: int) -> None:
        kind, at = mechanism
        plan = PLANS[run.number]
        frozen = ChargedPlan(plan.to_json(), "{}", plan.epsilon, plan.delta)
        taken = self.open[side].reserve(Request(name, at, kind, "d"), frozen)
        if isinstance(taken, bytes):
            return
        run.taken.add(mechanism)
        if fate == 0:  # goes on while others are asked for
            run.held[mechanism] = taken
        elif fate == 1:  # its process is gone
            taken.free()
        else:
            with taken:
                if fate == 3:
                    self.seen += 1
                    taken.seal(b"noise %d" % self.seen)

    @precondition(lambda self: any(run.held for run in self.runs.values()))
    @rule(data=st.data(), sealed=st.booleans())
    def end_held_work(self, data: Any, sealed: bool) -> None:
        held = [(name, each) for name, run in self.runs.items() for each in sorted(run.held)]
        name, mechanism = data.draw(st.sampled_from(held))
        reservation = self.runs[name].held.pop(mechanism)
        with reservation:
            if sealed:
                reservation.seal(b"late")

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), refused=st.booleans())
    def end(self, data: Any, refused: bool) -> None:
        """Close or refuse a run; the rest returns."""
        name = data.draw(st.sampled_from(sorted(self.runs)))
        run = self.runs[name]
        if refused:
            self.open[0].refuse(name, "operator")
            run.ended = True
        else:
            with contextlib.suppress(LedgerError):  # work goes on in it
                self.open[0].close_run(name)
                run.ended = True

    @rule(factor=st.sampled_from([1.0, 1.5]), side=st.sampled_from([0, 1]))
    def raise_cap(self, factor: float, side: int) -> None:
        if self.cap[0] * factor <= 5:
            self.cap = (self.cap[0] * factor, self.cap[1])
            self.open[side].raise_cap(*self.cap)

    # What always holds.

    @invariant()
    def nothing_executed_passes_the_cap(self) -> None:
        executed = self.executed()
        assert self.epsilon(executed) <= self.cap[0]
        account = self.open[1].account()
        assert account.order == self.order, "the order changed"
        counted = float(sum(account.divergences().values()))
        assert counted >= executed

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        for run in self.runs.values():
            for reservation in run.held.values():
                reservation.free()
        for ledger in self.open:
            ledger.close()
        self.folder.cleanup()
        events = [
            event(PLANS[run.number], each) for run in self.runs.values() for each in run.taken
        ]
        if events:
            # A sequence as it stands, by an accountant that is tighter and no filter.
            whole = epsilon_of(dp_accounting.ComposedDpEvent(events), self.cap[1], 2e-3)
            assert whole <= self.cap[0], "passes the cap by PLD"


def run_filter_machine(examples: int, steps: int, **more: Any) -> None:
    run_state_machine_as_test(
        FilterMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )
