"""The ledger's rules one by one, each on both of its sides."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.ledger.hash_chain import Entry
from hdpfl_flower.ledger.ledger import Ledger
from tests.hdpfl_flower.ledger.releases import (
    PLAN,
    ask,
    open_ledger,  # noqa: F401
    release,
    reserve,
    small_ledger,  # noqa: F401
)

WRONG = [(math.nan, 1e-5), (1.0, math.nan), (-1.0, 1e-5), (1.0, -1e-5)]
EXTRA = 3
"""SQLite's level of ``synchronous`` that waits for the folder, too."""


def entries(ledger: Ledger) -> int:
    (last,) = ledger._chain._db.execute("SELECT max(seq) FROM entries").fetchone()
    return int(last)


def status(ledger: Ledger, **key: object) -> str:
    return ledger.account().releases[ask(**key).key].status  # type: ignore[arg-type]


# What is charged.


@pytest.mark.parametrize("wrong", WRONG)
def test_caps_are_valid_numbers(ledger: Ledger, tmp_path: Path, wrong: tuple[float, float]) -> None:
    with pytest.raises(LedgerError, match="not negative"):
        Ledger.create(tmp_path / "new.sqlite", *wrong)
    assert not (tmp_path / "new.sqlite").exists()
    with pytest.raises(LedgerError, match="not negative"):
        ledger.raise_cap(*wrong)
    before = entries(ledger)
    with pytest.raises(LedgerError, match="not negative"):
        ledger.reserve(ask(), ChargedPlan("{}", "{}", *wrong))
    assert entries(ledger) == before


def test_either_cap_is_raised_alone_and_neither_is_lowered(ledger: Ledger) -> None:
    ledger.raise_cap(3.0, 2e-5)
    ledger.raise_cap(4.0, 2e-5)
    for lower in ((3.9, 3e-5), (5.0, 1e-5)):
        with pytest.raises(LedgerError, match="only be raised"):
            ledger.raise_cap(*lower)
    assert (ledger.account().cap_epsilon, ledger.account().cap_delta) == (4.0, 2e-5)


def test_the_profiles_own_delta_counts_where_it_is_lower(ledger: Ledger) -> None:
    release(ledger, ask("a"), cap=(math.inf, 1.5e-6))
    with pytest.raises(Declined, match="budget"):
        ledger.reserve(ask("b"), PLAN, cap=(math.inf, 1.5e-6))
    release(ledger, ask("b"), cap=(math.inf, 2e-6))


def test_a_frozen_plan_is_seen_by_every_process(ledger: Ledger, path: Path) -> None:
    other = Ledger(path)
    assert ledger.frozen_plan("run") is None
    release(ledger, ask())
    assert ledger.frozen_plan("run") == PLAN
    assert other.frozen_plan("run") == PLAN
    assert other.frozen_plan("another") is None


def test_a_release_without_a_plan_charges_nothing_beside_a_run_with_one(ledger: Ledger) -> None:
    metrics = ask(kind="metrics")
    release(ledger, metrics, plan=None)
    assert ledger.account().plans == {}
    release(ledger, ask())
    release(ledger, ask(server_round=2, kind="metrics"), plan=None)
    assert ledger.account().spent() == (PLAN.epsilon, PLAN.delta)


def test_a_site_that_told_one_epsilon_is_asked_for_no_other(ledger: Ledger) -> None:
    release(ledger, replace(ask(), epsilon=2.0), plan=None)
    with pytest.raises(Declined, match="changed during the run"):
        ledger.reserve(replace(ask(server_round=2), epsilon=3.0), None)


# What is on disk.


def test_it_waits_for_the_disk_unless_it_is_a_simulations(tmp_path: Path) -> None:
    made = Ledger.create(tmp_path / "a.sqlite", 3.0, 1e-5)
    for ledger in (made, Ledger(tmp_path / "a.sqlite")):
        assert ledger._chain._db.execute("PRAGMA synchronous").fetchone() == (EXTRA,)
        release(ledger, ask(f"run {id(ledger)}"))
        assert ledger._chain.blob(max(r.seq for r in ledger.account().releases.values()))


def test_another_runs_payload_is_kept_however_far_this_run_is(ledger: Ledger) -> None:
    release(ledger, ask("a"), b"of run a")
    release(ledger, ask("b", 9), b"of run b")
    release(ledger, ask("b", 9, kind="choice"), b"a choice")
    release(ledger, ask("b", 20, kind="choice"), b"another choice")
    assert ledger.reserve(ask("a"), PLAN) == b"of run a"
    assert ledger.reserve(ask("b", 9), PLAN) == b"of run b"


