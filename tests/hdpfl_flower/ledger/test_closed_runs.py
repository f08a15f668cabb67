"""A run that is closed at a site: nothing of it is released any more, and the chain shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger.hash_chain import Chain, Entry
from hdpfl_flower.ledger.invariants import after_close
from hdpfl_flower.ledger.ledger import Ledger
from tests.hdpfl_flower.ledger.releases import ask, open_ledger, release, reserve, small_ledger

__all__ = ["open_ledger", "small_ledger"]


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
