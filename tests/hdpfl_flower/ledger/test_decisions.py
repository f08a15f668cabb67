"""An operator's decision on a run is in the chain, and obeyed by all that can read it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hdpfl_flower.errors import Declined, LedgerError, Refused
from hdpfl_flower.ledger.account import Account, Request, check_cost, sum_within
from hdpfl_flower.ledger.hash_chain import Chain, Entry
from hdpfl_flower.ledger.ledger import Approval, Ledger
from hdpfl_tools.site.ledger_checks.invariants import after_close, after_refusal
from tests.hdpfl_flower.ledger.releases import ask, open_ledger, release, reserve, small_ledger

__all__ = ["open_ledger", "small_ledger"]
APPROVAL = Approval("run", "digest", '{"rounds":3}', "app", "ada")


def kinds(path: Path) -> list[str]:
    with Chain(path).transaction() as entries:
        assert list(after_refusal(entries)) == []
        return [entry.kind for entry in entries]


def test_both_decisions_are_kept_once(path: Path, ledger: Ledger) -> None:
    for _ in range(2):
        ledger.approve(APPROVAL)
    for _ in range(2):
        ledger.refuse("run", "ada")
    ledger.close()
    again = Ledger(path).account()
    assert again.approved == {"run": {"digest"}} and again.refused == {"run"}
    assert kinds(path).count("approved") == kinds(path).count("refused") == 1
    with Chain(path).transaction() as entries:
        (entry,) = [each for each in entries if each.kind == "approved"]
    assert entry.body == {
        "run_id": "run", "request": "digest", "terms": '{"rounds":3}', "app": "app", "by": "ada",
    }  # fmt: skip


def test_nothing_follows_a_refusal_and_other_runs_go_on(path: Path, ledger: Ledger) -> None:
    release(ledger, ask())
    ledger.refuse("run", "ada")
    with pytest.raises(Refused):
        reserve(ledger, ask(server_round=2, digest="e"))
    with pytest.raises(Refused):  # nor are old bytes sent again
        ledger.reserve(ask(), None)
    with pytest.raises(LedgerError, match="a refusal is final"):
        ledger.approve(APPROVAL)
    release(ledger, ask("other"))
    assert "refused" in kinds(path)


def test_a_forged_release_after_a_refusal_is_found() -> None:
    reserved = {"run_id": "run", "round": 1, "kind": "update", "request": "d"}
    entries = [
        Entry(1, "", "reserved", reserved),
        Entry(2, "", "refused", {"run_id": "run", "by": "ada"}),
        Entry(3, "", "sealed", {"release": 1, "payload": "aa"}),
        Entry(4, "", "approved", APPROVAL.entry()),
        Entry(5, "", "reserved", {**reserved, "round": 2}),
    ]
    assert len(list(after_refusal(entries))) == 2
    assert list(after_refusal(entries[:3])) == []


# --- a run that is closed at a site: nothing of it is released any more, and the chain shows it


@pytest.mark.parametrize("kind", ["update", "counts", "tuning", "metrics", "choice"])
def test_no_release_follows_of_whichever_kind(ledger: Ledger, kind: str) -> None:
    release(ledger, ask())
    ledger.close_run("run")
    with pytest.raises(Declined, match="closed at this site"):
        reserve(ledger, ask(server_round=2, digest="e", kind=kind))
    with pytest.raises(Declined, match="closed at this site"):  # nor are old bytes sent again
        ledger.reserve(ask(), None)
    release(ledger, ask("other"))  # other runs go on


def test_it_stays_closed_and_a_second_time_changes_nothing(path: Path, ledger: Ledger) -> None:
    release(ledger, ask())
    ledger.close_run("run")
    ledger.close_run("run")
    ledger.close()
    again = Ledger(path)
    assert again.account().closed == {"run"}
    with Chain(path).transaction() as entries:
        assert [entry.kind for entry in entries].count("closed") == 1
        assert list(after_close(entries)) == []


def test_what_runs_or_is_unknown_is_not_closed(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="no such run"):
        ledger.close_run("run")
    with reserve(ledger, ask()), pytest.raises(LedgerError, match="in progress"):
        ledger.close_run("run")
    ledger.close_run("run")  # it was given up
    assert ledger.account().releases["run", 1, "update"].status == "lost"


def test_a_forged_release_after_the_end_is_found() -> None:
    reserved = {"run_id": "run", "round": 1, "kind": "update", "request": "d"}
    entries = [
        Entry(1, "", "reserved", reserved),
        Entry(2, "", "closed", {"run_id": "run"}),
        Entry(3, "", "reserved", {**reserved, "round": 2}),
        Entry(4, "", "sealed", {"release": 3, "payload": "aa"}),
    ]
    assert len(list(after_close(entries))) == 2
    assert list(after_close(entries[:2])) == []


# --- what an account's entries say, and its sums, number by number


@pytest.mark.parametrize("wrong", [-1e-300, -0.5, -1.0, -math.inf, math.nan])
def test_a_cost_is_never_negative_and_always_a_number(wrong: float) -> None:
    for epsilon, delta in ((wrong, 1e-5), (1.0, wrong), (wrong, wrong)):
        with pytest.raises(LedgerError, match="not negative"):
            check_cost(epsilon, delta)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (1.0, 0.0), (0.0, 0.0), (0.5, 0.5), (math.inf, 1e-5)]
)
def test_a_cost_may_be_nothing_or_infinite(epsilon: float, delta: float) -> None:
    check_cost(epsilon, delta)


@pytest.mark.parametrize(
    ("values", "limit", "expected"),
    [
        ([], 0.0, True),
        ([0.1] * 10, 1.0, True),
        ([0.1] * 11, 1.0, False),
        ([1.0, 1e300], math.inf, True),
        ([math.inf], math.inf, True),
        ([math.inf], 1e300, False),
        ([], -math.inf, False),
        ([0.0], -math.inf, False),
        ([math.inf], -math.inf, False),
    ],
)
def test_a_sum_fits_below_its_limit(values: list[float], limit: float, expected: bool) -> None:
    assert sum_within(values, limit) is expected


def test_nothing_is_allowed_before_a_cap_is_written() -> None:
    account = Account()
    assert (account.cap_epsilon, account.cap_delta, account.spent()) == (0.0, 0.0, (0.0, 0.0))


def asked(epsilon: float | None, server_round: int = 1, run: str = "a") -> Request:
    return Request(run, server_round, "clipped-update", "d" * 64, epsilon)


def test_an_epsilon_that_the_server_was_told_is_kept_and_holds_for_its_run() -> None:
    assert asked(None).entry() == {
        "run_id": "a",
        "round": 1,
        "kind": "clipped-update",
        "request": "d" * 64,
    }
    assert asked(2.5).entry() == {**asked(None).entry(), "told": 2.5}
    account = Account()
    account.check_declared(asked(2.5))
    account.apply(Entry(1, "", "reserved", asked(None).entry()))
    assert account.declared == {}
    account.apply(Entry(2, "", "reserved", asked(2.5, 2).entry()))
    assert account.declared == {"a": 2.5}
    account.check_declared(asked(2.5, 3))
    account.check_declared(asked(None, 3))
    account.check_declared(asked(9.0, 3, "b"))
    with pytest.raises(Declined, match=r"'run.epsilon' changed during the run"):
        account.check_declared(asked(9.0, 3))
