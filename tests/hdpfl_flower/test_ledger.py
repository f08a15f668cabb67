"""The ledger's invariants: one payload a release, spent never falls and never passes the cap.

The crash matrix and the state machine over it belong to the issue that proves the promise; here
each rule has its own test, and each test fails without the rule.
"""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
from decimal import Decimal, getcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.account import FrozenPlan, Request, fits, sum_up
from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger import Ledger, Reservation

getcontext().prec = 60
PLAN = FrozenPlan("{}", "{}", epsilon=1.0, delta=1e-6)


def ask(
    run: str = "run", server_round: int = 1, digest: str = "d", kind: str = "update"
) -> Request:
    return Request(run, server_round, kind, digest)


def reserve(
    ledger: Ledger, request: Request, plan: FrozenPlan = PLAN, **more: object
) -> Reservation:
    taken = ledger.reserve(request, plan, **more)  # type: ignore[arg-type]
    assert isinstance(taken, Reservation)
    return taken


def release(ledger: Ledger, request: Request, payload: bytes = b"noisy", **more: object) -> bytes:
    with reserve(ledger, request, **more) as reservation:  # type: ignore[arg-type]
        sealed = reservation.seal(payload)
    ledger.mark_sent(request.key)
    return sealed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Ledger.create(tmp_path / "ledger.sqlite", 3.0, 1e-5).close()
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger(path)


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
        reserve(other, ask(server_round=2), FrozenPlan('{"less": "noise"}', "{}", 1.0, 1e-6))
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
        with pytest.raises(Declined, match="worked on"):
            Ledger(path).reserve(ask(), PLAN)
        assert Ledger(path).broken_off() is None
        reservation.seal(b"mine")
    assert ledger.reserve(ask(), PLAN) == b"mine"
    assert ledger.broken_off() is None


