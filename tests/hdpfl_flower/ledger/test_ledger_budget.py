"""The ledger's sums: what is spent never passes the cap, and a run takes what it paid for."""

from __future__ import annotations

import math
import subprocess
import sys
from decimal import Decimal, getcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger.account import ChargedPlan, sum_rounded_up, sum_within
from hdpfl_flower.ledger.ledger import Ledger
from tests.hdpfl_flower.ledger.releases import (
    PLAN,
    ask,
    open_ledger,  # noqa: F401
    release,
    reserve,
    small_ledger,  # noqa: F401
)

getcontext().prec = 60


def test_the_cap_stops_a_run_before_it_begins(ledger: Ledger) -> None:
    for run in ("a", "b", "c"):
        release(ledger, ask(run))
    with pytest.raises(Declined, match="budget"):
        ledger.reserve(ask("d"), PLAN)
    assert ledger.account().spent()[0] == 3.0
    assert ask("d").key not in ledger.account().releases


def test_delta_has_a_cap_of_its_own(ledger: Ledger) -> None:
    big = ChargedPlan("{}", "{}", 0.1, 6e-6)
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
    nothing_hidden = ChargedPlan("{}", "{}", math.inf, 1e-6)
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


def test_sums_are_those_of_the_decimals_that_were_written() -> None:
    assert sum_within([0.1] * 10, 1.0)
    assert not sum_within([0.1] * 10 + [1e-18], 1.0)
    assert sum([0.1] * 10 + [1e-18]) <= 1.0, "plain float addition would have let it pass"
    assert sum_rounded_up([0.1, 0.2]) == 0.3


@given(st.lists(st.floats(1e-9, 10), max_size=30))
def test_the_sum_shown_is_never_below_the_truth(values: list[float]) -> None:
    truth = sum((Decimal(repr(value)) for value in values), Decimal(0))
    assert truth <= Decimal(repr(sum_rounded_up(values))) <= truth + Decimal("1e-12")


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
    with reserve(one, ask(), max_releases=1), pytest.raises(Declined, match="used up"):
        reserve(ledger, other, max_releases=1)
    assert [key[1] for key in ledger.account().releases] == [1]


def test_a_race_of_processes_for_the_last_release_has_one_winner(path: Path) -> None:
    """Each opens the ledger before any of them reserves; then all ask for a round of their own."""
    code = f"""
import sys
from pathlib import Path
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.errors import Declined
from hdpfl_flower.ledger.ledger import Ledger
ledger = Ledger(Path({str(path)!r}))
print("ready", flush=True)
sys.stdin.readline()
request = Request("run", int(sys.argv[1]), "update", "d")
try:
    with ledger.reserve(request, ChargedPlan("{{}}", "{{}}", 1.0, 1e-6), max_releases=2) as taken:
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
