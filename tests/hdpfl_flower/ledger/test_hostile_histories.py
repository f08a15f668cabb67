"""Hostile histories of a ledger: each noise call that ran is priced by dp-accounting.

A noise call is what a site's training draws: so many steps, with a sampling probability and a noise
over the sensitivity that its round names. Nothing here reads a price, a schedule or an event of the
code: the models of a round follow from the terms, and prices from dp-accounting alone. At any time
executed ≤ counted ≤ cap, for up to nine runs at once, with refunds, crashes, replays, late rounds
and raised caps.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.renyi import prices_of
from hdpfl_flower.ledger.site_ledger import Reservation
from hdpfl_flower.privacy.accounting import Gaussians, PureSelections, epsilon_of
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_tools.site.reports.lifetime import order_for
from tests.hdpfl_flower.ledger.plans import profile, terms

CLIP = 2.0
DELTA = 1e-5
SITE = profile(
    run={"epsilon": 0.8, "delta": 1e-6},
    budget={"epsilon": 3.0, "delta": DELTA},
    training={"batch-size": 50, "declared-records": 500},
)
ASKED = tuple(
    terms(**{"rounds": 3, "local_steps": 6, **more})
    for more in (
        {},
        {"second": {"kind": "private", "pull": 0.1}},
        {"spend": {"kind": "late", "ratio": 3}, "second": {"kind": "private", "pull": 0.1}},
        {
            "work": {"kind": "plain", "first-batch": "full"},
            "second": {"kind": "private", "pull": 0.1},
        },
        {"spend": {"kind": "late", "ratio": 3}, "work": {"kind": "plain", "first-batch": "full"}},
        {"rounds": 5, "participations": 2},
        {"after": {"tuning": {"steps": 7}, "prior": {"share": 0.1}, "scores": {"share": 0.1}}},
        {
            "choice": {"kind": "gaussian", "times": 2, "share": 0.1},
            "work": {"kind": "plain", "first-batch": "full"},
        },
        {"choice": {"kind": "gumbel", "times": 2, "share": 0.1}},
        {"noise": "client"},
        {"noise_multiplier": 9.0, "rounds": 4},
        {"noise": "shared", "local_steps": 0, "spare_rounds": 0.5},
        {
            "noise": "shared",
            "local_steps": 0,
            "spend": {"kind": "late", "ratio": 3},
            "second": {"kind": "private", "pull": 0.1},
            "after": {"prior": {"share": 0.1}},
        },
    )
)
Call = tuple[float, float, int]
"""Sampling probability of a step, noise over the sensitivity, and steps; pure ε: (0, ε, 1)."""
KINDS = ("update", "choice", "tuning", "counts", "scores")


@lru_cache
def plan_of(number: int) -> tuple[Plan, ChargedPlan]:
    plan = make_plan(SITE, ASKED[number])
    return plan, ChargedPlan(plan.to_json(), "{}", plan.epsilon, plan.delta)


def calls(plan: Plan, asked: RunTerms, kind: str, server_round: int) -> Iterator[Call]:
    """Yield the noise calls of a release, as a site's training makes them."""
    if kind in ("update", "tuning"):
        tuning = kind == "tuning"
        this = plan.steps_beside(kind, CLIP) if tuning else plan.round(server_round, CLIP)
        sensitivity = CLIP * (2 if asked.noise == "client" else 1)
        models = (
            2 if kind == "update" and asked.second is not None and asked.second.models == 2 else 1
        )
        noise = this.noise_std / sensitivity
        yield from [(this.steps.sampling_prob, noise, this.steps.count)] * models
        return
    release = plan.cost_of(kind)
    if isinstance(release, PureSelections):
        yield 0.0, release.epsilon, 1
    elif isinstance(release, Gaussians):
        yield 1.0, release.noise_multiplier, 1


def event(call: Call) -> dp_accounting.DpEvent:
    q, noise, steps = call
    step: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise)
    if q < 1:
        step = dp_accounting.PoissonSampledDpEvent(q, step)
    return dp_accounting.SelfComposedDpEvent(step, steps)