# What a release can become.


def test_sent_is_noted_once_and_never_of_what_was_lost(ledger: Ledger) -> None:
    release(ledger, ask())
    before = entries(ledger)
    ledger.mark_sent(ask().key)
    assert entries(ledger) == before
    with reserve(ledger, ask(server_round=2)):
        pass
    ledger.mark_sent(ask(server_round=2).key)
    assert status(ledger, server_round=2) == "lost"


def test_only_its_own_reservation_is_given_up(ledger: Ledger) -> None:
    taken = reserve(ledger, ask())
    seq = ledger.account().releases[ask().key].seq
    ledger.lose(ask().key, seq + 1)
    assert status(ledger) == "reserved"
    taken.seal(b"noisy")
    ledger.lose(ask().key, seq)
    ledger.lose(ask().key, seq + 1)
    assert status(ledger) == "sealed"
    taken.free()


def test_an_old_attempt_cannot_seal_or_lose_a_new_one(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "simulated.sqlite", 3.0, 1e-5, durable=False)
    old = reserve(ledger, ask(), again=True)
    ledger.lose(ask().key, ledger.account().releases[ask().key].seq)
    new = reserve(ledger, ask(), again=True)
    with pytest.raises(LedgerError, match="given up meanwhile"):
        old.seal(b"too late")
    old.__exit__()
    assert status(ledger) == "reserved"
    assert new.seal(b"noisy") == b"noisy"
    new.free()


def test_only_a_simulation_that_asks_for_it_works_again(ledger: Ledger, tmp_path: Path) -> None:
    release(ledger, ask())
    assert ledger.reserve(ask(), PLAN, again=True) == b"noisy"
    simulated = Ledger.create(tmp_path / "simulated.sqlite", 3.0, 1e-5, durable=False)
    release(simulated, ask())
    with pytest.raises(Declined, match="no longer kept"):
        simulated.reserve(ask(), PLAN)
    release(simulated, ask(), again=True)


def test_a_lost_release_is_lost_once(ledger: Ledger) -> None:
    with reserve(ledger, ask()):
        pass
    before = entries(ledger)
    for _ in range(2):
        with pytest.raises(Declined, match="is lost"):
            ledger.reserve(ask(), PLAN)
    assert entries(ledger) == before


def test_what_broke_off_is_the_last_that_was_taken(ledger: Ledger) -> None:
    assert ledger.broken_off() is None
    reserve(ledger, ask()).free()  # its process is gone
    assert ledger.broken_off() == ask().key
    release(ledger, ask(server_round=2))
    assert ledger.broken_off() is None
    reserve(ledger, ask(server_round=3)).free()
    assert ledger.broken_off() == ask(server_round=3).key


# What fails at the last moment.


def test_unwritten_reservations_lock_not(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction = ledger._chain.transaction

    @contextlib.contextmanager
    def disk_full() -> Iterator[list[Entry]]:
        with transaction() as new:
            yield new
            raise LedgerError("ledger: the disk is full")

    seq = entries(ledger) + 2  # after the plan's
    with monkeypatch.context() as patch:
        patch.setattr(ledger._chain, "transaction", disk_full)
        with pytest.raises(LedgerError, match="disk is full"):
            ledger.reserve(ask(), PLAN)
    ledger._lock(seq).free()
    assert release(ledger, ask()) == b"noisy"


def test_a_lock_that_another_process_still_holds_takes_no_release(ledger: Ledger) -> None:
    held = ledger._lock(entries(ledger) + 2)
    with pytest.raises(LedgerError, match="another process holds it"):
        ledger.reserve(ask(), PLAN)
    assert ledger.account().releases == {}
    assert ledger.account().plans == {}
    held.free()
    assert release(ledger, ask()) == b"noisy"


def test_the_lock_of_a_release_ends_with_its_work(ledger: Ledger) -> None:
    release(ledger, ask())
    assert [*ledger._locks.iterdir()] == []
    with pytest.raises(ZeroDivisionError), reserve(ledger, ask(server_round=2)):
        assert len([*ledger._locks.iterdir()]) == 1
        raise ZeroDivisionError
    assert [*ledger._locks.iterdir()] == []
    assert status(ledger, server_round=2) == "lost"
