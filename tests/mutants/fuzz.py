"""Change the files that protect by rule, and show what no test notices: ``make mutants-fuzz``.

    python -m tests.mutants.fuzz [FILE…] [--sample N] [--seed S] [--fresh] [--list]

Without a file, all of ``fuzz_files.txt`` are taken. A verdict is kept in ``.mutants-fuzz/`` and
counts until the source file or its tests change, so a run that was stopped goes on. The status is 1
if a change survives that ``equivalent.toml`` does not classify.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import signal
import sys
import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from tests.mutants.fuzz_rules import Change, changes_of
from tests.mutants.fuzz_session import Fate, judge_file
from tests.mutants.runner import ROOT, import_heavy

TABLE = Path(__file__).with_name("equivalent.toml")
FILES = {
    file: tuple(tests.split())
    for file, tests in re.findall(
        r"^(\S+)((?:\n +\S+)+)", Path(__file__).with_name("fuzz_files.txt").read_text(), re.M
    )
}
"""The files that protect, and the tests that cover each."""
KEPT = ROOT / ".mutants-fuzz"
Key = tuple[str, str, str, str]


def classified() -> dict[Key, str]:
    """Return why each known survivor is no bug: (file, function, old, new) → one line.

    Raises:
        ValueError: an entry is not complete, or stands there twice.
    """
    found: dict[Key, str] = {}
    for entry in tomllib.loads(TABLE.read_text()).get("same", []):
        if set(entry) != {"file", "function", "old", "new", "why"} or not entry["why"]:
            raise ValueError(f"{TABLE.name}: an entry needs file, function, old, new and why")
        news = entry["new"] if isinstance(entry["new"], list) else [entry["new"]]
        for new in news:
            key = entry["file"], entry["function"], entry["old"], new
            if key in found:
                raise ValueError(f"{TABLE.name}: {key} stands there twice")
            found[key] = entry["why"]
    return found


@lru_cache(maxsize=64)
def changes_in(file: str) -> tuple[Change, ...]:
    """Return every change of a file of the repository."""
    return tuple(changes_of(file, (ROOT / file).read_text()))


class Verdicts:
    """The verdicts on one file's changes, kept on disk as they come."""

    def __init__(self, file: str, *, fresh: bool = False) -> None:
        """Read those that still count: a kill while its test stays, a survival while all do."""
        self._path = KEPT / f"{file.replace('/', '.')}.jsonl"
        self._source = _digest([file])
        tests = [f"tests/{test.partition('::')[0]}" for test in FILES[file]]
        self._tests = {test: _digest([test]) for test in tests}
        self._all = _digest(tests)
        self.known: dict[Key, Fate] = {}
        if self._path.is_file() and not fresh:
            for line in self._path.read_text().splitlines():
                source, tests_then, key, fate, by = json.loads(line)
                of_test = self._tests.get(by.partition("::")[0], self._all)
                if source == self._source and tests_then == (
                    of_test if fate == "killed" else self._all
                ):
                    self.known[tuple(key)] = Fate(fate, by)

    def note(self, change: Change, fate: Fate) -> None:
        """Keep one verdict."""
        self.known[change.key] = fate
        self._path.parent.mkdir(exist_ok=True)
        tests = self._all
        if fate.fate == "killed":
            tests = self._tests.get(fate.by.partition("::")[0], self._all)
        with self._path.open("a") as file:
            line = [self._source, tests, change.key, fate.fate, fate.by]
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _digest(files: Sequence[str]) -> str:
    texts = [(ROOT / file).read_bytes() for file in files]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def main(words: Sequence[str]) -> int:
    """Judge what is asked for, print the survivors; returns the exit status."""
    options = _options(words)
    known, console = classified(), Console(width=max(Console().width, 120))
    jobs = {file: changes_in(file) for file in options.files or FILES}
    if options.sample:
        every = [change for changes in jobs.values() for change in changes]
        some = random.Random(options.seed).sample(every, min(options.sample, len(every)))
        chosen = {change.key for change in some}
        jobs = {
            file: tuple(c for c in changes if c.key in chosen) for file, changes in jobs.items()
        }
    if options.list:
        for change in (change for changes in jobs.values() for change in changes):
            print(f"{change.file}:{change.line}  {change.old}  →  {change.new}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the session, too
    import_heavy()
    verdicts = {file: Verdicts(file, fresh=options.fresh) for file in jobs}
    broken = []
    with Progress(
        *Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)
    ) as progress:
        for file, changes in jobs.items():
            task = progress.add_task(file, total=len(changes))
            todo = [change for change in changes if change.key not in verdicts[file].known]
            progress.advance(task, len(changes) - len(todo))

            def note(change: Change, fate: Fate, file: str = file, task: object = task) -> None:
                verdicts[file].note(change, fate)
                progress.advance(task)  # type: ignore[arg-type]

            why = judge_file(file, FILES[file], todo, note) if todo else ""
            if why:
                broken.append(f"{file}: {why}")
    return _tell(jobs, verdicts, known, broken, console)


def _tell(
    jobs: dict[str, tuple[Change, ...]],
    verdicts: dict[str, Verdicts],
    known: dict[Key, str],
    broken: Sequence[str],
    console: Console,
) -> int:
    alive, all_changes = 0, 0
    for file, changes in jobs.items():
        fates = [(change, verdicts[file].known.get(change.key)) for change in changes]
        left = [(c, f) for c, f in fates if f and f.fate != "killed"]
        unknown = [(c, f) for c, f in left if c.key not in known]
        dead = sum(f is not None and f.fate == "killed" for _, f in fates)
        console.print(f"{file}: {dead} of {len(changes)} killed, {len(left) - len(unknown)} "
                      f"classified, {len(unknown)} alive", highlight=False)  # fmt: skip
        for change, fate in unknown:
            console.print(
                f"  alive: {change.file}:{change.line} in {change.function or 'the module'} "
                f"({change.rule}; {fate.fate})\n    - {change.old}\n    + {change.new}",
                highlight=False, markup=False,
            )  # fmt: skip
        alive += len(unknown)
        all_changes += len(changes)
    for line in broken:
        console.print(f"error: {line}", highlight=False, markup=False)
    console.print(f"{all_changes} changes, {alive} alive and not classified", highlight=False)
    return int(bool(alive or broken))


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.fuzz", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("files", nargs="*", metavar="FILE", help="of those that protect")
    parser.add_argument("--sample", type=int, default=0, help="so many changes, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="judge what was judged before, too")
    parser.add_argument("--list", action="store_true", help="print the changes and run nothing")
    options = parser.parse_args(words)
    unknown = [file for file in options.files if file not in FILES]
    if unknown:
        parser.error(f"{unknown[0]} is not among the files that protect: {', '.join(FILES)}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
