"""A simulated ledger in memory: the rules of every ledger, and a file when it closes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import Reservation
from hdpfl_tools.simulation.in_memory_ledger import MemoryChain, SimulatedLedger

PLAN = ChargedPlan("{}", "{}", epsilon=1.0, delta=1e-6)


def ask(run: str = "run", server_round: int = 1, digest: str = "d") -> Request:
    return Request(run, server_round, "update", digest)


def release(ledger: Ledger, request: Request, **more: object) -> None:
    taken = ledger.reserve(request, PLAN, again=True, **more)  # type: ignore[arg-type]
    assert isinstance(taken, Reservation)
    with taken:
        taken.seal(b"noisy")
    ledger.mark_sent(request.key)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sites" / "0" / "ledger.sqlite"


def test_its_file_comes_at_the_end_and_says_what_it_said(path: Path) -> None:
    ledger = SimulatedLedger(path, 3.0, 1e-5)
    release(ledger, ask())
    release(ledger, ask(server_round=2))
    assert not path.parent.exists()
    ledger.close()
    with_file = Ledger(path, durable=False)  # checks every digest
    assert with_file.account() == ledger.account()
    assert with_file.account().spent() == (1.0, 1e-6)
    with_file.close()


def test_it_goes_on_where_its_file_ends(path: Path) -> None:
    for server_round in (1, 2):
        ledger = SimulatedLedger(path, 3.0, 1e-5)
        release(ledger, ask(server_round=server_round))
        ledger.close()
        ledger.close()  # there is nothing new: nothing is written twice
    account = Ledger(path, durable=False).account()
    assert [key[1] for key in account.releases] == [1, 2]
    assert {release.status for release in account.releases.values()} == {"sealed"}
    assert (account.cap_epsilon, account.spent()[0]) == (3.0, 1.0)


def test_it_declines_what_every_ledger_declines(path: Path) -> None:
    ledger = SimulatedLedger(path, 1.5, 1e-5)
    release(ledger, ask(), max_releases=2)
    with pytest.raises(Declined, match="another request"):
        ledger.reserve(ask(digest="other"), PLAN, again=True)
    with pytest.raises(Declined, match="does not fit"):
        ledger.reserve(ask(run="another"), PLAN, again=True)
    release(ledger, ask(server_round=2), max_releases=2)
    with pytest.raises(Declined, match="used up"):
        ledger.reserve(ask(server_round=3), PLAN, again=True, max_releases=2)
    with pytest.raises(LedgerError, match="only be raised"):
        ledger.raise_cap(1.0, 1e-5)
    assert ledger.account().spent() == (1.0, 1e-6)


def test_work_that_fails_is_lost(path: Path) -> None:
    ledger = SimulatedLedger(path, 3.0, 1e-5)
    taken = ledger.reserve(ask(), PLAN)
    assert isinstance(taken, Reservation)
    with pytest.raises(ValueError, match="on purpose"), taken:
        raise ValueError("on purpose")
    (found,) = ledger.account().releases.values()
    assert found.status == "lost"
    with pytest.raises(Declined, match="lost"):
        ledger.reserve(ask(), PLAN)


def test_a_transaction_that_fails_leaves_nothing_and_gives_every_entry_again(path: Path) -> None:
    chain = MemoryChain(path)
    with chain.transaction():
        chain.append("cap", {"epsilon": 1.0, "delta": 0.1})
    with pytest.raises(ValueError, match="on purpose"), chain.transaction() as new:
        assert new == []
        chain.append("plan", {})
        raise ValueError("on purpose")
    with chain.transaction() as new:
        assert [(entry.seq, entry.kind) for entry in new] == [(1, "cap")]


def test_a_damaged_file_is_refused(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"torn")
    with pytest.raises(LedgerError):
        SimulatedLedger(path, 3.0, 1e-5)