def test_a_killed_process_leaves_a_lost_release(ledger: Ledger, path: Path) -> None:
    """Its lock is free as soon as it is gone; the release is taken, nothing is refunded."""
    script = f"""
import os, pathlib
from hdpfl_flower.account import FrozenPlan, Request
from hdpfl_flower.ledger import Ledger
ledger = Ledger(pathlib.Path({str(path)!r}))
ledger.reserve(Request("run", 1, "update", "d"), FrozenPlan("{{}}", "{{}}", 1.0, 1e-6))
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


def test_the_cap_stops_a_run_before_it_begins(ledger: Ledger) -> None:
    for run in ("a", "b", "c"):
        release(ledger, ask(run))
    with pytest.raises(Declined, match="budget"):
        ledger.reserve(ask("d"), PLAN)
    assert ledger.account().spent()[0] == 3.0
    assert ask("d").key not in ledger.account().releases


def test_delta_has_a_cap_of_its_own(ledger: Ledger) -> None:
    big = FrozenPlan("{}", "{}", 0.1, 6e-6)
    release(ledger, ask("a"), plan=big)
    with pytest.raises(Declined, match="budget"):
        ledger.reserve(ask("b"), big)


def test_the_profiles_own_cap_counts_where_it_is_lower(ledger: Ledger) -> None:
    release(ledger, ask("a"), cap=(1.5, 1.0))
    with pytest.raises(Declined, match="budget"):
        ledger.reserve(ask("b"), PLAN, cap=(1.5, 1.0))
    assert release(ledger, ask("b"), cap=(math.inf, 1.0)) == b"noisy"


def test_runs_can_be_limited(ledger: Ledger) -> None:
    release(ledger, ask("a"), max_runs=1)
    release(ledger, ask("a", 2), max_runs=1)
    with pytest.raises(Declined, match="policy"):
        ledger.reserve(ask("b"), PLAN, max_runs=1)


def test_the_cap_is_raised_and_never_lowered(ledger: Ledger, path: Path) -> None:
    ledger.raise_cap(4.0, 1e-5)
    assert Ledger(path).account().cap_epsilon == 4.0
    with pytest.raises(LedgerError, match="only be raised"):
        ledger.raise_cap(3.5, 1e-5)


def test_an_infinite_budget_is_needed_for_no_privacy(tmp_path: Path, ledger: Ledger) -> None:
    nothing_hidden = FrozenPlan("{}", "{}", math.inf, 1e-6)
    with pytest.raises(Declined, match="budget"):
        ledger.reserve(ask(), nothing_hidden)
    generous = Ledger.create(tmp_path / "open.sqlite", math.inf, 1e-5)
    release(generous, ask(), plan=nothing_hidden)
    assert generous.account().spent()[0] == math.inf
    assert release(generous, ask("b")) == b"noisy"


def test_two_processes_share_one_account(ledger: Ledger, path: Path) -> None:
    other = Ledger(path)
    release(ledger, ask("a"))
    release(other, ask("b"))
    assert ledger.account().spent() == other.account().spent() == (2.0, 2e-6)


def test_a_failed_write_leaves_the_account_as_the_file_is(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no lock")

    with monkeypatch.context() as patch:
        patch.setattr("hdpfl_flower.ledger.ReleaseLock", fail)
        with pytest.raises(OSError, match="no lock"):
            ledger.reserve(ask(), PLAN)
    assert ledger.account().spent() == (0.0, 0.0)
    assert release(ledger, ask()) == b"noisy"
    assert ledger.account().spent() == (1.0, 1e-6)


def test_only_create_makes_a_ledger_and_only_once(tmp_path: Path, path: Path) -> None:
    with pytest.raises(LedgerError, match="ledger init"):
        Ledger(tmp_path / "none.sqlite")
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(path, 99.0, 1e-5)
    assert Ledger(path).account().cap_epsilon == 3.0
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_deleted_ledger_is_not_made_anew_beside_its_anchor(tmp_path: Path) -> None:
    """A new one would forget what was spent."""
    path, anchor = tmp_path / "ledger.sqlite", tmp_path / "anchor"
    Ledger.create(path, 3.0, 1e-5, anchor).close()
    path.unlink()
    with pytest.raises(LedgerError, match="anchor exists already"):
        Ledger.create(path, 3.0, 1e-5, anchor)
    with pytest.raises(LedgerError, match="cannot be"):
        Ledger.create(tmp_path / "other.sqlite", 3.0, 1e-5, tmp_path / "no-folder" / "anchor")
    assert not (tmp_path / "other.sqlite").exists()


def test_a_changed_entry_is_found_out(ledger: Ledger, path: Path) -> None:
    release(ledger, ask())
    ledger.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE entries SET body = replace(body, '1.0', '0.1') WHERE kind = 'plan'")
    with pytest.raises(LedgerError, match="damaged at entry 2"):
        Ledger(path)


def test_a_dropped_entry_is_found_out(ledger: Ledger, path: Path) -> None:
    release(ledger, ask())
    ledger.close()
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM entries WHERE kind = 'plan'")
    with pytest.raises(LedgerError, match="damaged"):
        Ledger(path)


def test_a_changed_payload_is_found_out(ledger: Ledger, path: Path) -> None:
    release(ledger, ask())
    with sqlite3.connect(path) as db:
        db.execute("UPDATE blobs SET blob = x'00'")
    with pytest.raises(LedgerError, match="does not match its seal"):
        ledger.reserve(ask(), PLAN)


def test_an_old_copy_is_found_out_by_the_anchor(tmp_path: Path) -> None:
    path, anchor = tmp_path / "ledger.sqlite", tmp_path / "elsewhere" / "anchor"
    anchor.parent.mkdir()
    ledger = Ledger.create(path, 3.0, 1e-5, anchor)
    ledger.close()
    old = path.read_bytes()
    ledger = Ledger(path, anchor)
    release(ledger, ask())
    ledger.close()
    path.write_bytes(old)
    assert Ledger(path).account().spent() == (0.0, 0.0), "without the anchor nobody could tell"
    with pytest.raises(LedgerError, match="older than its anchor"):
        Ledger(path, anchor)
    anchor.unlink()
    with pytest.raises(LedgerError, match=r"anchor .* is missing"):
        Ledger(path, anchor)


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all, but long enough to be one", b"SQLite format 3\x00"]
)
def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(LedgerError) as error:
        Ledger(path)
    assert "\n" not in str(error.value)


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE entries (x)")
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger(tmp_path / "other.sqlite")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a way to fill a disk")
def test_a_full_disk_refuses_before_any_work(ledger: Ledger, path: Path) -> None:
    """SQLite is told that the file may not grow: the same error as a full disk."""
    ledger._chain._db.execute("PRAGMA max_page_count = 4")
    with pytest.raises(LedgerError, match="disk is full"):
        for run in range(100):
            release(
                ledger, ask(f"{run}" * 50), b"x" * 5000, plan=FrozenPlan("{}", "{}", 0.001, 1e-9)
            )
    fresh = Ledger(path)
    assert all(r.status != "sent" or r.payload_digest for r in fresh.account().releases.values())


def test_sums_are_those_of_the_decimals_that_were_written() -> None:
    assert fits([0.1] * 10, 1.0)
    assert not fits([0.1] * 10 + [1e-18], 1.0)
    assert sum([0.1] * 10 + [1e-18]) <= 1.0, "plain float addition would have let it pass"
    assert sum_up([0.1, 0.2]) == 0.3


@given(st.lists(st.floats(1e-9, 10), max_size=30))
def test_the_sum_shown_is_never_below_the_truth(values: list[float]) -> None:
    truth = sum((Decimal(repr(value)) for value in values), Decimal(0))
    assert truth <= Decimal(repr(sum_up(values))) <= truth + Decimal("1e-12")


def test_a_fork_does_not_free_the_parents_lock(ledger: Ledger, path: Path) -> None:
    with reserve(ledger, ask()) as reservation:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(Declined, match="worked on"):
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


# A plan pays for so many releases, whichever rounds are asked for.


def test_releases_of_a_run_are_counted_whatever_round_is_asked(ledger: Ledger) -> None:
    for server_round in (7, 2):
        release(ledger, ask(server_round=server_round), max_releases=2)
    for server_round in (1, 2000):
        with pytest.raises(Declined, match="used up"):
            reserve(ledger, ask(server_round=server_round), max_releases=2)
    assert len(ledger.account().releases) == 2
    release(ledger, ask("other"), max_releases=2)
    release(ledger, ask(kind="metrics"), max_releases=2)


def test_a_used_up_run_still_answers_a_replay_with_the_same_bytes(ledger: Ledger) -> None:
    release(ledger, ask(server_round=5), b"first", max_releases=1)
    assert ledger.reserve(ask(server_round=5), PLAN, max_releases=1) == b"first"
    with pytest.raises(Declined, match="another request"):
        reserve(ledger, ask(server_round=5, digest="other"), max_releases=1)


def test_a_lost_release_counts(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), reserve(ledger, ask(), max_releases=1):
        _ = 1 / 0
    with pytest.raises(Declined, match="used up"):
        reserve(ledger, ask(server_round=2), max_releases=1)
    with pytest.raises(Declined, match="is lost"):
        reserve(ledger, ask(), max_releases=1)


def test_two_rounds_asked_at_once_cannot_both_be_the_last(ledger: Ledger, path: Path) -> None:
    """One is being worked on, in another process: it counts before it is sealed."""
    one, other = Ledger(path), ask(server_round=2)
    with (
        reserve(one, ask(), max_releases=1),
        pytest.raises(Declined, match="used up"),
    ):
        reserve(ledger, other, max_releases=1)
    assert [key[1] for key in ledger.account().releases] == [1]


def test_a_race_of_processes_for_the_last_release_has_one_winner(path: Path) -> None:
    """Each opens the ledger before any of them reserves; then all ask for a round of their own."""
    code = f"""
import sys
from pathlib import Path
from hdpfl_flower.account import FrozenPlan, Request
from hdpfl_flower.errors import Declined
from hdpfl_flower.ledger import Ledger
ledger = Ledger(Path({str(path)!r}))
print("ready", flush=True)
sys.stdin.readline()
request = Request("run", int(sys.argv[1]), "update", "d")
try:
    with ledger.reserve(request, FrozenPlan("{{}}", "{{}}", 1.0, 1e-6), max_releases=2) as taken:
        taken.seal(b"noisy")
    print("released", flush=True)
except Declined as reason:
    print(reason, flush=True)
"""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(server_round)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for server_round in range(1, 5)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.communicate()[0].strip() for racer in racers]
    assert sorted(word == "released" for word in said) == [False, False, True, True], said
    assert len(Ledger(path).account().releases) == 2