@lru_cache
def divergence(call: Call, order: int) -> float:
    """Return a call's Rényi divergence, by dp-accounting."""
    if not call[0]:  # randomized response, of which the library has no divergence
        p = 1 / (1 + math.exp(-call[1]))
        moment = p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)
        return math.log(moment) / (order - 1)
    return float(RdpAccountant(orders=[order]).compose(event(call))._rdp[0])


@dataclass
class History:
    """Ledger of one site with what was executed under it.

    Attributes:
        path: of the ledger.
        dice: draws what the server and the site do next.
        executed: noise calls that ran.
        numbers: run → place of its terms.
        held: reservations whose work goes on.
    """

    path: Path
    dice: random.Random
    composition: str
    executed: list[Call] = field(default_factory=list)
    charged: dict[str, list[Call]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    held: list[Reservation] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Create the ledger."""
        self.cap = self.dice.choice((0.9, 2.0, 3.0))
        self.order = order_for(self.cap, DELTA)
        order = self.order if self.composition == "renyi" else 0
        Ledger.create(self.path, self.cap, DELTA, order=order, durable=False).close()
        self.ledgers = [Ledger(self.path, durable=False) for _ in range(2)]

    def play(self, moves: int) -> None:
        """Make ``moves`` moves and check after each."""
        for _ in range(moves):
            move = self.dice.choices(
                (self.ask, self.start, self.let_go, self.end, self.crash, self.raise_cap),
                (10, 4, 3, 2, 1, 1),
            )[0]
            move()
            self.check()
        while self.held:
            self.let_go()
        for ledger in self.ledgers:
            ledger.close()

    def start(self) -> None:
        """Begin a run; at most nine are open at once."""
        if len(self.numbers) - len(self.ended) < 9:
            run = f"run-{len(self.numbers)}"
            self.numbers[run] = self.dice.randrange(len(ASKED))
            self.release(run, "update", 1)

    def ask(self) -> None:
        """Ask for a release of any run and round, paid for or not, late, again, or after its end.

        A run ended or declined is asked as well.
        """
        if self.numbers:
            run = self.dice.choice(sorted(self.numbers))
            self.release(
                run, self.dice.choice((*KINDS, "update", "update")), self.dice.randint(1, 6)
            )

    def release(self, run: str, kind: str, server_round: int) -> None:
        plan, frozen = plan_of(self.numbers[run])
        digest = self.dice.choice(("same", "same", "other"))
        ledger, most = self.dice.choice(self.ledgers), 0
        if self.composition == "sum":  # as the app asks: this ledger has no prices
            most = plan.paid(kind)
            if not most or not plan.covers(server_round):
                return
        try:
            request = Request(run, server_round, kind, digest)
            taken = ledger.reserve(request, frozen, max_releases=most)
        except Declined:
            return
        if isinstance(taken, bytes):  # what left before leaves again: nothing is drawn
            return
        ran = [*calls(plan, ASKED[self.numbers[run]], kind, server_round)]
        self.executed += ran
        self.charged.setdefault(run, []).extend(ran)
        fate = self.dice.random()
        if fate < 0.3:
            self.held.append(taken)
        elif fate < 0.4:
            taken.free()  # its process is gone
        else:
            with taken:
                if fate < 0.9:
                    taken.seal(b"noise")

    def let_go(self) -> None:
        """End work that went on, sealed or lost."""
        if self.held:
            with self.held.pop(self.dice.randrange(len(self.held))) as taken:
                if self.dice.random() < 0.7:
                    with contextlib.suppress(LedgerError):  # given up meanwhile
                        taken.seal(b"late")

    def end(self) -> None:
        """Close or refuse a run: what was never reserved returns."""
        if not self.numbers:
            return
        run, ledger = self.dice.choice(sorted(self.numbers)), self.dice.choice(self.ledgers)
        with contextlib.suppress(LedgerError):  # its work goes on, or it was never charged
            if self.dice.random() < 0.5:
                ledger.refuse(run, "operator")
            else:
                ledger.close_run(run)
            self.ended.add(run)

    def crash(self) -> None:
        """Let the processes of all work die, and a new one read the ledger."""
        for taken in self.held:
            taken.free()
        self.held.clear()
        place = self.dice.randrange(2)
        self.ledgers[place].close()
        self.ledgers[place] = Ledger(self.path, durable=False)

    def raise_cap(self) -> None:
        """Raise the cap, to ε 4 at most."""
        if self.cap < 3.5:
            self.cap += 0.5
            try:
                self.dice.choice(self.ledgers).raise_cap(self.cap, DELTA)
            except LedgerError:
                pytest.fail("the ledger's cap is above the one that was set")

    def check(self) -> None:
        """Fail unless executed ≤ counted ≤ cap."""
        account = self.dice.choice(self.ledgers).account()
        ran = math.fsum(divergence(call, self.order) for call in self.executed)
        if self.composition == "sum":
            assert account.spent()[0] <= self.cap
            assert account.spent()[1] <= DELTA
            assert set(self.charged) <= set(account.plans)
            return
        counted = float(sum(account.divergences().values()))
        assert ran <= counted, "more was executed than is counted"
        assert compute_epsilon([self.order], [counted], DELTA)[0] <= self.cap, "above the cap"

    def check_by_distributions(self) -> None:
        """Fail where the noise calls cost more than the cap by PLD, a tighter accountant."""
        gaussian = [event(call) for call in self.executed if call[0]]
        pure = math.fsum(call[1] for call in self.executed if not call[0])
        if gaussian:
            composed = dp_accounting.ComposedDpEvent(gaussian)
            assert epsilon_of(composed, DELTA, 2e-3) <= self.cap + pure
        for run, ran in self.charged.items() if self.composition == "sum" else ():
            _, frozen = plan_of(self.numbers[run])
            composed = dp_accounting.ComposedDpEvent([event(call) for call in ran if call[0]])
            assert epsilon_of(composed, frozen.delta, 1e-4) <= frozen.epsilon * 1.001


def play(seed: int, folder: Path, composition: str = "renyi") -> History:
    history = History(folder / f"{seed}.sqlite", random.Random(seed), composition)
    history.play(45)
    return history


def test_no_history_executes_more_than_is_counted_or_the_cap_holds(tmp_path: Path) -> None:
    histories = [play(seed, tmp_path) for seed in range(20)]
    ran = sum(len(history.executed) for history in histories)
    assert ran > 20 * 5, "the histories execute too little to show anything"
    assert any(history.ended for history in histories)
    full = [len(history.numbers) > len(history.charged) for history in histories]
    assert sum(full) > 6, "few caps were reached"


@pytest.mark.slow
@pytest.mark.parametrize("composition", ["renyi", "sum"])
def test_two_accountants_keep_histories_under_the_cap(composition: str, tmp_path: Path) -> None:
    for seed in range(1000, 1150):
        history = play(seed, tmp_path, composition)
        if seed % 10 == 0:
            history.check_by_distributions()


@pytest.mark.parametrize("number", range(len(ASKED)))
@pytest.mark.parametrize("order", [2, 7, 30])
def test_each_release_has_the_price_of_its_noise_calls(number: int, order: int) -> None:
    """At any order, of each kind and round: so many models, so much noise, so many records."""
    plan, _ = plan_of(number)
    prices = {(price.kind, price.server_round): price for price in prices_of(plan, order)}
    assert sum(price.count for price in prices.values() if price.kind == "update") == plan.rounds
    for kind in KINDS:
        for server_round in range(1, plan.rounds + 1):
            price = prices.get((kind, server_round)) or prices.get((kind, 0))
            there = kind == "update" or plan.paid(kind)
            assert bool(price) == bool(there)
            if price:
                made = [*calls(plan, ASKED[number], kind, server_round)]
                cost = math.fsum(divergence(call, order) for call in made)
                assert cost * (1 - 1e-12) <= price.each <= cost * (1 + 1e-6) + 1e-11
