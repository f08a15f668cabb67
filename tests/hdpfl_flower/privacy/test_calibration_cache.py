"""The cache of noise multipliers: one process computes a number, and damage is never believed."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hdpfl_flower.privacy import accounting, calibration_cache
from hdpfl_flower.privacy.calibration_cache import cached_in_book
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.system import locks
from hdpfl_flower.system.locks import one_at_a_time
from tests.hdpfl_flower.ledger.plans import profile, terms

FORK = multiprocessing.get_context("fork")


def work(folder: Path, name: str, other: str) -> None:
    """Ask for a number as process ``name``, and compute it until ``other`` has asked, too."""

    def compute() -> float:
        with (folder / "computed").open("a") as file:
            file.write(name)
        (folder / f"{name}-computes").touch()
        wait_for(folder / f"{other}-asks")
        time.sleep(0.3)  # for the other to compute, too, if it does not wait
        return 1.5

    (folder / f"{name}-asks").touch()
    (folder / f"{name}-has").write_text(str(cached_in_book("key", 0.5, compute)))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HDPFL_HOME", str(tmp_path))
    calibration_cache._book.cache_clear()
    yield tmp_path
    mock.patch.stopall()


def started(*arguments: object) -> multiprocessing.process.BaseProcess:
    process = FORK.Process(target=work, args=arguments)
    process.start()
    return process


def wait_for(file: Path) -> None:
    until = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < until, f"{file.name} does not come"
        time.sleep(0.01)


def refuse() -> float:
    raise AssertionError("computed again")


def test_of_two_processes_one_computes_and_the_other_reads(home: Path) -> None:
    one = started(home, "a", "b")
    wait_for(home / "a-computes")
    other = started(home, "b", "a")
    for process in (one, other):
        process.join(60)
    assert [(home / f"{name}-has").read_text() for name in "ab"] == ["1.5", "1.5"]
    assert (home / "computed").read_text() == "a"
    assert [file.suffix for file in numbers(home)] == [".book"]


def test_the_lock_of_a_killed_process_is_no_obstacle(home: Path) -> None:
    one = started(home, "a", "nobody")
    wait_for(home / "a-computes")
    (left,) = [file for file in numbers(home) if file.suffix == ".lock"]
    one.kill()
    one.join(60)
    assert left.exists()
    assert cached_in_book("key", 0.5, lambda: 2.5) == 2.5
    assert not left.exists()


def numbers(home: Path) -> list[Path]:
    return list((home / "cache" / "noise-multipliers").iterdir())


def test_who_waits_too_long_goes_ahead_and_removes_nobodys_lock(tmp_path: Path) -> None:
    path, entered, done = tmp_path / "lock", threading.Event(), threading.Event()

    def hold() -> None:
        with one_at_a_time(path, 0):
            entered.set()
            done.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert entered.wait(60)
    with one_at_a_time(path, 0.02):
        assert path.exists()
    assert path.exists()
    done.set()
    other.join(60)
    assert not path.exists()


def test_a_lock_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    with one_at_a_time(tmp_path / "missing" / "lock", 60):
        pass


def test_who_waited_for_a_removed_lock_takes_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two that opened the file at different times could hold it at once."""
    path, real, calls = tmp_path / "lock", locks.fcntl.flock, [0]

    def after_its_holder_removed_it(descriptor: int, operation: int) -> None:
        calls[0] += 1
        if calls[0] == 1:
            path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(locks.fcntl, "flock", after_its_holder_removed_it)
    with one_at_a_time(path, 60):
        assert path.exists()
    assert calls == [2]


def test_a_book_holds_many_numbers_in_one_private_file(home: Path) -> None:
    for number in range(20):
        assert cached_in_book("key", number / 7, lambda n=number: float(n)) == number
    (file,) = numbers(home)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    calibration_cache._book.cache_clear()
    assert [cached_in_book("key", number / 7, refuse) for number in range(20)] == list(range(20))


def test_a_number_that_another_process_added_is_read(home: Path) -> None:
    assert cached_in_book("key", 0.5, lambda: 1.0) == 1
    (file,) = numbers(home)
    calibration_cache._Book(file, "key").add(0.25, 3.0)
    assert cached_in_book("key", 0.25, refuse) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],  # torn by a crash
        lambda text: text.replace("1.5", "0.5"),
        lambda text: text.replace("key 0.5", "other 0.5"),
        lambda text: text.replace("key 0.5", "key 0.25"),
        lambda _: "[]\n5\n{}\n[1]\n[[], 1]\n",
        lambda _: "\udcff".encode(errors="surrogateescape").decode("latin-1") + "\n",
        lambda text: json.dumps([json.loads(text)[0], "nan", json.loads(text)[2]]) + "\n",
    ],
)
def test_a_damaged_line_is_computed_again(home: Path, damage: Callable[[str], str]) -> None:
    cached_in_book("key", 0.5, lambda: 1.5)
    (file,) = numbers(home)
    file.write_text(damage(file.read_text()))
    for read in (lambda: 2.5, refuse):
        calibration_cache._book.cache_clear()
        assert cached_in_book("key", 0.5, read) == 2.5


def forged(folder: Path) -> None:
    """Write an entry with a valid checksum that has next to no noise."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    calibration_cache._Book(folder / f"{calibration_cache._digest('key')}.book", "key").add(
        0.5, 1e-3
    )


def replaced_by_a_link(folder: Path) -> None:
    elsewhere = folder.with_name("elsewhere")
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)


def link_to_a_file(folder: Path) -> None:
    (file,) = folder.iterdir()
    replaced_by_a_link(file)


@pytest.mark.parametrize(
    "open_it",
    [
        lambda _: mock.patch.object(os, "geteuid", lambda: os.getuid() + 1).start(),
        lambda folder: folder.chmod(0o777),
        lambda folder: folder.chmod(0o720),
        lambda folder: next(folder.iterdir()).chmod(0o602),
        replaced_by_a_link,
        link_to_a_file,
    ],
)  # fmt: skip
def test_a_number_that_another_user_could_have_written_is_computed(
    home: Path, open_it: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    folder = home / "cache" / "noise-multipliers"
    forged(folder)
    assert cached_in_book("key", 0.5, refuse) == 1e-3  # or nothing would be tested
    calibration_cache._book.cache_clear()
    calibration_cache._warn_once.cache_clear()
    open_it(folder)
    assert cached_in_book("key", 0.5, lambda: 1.5) == 1.5
    if calibration_cache._folder() is None:
        assert cached_in_book("key", 0.5, lambda: 2.5) == 2.5
        assert caplog.text.count("noise-multipliers is not used") == 1


@pytest.mark.parametrize("at", ["cache", "cache/noise-multipliers"])
def test_without_a_folder_everything_is_computed(home: Path, at: str) -> None:
    (home / at).parent.mkdir(exist_ok=True)
    (home / at).write_text("a file")
    assert cached_in_book("key", 0.5, lambda: 1.5) == 1.5


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"after": "prior share=0.1", "model": "logreg"},
        {"choice": "gaussian times=2"},
        {"noise_multiplier": 9.0},
    ],
)
def test_no_site_reads_its_noise_from_disk(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forged number has the checksum, the owner and the mode of a true one."""
    monkeypatch.setattr(calibration_cache, "_folder", lambda: pytest.fail("the cache was opened"))
    accounting._calibrate.cache_clear()
    for among_many in (True, False):
        plan = make_plan(profile(), terms(**asked), among_many=among_many)
        assert plan.noise_multiplier > 0
