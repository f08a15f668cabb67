"""Old copies put back are refused by the anchor; a crash beside the anchor is not mistaken for one;
nothing depends on the clock."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from tests.crash.checker import Checker
from tests.crash.harness import SIGKILL, Workers, ask, kill_and_go_on, new_site

PLAN = ChargedPlan("{}", "{}", epsilon=0.1, delta=1e-6)


def the_file_alone(old: Path, site: Path) -> None:
    shutil.copy(old / "ledger.sqlite", site / "ledger.sqlite")


def another_file(old: Path, site: Path) -> None:
    """As ``mv`` does: whoever has the file open keeps the one that is gone."""
    shutil.copy(old / "ledger.sqlite", site / "restored")
    (site / "restored").replace(site / "ledger.sqlite")


def all_but_the_anchor(old: Path, site: Path) -> None:
    for path in old.glob("ledger.sqlite*"):
        if path.is_file():
            shutil.copy(path, site / path.name)


def check_refused(
    workers: Workers,
    folder: Path,
    restore: Callable[[Path, Path], None],
    point: str = "",
    mutant: str = "",
) -> None:
    """Put every state of a site's life back into its last one; it must answer nothing."""
    site, asks = new_site(folder), [ask("a", 1), ask("a", 2), ask("b", 1), ask("c", 1)]
    states = []
    for index, one in enumerate(asks):
        states.append(folder.with_name(f"{folder.name}.{index}"))
        shutil.copytree(site, states[-1])
        if point:
            assert workers.answer(site, one, point=point).killed == SIGKILL
        workers.answer(site, one)
    now = folder.with_name(f"{folder.name}.now")
    shutil.copytree(site, now)
    seen = (site / "seen").read_text() if (site / "seen").exists() else ""
    for old in states:
        restore(old, site)
        for said in workers.answer(site, *asks, ask("d", 1), mutant=mutant).said:
            assert "older than its anchor" in said.get("failed", ""), said
        assert ((site / "seen").read_text() if seen else "") == seen
        with pytest.raises(LedgerError, match="older than its anchor"):
            Ledger(site / "ledger.sqlite", site / "anchor")
    restore(now, site)
    assert "failed" not in workers.answer(site, ask("a", 2)).said[0]
    Checker(site).look()


@pytest.mark.parametrize("point", ["", "work: begun", "seal: payload attached"])
@pytest.mark.parametrize("restore", [the_file_alone, another_file, all_but_the_anchor])
def test_an_old_copy_is_refused_at_the_next_message(
    workers: Workers, folder: Path, restore: Callable[[Path, Path], None], point: str
) -> None:
    check_refused(workers, folder / "site", restore, point)


def test_a_site_that_does_not_read_the_anchor_is_found(workers: Workers, folder: Path) -> None:
    mutant = "the_anchor_is_not_read"
    with pytest.raises(AssertionError):
        check_refused(workers, folder / "site", the_file_alone, mutant=mutant)


def release(ledger: Ledger, server_round: int) -> None:
    with ledger.reserve(Request("a", server_round, "update", "d"), PLAN) as taken:  # type: ignore[union-attr]
        taken.seal(b"noisy")


def test_an_open_ledger_notices_that_its_file_was_written_over(folder: Path) -> None:
    site = new_site(folder / "site")
    ledger = Ledger(site / "ledger.sqlite", site / "anchor")
    release(ledger, 1)
    shutil.copytree(site, folder / "old")
    release(ledger, 2)
    the_file_alone(folder / "old", site)
    for _ in range(2):
        with pytest.raises(LedgerError):
            release(ledger, 3)
    with pytest.raises(LedgerError, match="older than its anchor"):
        Ledger(site / "ledger.sqlite", site / "anchor")


def test_an_open_ledger_notices_that_its_file_was_replaced(folder: Path) -> None:
    """What it wrote would go into a file that has no name any more."""
    site = new_site(folder / "site")
    ledger = Ledger(site / "ledger.sqlite", site / "anchor")
    release(ledger, 1)
    shutil.copytree(site, folder / "now")
    another_file(folder / "now", site)
    for _ in range(2):
        with pytest.raises(LedgerError):
            release(ledger, 2)
    Checker(site).look()


def numbers(site: Path) -> tuple[int, int]:
    """Return the entry that the anchor names, and the last one."""
    ledger = Ledger(site / "ledger.sqlite")
    last = ledger._chain._last
    ledger.close()
    return json.loads((site / "anchor").read_text())[0], last


@pytest.mark.parametrize("point", ["after COMMIT", "anchor written beside"])
@pytest.mark.parametrize("stage", ["reserve", "seal", "sent"])
def test_a_lagging_anchor_is_true(workers: Workers, folder: Path, stage: str, point: str) -> None:
    site = new_site(folder / "site")
    assert workers.answer(site, ask(), point=f"{stage}: {point}").killed == SIGKILL
    named, last = numbers(site)
    assert 0 < named < last
    Checker(site).look()
    named, last = numbers(site)
    assert named == last


@pytest.mark.parametrize(
    ("point", "fate"), [("work: half done", "lost"), ("seal: after COMMIT", "same")]
)
def test_the_clock_is_not_read(workers: Workers, folder: Path, point: str, fate: str) -> None:
    """Every entry is dated anywhere between the years 1 and 9946."""
    kill_and_go_on(workers, folder / "site", point, fate, turn=1, clock=True)
    ledger = Ledger(folder / "site" / "ledger.sqlite")
    with ledger._chain.transaction():
        rows = ledger._chain._db.execute("SELECT at FROM entries ORDER BY seq").fetchall()
    dates = [at for (at,) in rows[1:]]
    assert dates != sorted(dates), "the clock did not jump"
