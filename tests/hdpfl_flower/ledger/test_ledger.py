"""The ledger's releases: charged before any work, one payload each, and none is refunded.

Each rule has its own test, and each test fails without the rule; the crash matrix and the state
machine over the ledger lie in tests/crash.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.ledger.ledger import Ledger
from tests.hdpfl_flower.ledger.releases import (
    PLAN,
    ask,
    open_ledger,  # noqa: F401
    release,
    reserve,
    small_ledger,  # noqa: F401
)


def test_a_plan_is_charged_once_before_any_work(ledger: Ledger) -> None:
    with reserve(ledger, ask()):
        assert ledger.account().spent() == (1.0, 1e-6)
    release(ledger, ask(server_round=2))
    assert ledger.account().spent() == (1.0, 1e-6)


def test_work_follows_the_plan_that_was_charged_and_no_other(ledger: Ledger, path: Path) -> None:
    """Two requests open a run at the same time under different terms: one of them is charged."""
    one, other = Ledger(path), ledger
    assert one.frozen_plan("run") is None
    assert other.frozen_plan("run") is None
    release(one, ask())
    with pytest.raises(Declined, match="another plan was frozen"):
        reserve(other, ask(server_round=2), ChargedPlan('{"less": "noise"}', "{}", 1.0, 1e-6))
    assert ("run", 2, "update") not in other.account().releases
    release(other, ask(server_round=2))


def test_the_same_request_gets_the_same_bytes(ledger: Ledger, path: Path) -> None:
    release(ledger, ask(), b"first")
    assert ledger.reserve(ask(), PLAN) == b"first"
    assert Ledger(path).reserve(ask(), PLAN) == b"first"


def test_another_request_for_a_taken_release_is_declined(ledger: Ledger) -> None:
    release(ledger, ask())
    with pytest.raises(Declined, match="another request"):
        ledger.reserve(ask(digest="other"), PLAN)


def test_payloads_are_kept_for_two_rounds_and_hashes_for_ever(ledger: Ledger) -> None:
    for server_round in (1, 2, 3):
        release(ledger, ask(server_round=server_round), b"round %d" % server_round)
    assert ledger.reserve(ask(server_round=3), PLAN) == b"round 3"
    assert ledger.reserve(ask(server_round=2), PLAN) == b"round 2"
    with pytest.raises(Declined, match="no longer kept"):
        ledger.reserve(ask(server_round=1), PLAN)
    with pytest.raises(Declined, match="another request"):
        ledger.reserve(ask(server_round=1, digest="other"), PLAN)


def test_work_that_fails_loses_its_release(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), reserve(ledger, ask()):
        _ = 1 / 0
    assert ledger.account().releases[ask().key].status == "lost"
    assert ledger.account().spent() == (1.0, 1e-6)
    with pytest.raises(Declined, match="lost"):
        ledger.reserve(ask(), PLAN)
    assert release(ledger, ask(server_round=2)) == b"noisy"


def test_a_simulation_may_take_a_lost_release_again(ledger: Ledger) -> None:
    with reserve(ledger, ask()):
        pass
    assert release(ledger, ask(), again=True) == b"noisy"


def test_a_release_being_worked_on_is_not_given_twice(ledger: Ledger, path: Path) -> None:
    with reserve(ledger, ask()) as reservation:
        with pytest.raises(Declined, match="in progress"):
            Ledger(path).reserve(ask(), PLAN)
        assert Ledger(path).broken_off() is None
        reservation.seal(b"mine")
    assert ledger.reserve(ask(), PLAN) == b"mine"
    assert ledger.broken_off() is None


def test_a_killed_process_leaves_a_lost_release(ledger: Ledger, path: Path) -> None:
    """Its lock is free as soon as it is gone; the release is taken, nothing is refunded."""
    script = f"""
import os, pathlib
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
ledger = Ledger(pathlib.Path({str(path)!r}))
ledger.reserve(Request("run", 1, "update", "d"), ChargedPlan("{{}}", "{{}}", 1.0, 1e-6))
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert ledger.account().releases[ask().key].status == "reserved"
    assert ledger.broken_off() == ask().key
    with pytest.raises(Declined, match="lost"):
        ledger.reserve(ask(), PLAN)
    assert ledger.broken_off() is None
    assert ledger.account().releases[ask().key].status == "lost"
    assert ledger.account().spent() == (1.0, 1e-6)
    assert not list((path.parent / "ledger.sqlite.locks").iterdir())


def test_a_result_that_comes_too_late_is_discarded(ledger: Ledger) -> None:
    reservation = reserve(ledger, ask())
    ledger.lose(ask().key, ledger.account().releases[ask().key].seq)
    with pytest.raises(LedgerError, match="discarded"):
        reservation.seal(b"late")
    assert ledger.account().releases[ask().key].status == "lost"


def test_a_fork_does_not_free_the_parents_lock(ledger: Ledger, path: Path) -> None:
    with reserve(ledger, ask()) as reservation:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(Declined, match="in progress"):
            Ledger(path).reserve(ask(), PLAN)
        reservation.seal(b"x")


def test_a_simulation_keeps_no_payload_and_works_again(tmp_path: Path) -> None:
    """Its noise is seeded: the same work gives the same bytes."""
    ledger = Ledger.create(tmp_path / "simulated.sqlite", 3.0, 1e-5, durable=False)
    assert release(ledger, ask(), b"noisy", again=True) == b"noisy"
    assert release(ledger, ask(), b"noisy", again=True) == b"noisy"
    assert ledger.account().spent() == (1.0, 1e-6)
    with pytest.raises(Declined, match="another request"):
        ledger.reserve(ask(digest="other"), PLAN, again=True)
