"""kill -9 at every step of a release, and at any time: PRIVACY's invariants hold after each.

Nothing taken before RESERVED is committed; the release is lost from then on; the same bytes are
sent again once SEALED is committed. Each mutant of the ledger or of the site fails the same checks.
"""

from __future__ import annotations

import random
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from hdpfl_flower.errors import LedgerError
from tests.crash import mutants
from tests.crash.checker import Checker
from tests.crash.harness import CAP, SIGKILL, Workers, ask, kill_and_go_on, new_ledger, new_site

POINTS = {
    f"{step}: {place}": left
    for step, left, places in (
        ("open", "nothing", "before BEGIN, after BEGIN, before COMMIT, after COMMIT"),
        ("look back", "nothing", "before BEGIN, after BEGIN, before COMMIT, after COMMIT"),
        ("reserve", "nothing", "before BEGIN, after BEGIN, plan appended, reserved appended"),
        ("reserve", "nothing", "before COMMIT"),
        ("reserve", "lost", "after COMMIT, anchor written beside, anchor replaced"),
        ("work", "lost", "begun, half done, done"),
        ("seal", "lost", "before BEGIN, after BEGIN, sealed appended, payload attached"),
        ("seal", "lost", "before COMMIT"),
        ("seal", "same", "after COMMIT, anchor written beside, anchor replaced"),
        ("sent", "same", "before BEGIN, after BEGIN, sent appended, before COMMIT, after COMMIT"),
        ("sent", "same", "anchor written beside, anchor replaced"),
        ("send", "same", "begun, done"),
    )
    for place in places.split(", ")
}
"""Where a worker dies, in order, and what becomes of the release."""


def test_workers_import_the_ledger_and_nothing_heavy(workers: Workers) -> None:
    assert set(workers.modules) <= {*sys.stdlib_module_names, "hdpfl_flower", "tests", "__main__"}
    assert "hdpfl_flower" in workers.modules


def test_the_points_are_all_that_a_release_comes_to(workers: Workers, folder: Path) -> None:
    assert workers.answer(new_site(folder / "site"), ask()).trace == list(POINTS)


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_at_any_point(workers: Workers, folder: Path, point: str) -> None:
    kill_and_go_on(workers, folder / "site", point, POINTS[point], turn=len(point))


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_at_many_points(workers: Workers, folder: Path, point: str) -> None:
    """After no round, one and two, with every size of the payload; each with each at some point."""
    first = 5 * (1 + list(POINTS).index(point) % 3)
    for turn in (2, *range(first, first + 5)):
        kill_and_go_on(workers, folder / str(turn), point, POINTS[point], turn=turn)


def points_of_a_creation(workers: Workers, folder: Path) -> list[str]:
    folder.mkdir()
    trace = workers.answer(folder, ask(create=CAP)).trace
    return [point for point in trace if point.startswith("create")]


def test_a_half_made_ledger_gives_nothing(workers: Workers, folder: Path) -> None:
    """Whatever there is after the crash, no second ledger forgets it."""
    points = points_of_a_creation(workers, folder / "whole")
    assert len(points) >= 8
    assert points[0] == "create: anchor written beside"
    for turn, point in enumerate(dict.fromkeys(points)):
        site = folder / str(turn)
        site.mkdir()
        assert workers.answer(site, ask(create=CAP), point=point).killed == SIGKILL
        if turn == 0:  # killed before the first file was there
            assert not (site / "anchor").exists()
            assert not (site / "ledger.sqlite").exists()
            continue
        with pytest.raises(LedgerError, match="exists already"):
            new_ledger(site)
        (said,) = workers.answer(site, ask()).said
        if "payload" in said:
            assert Checker(site).look().cap == tuple(map(Fraction, map(repr, CAP)))
        else:
            assert "failed" in said or "budget" in said["declined"]
            assert not (site / "seen").exists()


def kill_at_random(workers: Workers, folder: Path, times: int, mutant: str = "") -> int:
    """Kill workers after any time, one after the other on one site; return how many died."""
    site, checker, chance = new_site(folder / "site"), Checker(folder / "site"), random.Random(1)
    asks = [ask(run, at) for run in "abcd" for at in (1, 2, 3, 2)]
    died = 0
    for turn in range(times):
        todo = 4 * asks[turn * len(asks) // times :]  # more than it has time for
        job = {"folder": str(site), "asks": todo, "mutant": mutant}
        (result,) = workers.run({**job, "delay": chance.uniform(0, 0.02)})
        died += result.killed == SIGKILL
        checker.look()
    workers.answer(site, *asks, mutant=mutant)
    # The cap pays for three; on a busy machine all workers of the first may die before they charge.
    runs = checker.look().runs
    assert len(runs) == 3
    assert set(runs) < set("abcd")
    return died


def test_workers_killed_at_any_time(workers: Workers, folder: Path) -> None:
    assert kill_at_random(workers, folder, 50) > 25, "too few of them died"


MUTANTS = {
    "sealed_after_it_was_sent": "seal: before BEGIN",
    "charged_after_the_work": "work: done",
    "a_lost_release_is_refunded": "work: done",
    "a_lost_release_is_worked_on_again": "work: done",
    "charges_are_not_summed": "send: done",
    "charges_are_summed_as_floats": "send: done",
    "handed_out_before_the_commit": "send: done",
    "a_replay_gets_fresh_bytes": "sent: after COMMIT",
    "a_replay_is_worked_on_anew": "send: done",
    "another_request_gets_an_answer": "send: done",
}
"""A bug, and a point where the checks must find it."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_checks_find_a_ledger_with_a_bug(workers: Workers, folder: Path, mutant: str) -> None:
    point = MUTANTS[mutant]
    kill_and_go_on(workers, folder / "right", point, POINTS[point])
    with pytest.raises(AssertionError) as found:
        kill_and_go_on(workers, folder / "wrong", point, POINTS[point], mutant=mutant)
    assert "was not reached" not in str(found.value)


def test_every_mutant_is_tried() -> None:
    with_others = {
        "no_lock_and_late_results_are_kept",
        "nothing_is_held_alone",
        "the_anchor_is_not_read",
    }
    assert set(MUTANTS) | with_others == {
        name
        for name, value in vars(mutants).items()
        if getattr(value, "__module__", "") == mutants.__name__ and not name.startswith("_")
    }
