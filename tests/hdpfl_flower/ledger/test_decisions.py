"""An operator's decision on a run is in the chain, and obeyed by all that can read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpfl_flower.errors import LedgerError, Refused
from hdpfl_flower.ledger.account import Approval
from hdpfl_flower.ledger.hash_chain import Chain, Entry
from hdpfl_flower.ledger.invariants import after_refusal
from hdpfl_flower.ledger.ledger import Ledger
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
