"""Several processes on one ledger: one payload a release, no sum above the cap, no failure."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.checker import Checker
from tests.crash.harness import CAP, SIGKILL, Ask, Workers, ask, new_site

WRITERS = 4


def race(
    workers: Workers, folder: Path, asks: list[list[Ask]], *, mutant: str = "", kill: str = ""
) -> None:
    """Let a worker for each list of messages answer them at the same time; look, then go on."""
    site = new_site(folder)
    checker = Checker(site)
    jobs = [{"folder": str(site), "asks": these, "mutant": mutant} for these in asks]
    jobs[0]["point"] = kill
    results = workers.run(*jobs)
    checker.look()
    for result in results[bool(kill) :]:
        assert not result.killed
        assert not any("failed" in said for said in result.said), result.said
    if kill:
        assert results[0].killed == SIGKILL
    every = [one for these in asks for one in these]
    said = workers.answer(site, *every, mutant=mutant).said
    books = checker.look()
    assert not any("failed" in one for one in said), said
    runs = {one["run"] for one in every}
    room = int(round(CAP[0] / asks[0][0]["epsilon"], 6))
    assert len(books.runs) == min(len(runs), room), "a run that fits was declined, or one too many"
    for one, answer in zip(every, said, strict=True):
        key = (one["run"], one["round"], "update")
        if "payload" in answer:
            assert books.sealed[key] == [answer["payload"]]
        else:
            assert not books.sealed[key] or "no longer kept" in answer["declined"]


def the_same(chance: random.Random) -> list[list[Ask]]:
    """Everybody is asked the same, and some are slow."""
    return [
        [ask("a", at, sleep=chance.choice((0, 0.002))) for at in (1, 2, 3)] for _ in range(WRITERS)
    ]


def the_last_budget(chance: random.Random) -> list[list[Ask]]:
    """Everybody brings a run of its own; there is room for three."""
    return [[ask(f"{name}", 1, sleep=chance.choice((0, 0.002)))] for name in range(WRITERS)]


RACES = {"the same requests": the_same, "the last budget": the_last_budget}


@pytest.mark.parametrize("name", RACES)
def test_processes_at_the_same_time(workers: Workers, folder: Path, name: str) -> None:
    for turn in range(4):
        race(workers, folder / str(turn), RACES[name](random.Random(turn)))


@pytest.mark.parametrize(
    "point",
    [
        "reserve: before COMMIT",
        "reserve: after COMMIT",
        "work: half done",
        "seal: payload attached",
        "sent: before COMMIT",
    ],
)
def test_one_of_them_is_killed(workers: Workers, folder: Path, point: str) -> None:
    """Its last message is one that nobody else is asked."""
    for turn in range(2):
        asks = the_same(random.Random(turn))
        asks[0].append(ask("a", 4))
        race(workers, folder / str(turn), asks, kill=point)


@pytest.mark.slow
@pytest.mark.parametrize("name", RACES)
def test_many_processes_at_the_same_time(workers: Workers, folder: Path, name: str) -> None:
    for turn in range(50):
        race(workers, folder / str(turn), RACES[name](random.Random(turn)))


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("the same requests", "no_lock_and_late_results_are_kept"),
        ("the last budget", "nothing_is_held_alone"),
    ],
)
def test_checks_find_hasty_workers(workers: Workers, folder: Path, name: str, mutant: str) -> None:
    """Which turns go wrong is up to the system: 57 and 49 of 60 did where this was written.

    Were it one in three, 40 turns would all go well once in 10⁷ times.
    """
    with pytest.raises(AssertionError):
        for turn in range(40):
            race(workers, folder / str(turn), RACES[name](random.Random(turn)), mutant=mutant)
