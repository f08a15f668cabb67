"""Run a test on the code with one bug put back, in a process of its own.

The process is forked from one that has imported the heavy libraries but nothing of ours; in it the
mutated module is compiled from the changed source whenever somebody imports it, so every reference
to it sees the bug.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("flwr.clientapp", "flwr.serverapp", "torch.func", "opacus", "scipy.stats", "hypothesis",
         "dp_accounting.pld", "pydantic.main", "typer.testing", "sklearn.mixture",
         "_pytest.doctest", "_pytest.junitxml")  # fmt: skip
PATIENCE = 240
"""Seconds after which the system ends a mutant that does not come to an end."""
AT_ONCE = 25
"""Tests that one process runs on the code as it is, within its patience."""
DIED_OF = ("AssertionError", "Failed")
"""Exceptions with which a test says no; anything else means that the mutant is no working code."""


@dataclass(frozen=True)
class Mutant:
    """One bug: in ``file`` the text ``old``, which stands there once, becomes ``new``.

    Attributes:
        name: what is wrong with it, in a few words.
        killer: the test that must fail, as pytest names it, below ``tests/``.
    """

    name: str
    file: str
    old: str
    new: str
    killer: str


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: ``killed``, ``survived`` or, with a reason, ``no working code``."""

    name: str
    fate: str
    reason: str = ""


class MutantError(Exception):
    """The mutant does not fit the code any more."""


def mutated(mutant: Mutant) -> str:
    """Return the source of the mutant's module."""
    source = (ROOT / mutant.file).read_text()
    if source.count(mutant.old) != 1:
        raise MutantError(f"{mutant.file} holds {mutant.old!r} {source.count(mutant.old)} times")
    return source.replace(mutant.old, mutant.new)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, loader: _Loader) -> None:
        self._module, self._loader = module, loader

    def find_spec(
        self, fullname: str, _: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        path = Path(self._loader.path)
        inner = [str(path.parent)] if path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, path, loader=self._loader, submodule_search_locations=inner
        )


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, module: str, path: Path, source: str) -> None:
        super().__init__(module, str(path))
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)

    def get_source(self, fullname: str) -> str:  # for tests that start a copy of the module
        return self._source


class _Reports:
    """Collects what pytest says of each test."""

    def __init__(self) -> None:
        self.passed, self.died, self.broken = 0, "", ""

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        kind = call.excinfo.typename
        if getattr(report, "when", "") == "call" and kind in DIED_OF:
            self.died = report.nodeid
        else:
            self.broken = f"{kind}: {call.excinfo.value}"[:200]

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.passed += report.when == "call" and report.passed


def judge(mutant: Mutant | None, killers: Sequence[str]) -> Verdict:
    """Run ``killers`` on the mutant (on the code as it is, without one) in a new process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_and_tell(mutant, killers, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    name = mutant.name if mutant else "none"
    if not told:
        return Verdict(name, "no working code", "the process ended without a word")
    return Verdict(name, *json.loads(told))


def _run_and_tell(mutant: Mutant | None, killers: Sequence[str], writing: int) -> None:
    """Tell the fate and the reason to ``writing``; never returns."""
    signal.alarm(PATIENCE)
    try:
        reports = _Reports()
        with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as folder:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            os.chdir(ROOT)
            sys.path.insert(0, str(ROOT))
            if mutant:
                module = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                loader = _Loader(module, ROOT / mutant.file, mutated(mutant))
                sys.meta_path.insert(0, _Finder(module, loader))
            words = ["-q", "-x", "-m", "not slow", "-p", "no:xdist", "-p", "no:anyio"]
            # An explained difference of a million bytes takes longer than the patience.
            words += [f"--basetemp={folder}/tests", "--assert=plain"]
            pytest.main([*words, *(f"tests/{killer}" for killer in killers)], plugins=[reports])
            fate = ("killed", reports.died) if reports.died else ("survived", "")
            if reports.broken and not reports.died:
                fate = ("no working code", reports.broken)
            elif not reports.passed and not reports.died:
                log.seek(0)
                fate = (
                    "no working code",
                    f"no test ran: {log.read()[-200:].decode(errors='replace')}",
                )
    except MutantError as error:
        fate = ("no working code", str(error))
    with os.fdopen(writing, "w") as pipe:
        json.dump(fate, pipe)
    os._exit(0)


def import_heavy() -> None:
    """Import the heavy libraries once, for all that is forked from here.

    What they consist of is no garbage: pytest collects ten times before it ends, and would look
    through all of it in every process.
    """
    for name in HEAVY:
        importlib.import_module(name)
    gc.freeze()


def judge_all(mutants: Sequence[Mutant], processes: int) -> Iterator[Verdict]:
    """Yield the verdict on the code as it is, then on every mutant, in their order."""
    import_heavy()
    killers = sorted({mutant.killer for mutant in mutants})
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        parts = [killers[i : i + AT_ONCE] for i in range(0, len(killers), AT_ONCE)]
        healthy = [pool.submit(judge, None, part) for part in parts]
        verdicts = [pool.submit(judge, mutant, [mutant.killer]) for mutant in mutants]
        failed = (one.result() for one in healthy if one.result().fate != "survived")
        yield next(failed, Verdict("none", "survived"))
        for verdict in verdicts:
            yield verdict.result()
