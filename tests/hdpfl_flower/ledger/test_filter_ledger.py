"""A ledger whose promise a Rényi filter holds: what a run reserves, and what returns at its end."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path

import pytest

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.new_chain import create_chain
from hdpfl_flower.ledger.renyi import capacity, prices_of
from hdpfl_flower.privacy.accounting import Gaussians, Steps
from hdpfl_flower.privacy.plan import Plan
from hdpfl_tools.site.ledger_checks.invariants import above_cap, check_entries, undercharged
from tests.hdpfl_flower.ledger.releases import ask, release, reserve

ORDER, CAP = 8, (3.0, 1e-5)
ROUNDS = 10
SENT = ("scores", Gaussians(15.0, 1))
PLAN = Plan(1.0, 1e-6, 20.0, 20.0, (Steps(0.2, 50),) * ROUNDS, 0.1, 1.0, releases=(SENT,))
FROZEN = ChargedPlan(PLAN.to_json(), "{}", PLAN.epsilon, PLAN.delta)
ROUND, SCORES = prices_of(PLAN, ORDER)
WHOLE = ROUND.each * ROUNDS + SCORES.each


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    Ledger.create(tmp_path / "ledger.sqlite", *CAP, order=ORDER).close()
    return tmp_path / "ledger.sqlite"


@pytest.fixture(name="ledger")
def _ledger(path: Path) -> Ledger:
    return Ledger(path)


def full(ledger: Ledger) -> float:
    return float(sum(ledger.account().divergences().values()))


def fill(ledger: Ledger) -> int:
    """Charge runs until one is declined; return how many were."""
    for number in range(1000):
        try:
            release(ledger, ask(f"run-{number}"), plan=FROZEN)
        except Declined as reason:
            assert "budget" in str(reason)
            return number
    raise AssertionError


def test_as_many_runs_fit_as_the_capacity_holds_whole(ledger: Ledger) -> None:
    assert fill(ledger) == math.floor(capacity(ORDER, *CAP) / WHOLE)
    assert full(ledger) <= capacity(ORDER, *CAP)


@pytest.mark.parametrize("end", ["close_run", "refuse"])
def test_at_the_end_what_was_never_reserved_returns(ledger: Ledger, end: str) -> None:
    runs = fill(ledger)
    with reserve(ledger, ask("run-0", 2), plan=FROZEN):
        pass  # lost
    assert full(ledger) == pytest.approx(runs * WHOLE), "while it is open, all of it is reserved"
    if end == "refuse":
        ledger.refuse("run-0", "operator")
    else:
        ledger.close_run("run-0")
    assert full(ledger) == pytest.approx((runs - 1) * WHOLE + 2 * ROUND.each)
    with pytest.raises(Declined):
        reserve(ledger, ask("run-0", 3), plan=FROZEN)
    ledger.close_run("run-1")
    release(ledger, ask("one more"), plan=FROZEN)


def test_scores_that_left_stay_charged(ledger: Ledger) -> None:
    release(ledger, ask(), plan=FROZEN)
    release(ledger, ask(kind="scores"), plan=FROZEN)
    ledger.close_run("run")
    assert full(ledger) == pytest.approx(ROUND.each + SCORES.each)


def test_work_that_goes_on_at_a_refusal_stays_charged(ledger: Ledger) -> None:
    with reserve(ledger, ask(), plan=FROZEN) as going_on:
        ledger.refuse("run", "operator")
        assert full(ledger) == ROUND.each
        going_on.seal(b"late")
    assert full(ledger) == ROUND.each


def test_under_the_sum_nothing_returns(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "other.sqlite", *CAP)
    release(ledger, ask(), plan=FROZEN)
    ledger.close_run("run")
    assert ledger.account().spent() == (PLAN.epsilon, PLAN.delta)
    for number in range(2):
        release(ledger, ask(f"run-{number}"), plan=FROZEN)
    with pytest.raises(Declined, match="budget"):
        reserve(ledger, ask("one more"), plan=FROZEN)


def test_no_more_leaves_than_the_plan_has_prices_for(ledger: Ledger) -> None:
    for server_round in range(1, ROUNDS + 1):
        release(ledger, ask(server_round=server_round), plan=FROZEN)
    for kind, server_round in (("update", ROUNDS + 1), ("choice", 1), ("counts", 1)):
        with pytest.raises(Declined, match="does not pay"):
            reserve(ledger, ask(kind=kind, server_round=server_round), plan=FROZEN)
    with pytest.raises(Declined, match="does not pay"):
        reserve(ledger, ask("other", kind="choice"), plan=FROZEN)
    assert set(ledger.account().plans) == {"run"}, "what was declined was not charged"


def test_a_lower_cap_of_the_profile_counts(ledger: Ledger) -> None:
    with pytest.raises(Declined, match="budget"):
        reserve(ledger, ask(), plan=FROZEN, cap=(1.3, 1e-5))
    with pytest.raises(Declined, match="budget"):
        reserve(ledger, ask(), plan=FROZEN, cap=(3.0, 1e-11))
    release(ledger, ask(), plan=FROZEN, cap=(2.5, 1e-5))


def test_a_raised_cap_has_more_capacity_at_the_same_order(ledger: Ledger) -> None:
    runs = fill(ledger)
    ledger.raise_cap(5.0, 1e-5)
    assert ledger.account().order == ORDER
    release(ledger, ask("later"), plan=FROZEN)
    assert math.floor(capacity(ORDER, 5.0, 1e-5) / WHOLE) > runs


def test_a_plan_without_noise_never_fits_under_a_finite_cap(ledger: Ledger, tmp_path: Path) -> None:
    bare = Plan(math.inf, 1e-6, 0.0, 20.0, (Steps(0.2, 5),), 0.1, 1.0)
    frozen = ChargedPlan(bare.to_json(), "{}", math.inf, 1e-6)
    with pytest.raises(Declined, match="budget"):
        reserve(ledger, ask(), plan=frozen)
    endless = Ledger.create(tmp_path / "endless.sqlite", math.inf, 1e-5, order=2)
    release(endless, ask(), plan=frozen)
    release(endless, ask("other"), plan=FROZEN)


def forged(path: Path, change: float) -> None:
    """Rewrite the ledger with other divergences in its plans, all digests right."""
    with Chain(path).transaction() as entries:
        pass
    path.unlink()
    chain = create_chain(path)
    with chain.transaction():
        for entry in entries:
            body = json.loads(json.dumps(entry.body))
            for price in body.get("prices", ()):
                price[2] *= change
            chain.append(entry.kind, body, entry.at)
    chain.close()


@pytest.mark.parametrize("change", [0.5, 0.0, math.nan])
def test_a_ledger_without_recount_sends_none(path: Path, ledger: Ledger, change: float) -> None:
    release(ledger, ask("run-7"), plan=FROZEN)
    ledger.close()
    forged(path, change)
    with pytest.raises(LedgerError, match="'run-7'"):
        Ledger(path)
    with Chain(path).transaction() as entries:
        assert any("run-7" in found for found in undercharged(entries))


def test_a_ledger_without_the_prices_of_a_run_sends_nothing(path: Path, ledger: Ledger) -> None:
    release(ledger, ask("run-7"), plan=FROZEN)
    ledger.close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM entries WHERE body LIKE '%prices%'").fetchone()[0]
    with Chain(path).transaction() as entries:
        pass
    path.unlink()
    chain = create_chain(path)
    with chain.transaction():
        for entry in entries:
            entry.body.pop("prices", None)
            chain.append(entry.kind, entry.body, entry.at)
    chain.close()
    with pytest.raises(LedgerError, match="'run-7'"):
        Ledger(path)


def test_the_invariants_hold_and_fail_of_one_run_more(path: Path, ledger: Ledger) -> None:
    fill(ledger)
    for run in ("run-0", "run-1"):
        ledger.close_run(run)
    release(ledger, ask("after"), plan=FROZEN)
    with Chain(path).transaction() as entries:
        # ε of these plans is a nominal one.
        failed = {each.name for each in check_entries(entries) if each.failures}
        assert failed <= {"recount"}
        assert not list(above_cap(entries))
        plan = next(entry for entry in entries if entry.kind == "plan")
        # The end of the first run, without which the last one did not fit.
        open_still = [entry for entry in entries if entry.kind != "closed"]
        assert len(list(above_cap(open_still))) == 1
        assert list(
            above_cap(
                [
                    *entries,
                    plan.__class__(99, "", "plan", {**plan.body, "run_id": "x"}),
                    plan.__class__(100, "", "plan", {**plan.body, "run_id": "y"}),
                ]
            )
        )
