"""One pytest session in which a file's changes are judged, each in a process forked from it.

The session collects the tests of the file once and imports everything. A child then gives the
functions of the changed source their new code, wherever they are referred to, and runs the tests
that execute the changed statement; which these are, a first child finds out. A change outside of
any function cannot be made that way: it is compiled when the module is imported, as ``runner.py``
does it, and all tests of the file run.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from tests.mutants.fuzz_rules import Change
from tests.mutants.runner import ROOT, _Finder, _Loader

OPTIONS = ["-q", "-x", "-m", "not slow and not engines and not gpu and not prometheus and not "
           "docker", "-p", "no:xdist", "-p", "no:anyio"]  # fmt: skip
LEAST_SECONDS, TIMES_AS_LONG = 30, 8
"""Of processor time for a child: so much, or the healthy tests' time so often, if that is more."""
BUDGET = 8.0
"""Seconds of processor time that the tests of one change take together, if none of them fails."""
MEMORY = 6 * 2**30
"""Bytes of address space that a child may add."""


@dataclass(frozen=True)
class Fate:
    """What a child found: ``killed`` with the test, or how it ended; ``survived``; ``not run``."""

    fate: str
    by: str = ""


@dataclass
class Coverage:
    """What the healthy tests of a file do.

    Attributes:
        lines: of the file, by test.
        seconds: of processor time, by test.
        failed: the first test that fails, which nothing can be judged by.
    """

    lines: dict[str, set[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: str = ""

    def running(self, change: Change, *, all_lines: bool = False) -> list[str]:
        """Return the tests that execute the changed statement, the fastest first.

        As many as together take :data:`BUDGET`, and always one.
        """
        wanted = range(change.lines[0], change.lines[1] + 1)
        able = sorted(
            (t for t, lines in self.lines.items() if all_lines or not lines.isdisjoint(wanted)),
            key=lambda test: self.seconds[test],
        )
        sums = itertools.accumulate(self.seconds[test] for test in able)
        return [test for i, (test, total) in enumerate(zip(able, sums, strict=True))
                if not i or total <= BUDGET]  # fmt: skip


Report = Callable[[Change, Fate], None]


def judge_file(file: str, tests: Sequence[str], changes: Sequence[Change], report: Report) -> str:
    """Judge the changes of a file in a new process; returns why that was impossible, or nothing.

    Args:
        file: the source, relative to the repository.
        tests: test files or tests, relative to ``tests/``.
        changes: of that file, in any order.
        report: called with every fate as it is found.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            with contextlib.suppress(BaseException):
                _session(file, tests, changes, pipe)
            pipe.flush()
        os._exit(0)
    os.close(writing)
    why = "the session ended before its end"
    try:
        with os.fdopen(reading) as pipe:
            for line in pipe:
                match json.loads(line):
                    case [int(number), str(fate), str(by)]:
                        report(changes[number], Fate(fate, by))
                    case [str(said)]:
                        why = said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
    return why


def _session(file: str, tests: Sequence[str], changes: Sequence[Change], pipe: Any) -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the child at work, too
        os.chdir(ROOT)
        sys.path.insert(0, str(ROOT))
        loop = _Loop(file, tests, changes, Path(folder), pipe)
        words = [
            *OPTIONS,
            f"--basetemp={folder}/tests",
            *(str(ROOT / "tests" / test) for test in tests),
        ]
        status = pytest.main(words, plugins=[loop])
        if not loop.done:
            log.seek(0)
            tail = log.read()[-600:].decode(errors="replace")
            loop.say([loop.why or f"no test was judged ({status}): {tail}"])


class _Loop:
    """Takes the place of pytest's own loop over the tests."""

    def __init__(
        self, file: str, tests: Sequence[str], changes: Sequence[Change], folder: Path, pipe: Any
    ) -> None:
        self._file, self._tests, self._changes = file, tests, changes
        self._folder, self._pipe = folder, pipe
        self._source = (ROOT / file).read_text()
        self.done, self.why = False, ""

    def say(self, line: list[object]) -> None:
        self._pipe.write(json.dumps(line) + "\n")
        self._pipe.flush()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        path = str(ROOT / self._file)
        told = _in_child(lambda: _trace(session, [*items.values()], path, self._folder), 3600)
        if told is None:
            self.why = "the healthy tests did not come to an end"
            return True
        found = json.loads(told)
        coverage = Coverage(
            {test: set(lines) for test, lines in found["lines"].items()}, found["seconds"],
            found["failed"],
        )  # fmt: skip
        if coverage.failed:
            self.why = f"a test fails on the code as it is: {coverage.failed}"
            return True
        functions = _functions_of(path)
        for number, change in enumerate(self._changes):
            fate = self._judge(change, coverage, items, functions, session)
            self.say([number, fate.fate, fate.by])
        self.done = True
        self.say([""])
        return True

    def _judge(
        self,
        change: Change,
        coverage: Coverage,
        items: dict[str, pytest.Item],
        functions: dict[tuple[str, int], list[FunctionType]],
        session: pytest.Session,
    ) -> Fate:
        changed = change.applied(self._source)
        place = _places(self._source, changed, self._file, change.function)
        if place is None or any(key not in functions for key in place):
            tests = coverage.running(change, all_lines=True)
            limit = LEAST_SECONDS + TIMES_AS_LONG * sum(coverage.seconds[test] for test in tests)
            return _read_fate(_in_child(lambda: self._afresh(changed, tests), limit))
        tests = coverage.running(change)
        if not tests:
            return Fate("not run")
        limit = LEAST_SECONDS + TIMES_AS_LONG * sum(coverage.seconds[test] for test in tests)

        def run() -> str:
            for key, code in place.items():
                for function in functions[key]:
                    function.__code__ = code
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                _move_in(session, Path(folder), self._warm())
                return _run(session, [items[test] for test in tests])

        return _read_fate(_in_child(run, limit))

    def _warm(self) -> Path | None:
        """Return the noise multipliers of the healthy tests, unless they are what is changed."""
        return None if self._file in COMPUTES else self._folder / "warm"

    def _afresh(self, changed: str, tests: Sequence[str]) -> str:
        """Import everything of ours again, the changed module from its new source; run all."""
        for name in [*sys.modules]:
            if name.split(".")[0] in ("hdpfl_flower", "client_app", "server_app", "strategies") or (
                name.startswith("tests.") and not name.startswith("tests.mutants.")
            ):
                del sys.modules[name]
        module = self._file.removesuffix(".py").replace("/", ".")
        sys.meta_path.insert(0, _Finder(module, _Loader(module, ROOT / self._file, changed)))
        reports = _Reports()
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            words = [*OPTIONS, f"--basetemp={folder}/tests", *tests]
            status = pytest.main(words, plugins=[reports])
        if reports.failed or status not in (0, 1):
            return json.dumps(["killed", reports.failed or f"pytest ends with {int(status)}"])
        return json.dumps(["survived", ""])


COMPUTES = frozenset({"hdpfl_flower/privacy/accounting.py"})
"""Files that compute what is kept in the cache: a change of theirs must not find the right one."""


class _Reports:
    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"import: {report.nodeid}"


def _read_fate(told: str | None) -> Fate:
    return Fate("killed", "it ends its process") if told is None else Fate(*json.loads(told))


def _in_child(work: Callable[[], str], seconds: float) -> str | None:
    """Return what ``work`` returns in a forked process; None where that ends or takes too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setsid()
            os.close(reading)
            _limit(seconds)
            told = work()
            with os.fdopen(writing, "w") as pipe:
                pipe.write(told)
        os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            told = pipe.read()
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return told or None


def _limit(seconds: float) -> None:
    """Bound what this process may take: processor time, since others use the machine too."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(int(6 * seconds))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def _run(session: pytest.Session, items: Sequence[pytest.Item]) -> str:
    """Run tests until one fails."""
    reports = _Reports()
    session.config.pluginmanager.register(reports)
    for item, after in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if reports.failed:
            return json.dumps(["killed", reports.failed])
    return json.dumps(["survived", ""])


def _move_in(session: pytest.Session, folder: Path, warm: Path | None) -> None:
    """Give the tests of this process folders of their own."""
    base = folder / "tests"
    base.mkdir()
    session.config._tmp_path_factory._basetemp = base  # type: ignore[attr-defined]
    if warm is not None and warm.is_dir():
        shutil.copytree(warm, base / "hdpfl-cache")


def _trace(session: pytest.Session, items: Sequence[pytest.Item], path: str, folder: Path) -> str:
    """Run all tests; return the lines of the file that each executes, and its time."""
    base = folder / "healthy"
    base.mkdir()
    _move_in(session, base, None)
    reports, coverage = _Reports(), Coverage()
    session.config.pluginmanager.register(reports)
    for item, after in zip(items, [*items[1:], None], strict=True):
        lines: set[int] = set()
        begun = time.process_time()
        with _traced(path, lines):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        coverage.seconds[item.nodeid] = time.process_time() - begun
        coverage.lines[item.nodeid] = lines
        if reports.failed:
            coverage.failed = reports.failed
            break
    if (base / "tests/hdpfl-cache").is_dir():
        shutil.copytree(base / "tests/hdpfl-cache", folder / "warm")
    shutil.rmtree(base, ignore_errors=True)
    return json.dumps({
        "lines": {test: sorted(lines) for test, lines in coverage.lines.items()},
        "seconds": coverage.seconds, "failed": coverage.failed,
    })  # fmt: skip


@contextlib.contextmanager
def _traced(path: str, lines: set[int]) -> Iterator[None]:
    def local(frame: FrameType, event: str, _: object) -> Any:
        lines.add(frame.f_lineno)
        return local

    def follow(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != path:
            return None
        lines.add(frame.f_lineno)
        return local

    sys.settrace(follow)
    threading.settrace(follow)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def _functions_of(path: str) -> dict[tuple[str, int], list[FunctionType]]:
    """Return the functions of a file that live in this process, by name and first line."""
    found: dict[tuple[str, int], list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == path:
            key = each.__code__.co_qualname, each.__code__.co_firstlineno
            found.setdefault(key, []).append(each)
    return found


def _places(
    source: str, changed: str, file: str, function: str
) -> dict[tuple[str, int], CodeType] | None:
    """Return the new code of the function that a change lies in; None outside of functions."""
    if not function:
        return None
    path = str(ROOT / file)
    before, after = (_codes(compile(text, path, "exec", dont_inherit=True)) for text in
                     (source, changed))  # fmt: skip
    names = [key for key in before if key[0] == function]
    new = {key: after[key] for key in names if key in after and after[key] != before[key]}
    if len(new) != 1 or any(new[key].co_freevars != before[key].co_freevars for key in new):
        return None
    return new


def _codes(module: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return the code of all functions and methods, not of those inside of them."""
    found: dict[tuple[str, int], CodeType] = {}
    waiting = [module]
    while waiting:
        for code in waiting.pop().co_consts:
            if not isinstance(code, CodeType) or code.co_name.startswith("<"):
                continue
            if code.co_flags & 0x2:  # a function has its locals to itself, a class body does not
                found[code.co_qualname, code.co_firstlineno] = code
            else:
                waiting.append(code)
    return found
