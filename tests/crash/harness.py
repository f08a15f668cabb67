"""Workers to kill, and the one scenario that every point and every mutant goes through."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdpfl_flower.ledger.ledger import Ledger
from tests.crash.checker import Checker

ROOT = Path(__file__).parents[2]
SIGKILL = 9
EPSILON, DELTA = 0.1, 1e-6
CAP = (0.3, 3e-6)
"""Three runs; as floats 0.1 + 0.1 + 0.1 > 0.3, as decimals it is not."""

Ask = dict[str, Any]


def ask(run: str = "a", server_round: int = 1, **more: Any) -> Ask:
    return {"run": run, "round": server_round, "epsilon": EPSILON, "delta": DELTA, **more}


@dataclass
class Result:
    """How a worker ended, and what it answered to each message it came to."""

    killed: int
    said: list[dict[str, str]]
    trace: list[str]


class Workers:
    """A lean process that forks a worker for every job."""

    def __init__(self) -> None:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.crash import worker; "
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", code + "worker.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.modules: list[str] = self._read()

    def run(self, *jobs: dict[str, Any]) -> list[Result]:
        """Do ``jobs`` at the same time."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(jobs) + "\n")
        self._process.stdin.flush()
        results = []
        for result in self._read():
            assert not any("bug" in said for said in result["said"]), result["said"]
            said = [line for line in result["said"] if "trace" not in line]
            trace = [line["trace"] for line in result["said"] if "trace" in line]
            results.append(Result(result["killed"], said, trace[0] if trace else []))
        return results

    def answer(self, folder: Path, *asks: Ask, **more: Any) -> Result:
        """Let one worker answer ``asks`` on the site in ``folder``."""
        (result,) = self.run({"folder": str(folder), "asks": asks, **more})
        return result

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def new_site(folder: Path, cap: tuple[float, float] = CAP) -> Path:
    """Make a folder with a new ledger and its anchor."""
    folder.mkdir()
    new_ledger(folder, cap)
    return folder


def new_ledger(folder: Path, cap: tuple[float, float] = CAP) -> None:
    Ledger.create(folder / "ledger.sqlite", cap[0], cap[1], folder / "anchor").close()


def kill_and_go_on(
    workers: Workers, folder: Path, point: str, fate: str, *, turn: int = 0, **how: Any
) -> None:
    """Kill a worker at ``point``; start another that retries, goes on, and fills the budget.

    Args:
        fate: what becomes of the release: ``nothing`` was taken, it is ``lost``, or the ``same``
            bytes are sent again.
        turn: varies the rounds before, and the size of the payload (4 MiB do not fit into SQLite's
            cache: the file is half written when its transaction ends).
        how: a ``mutant``, or ``clock=True`` for one that jumps.
    """
    new_site(folder)
    checker = Checker(folder)
    rounds_before = 0 if point == "reserve: plan appended" else turn % 3
    size = (100, 0, 70_000, 1, 4096)[turn % 5] if turn != 2 else 4 * 2**20
    past = [ask(server_round=at) for at in range(1, rounds_before + 1)]
    target = ask(server_round=rounds_before + 1, size=size)
    key = ("a", rounds_before + 1, "update")

    died = workers.answer(folder, *past, target, point=point, **how)
    assert died.killed == SIGKILL, f"{point} was not reached"
    books = checker.look()
    assert (key in books.history) == (fate != "nothing")
    assert (key in books.sealed) == (fate == "same")
    assert books.runs == ["a"] * bool(past or fate != "nothing")

    again, other, later, *runs, fourth, once_more = workers.answer(
        folder,
        target,
        {**target, "digest": "other"},
        ask(server_round=rounds_before + 2),
        ask("b"),
        ask("c"),
        ask("d"),
        target,
        **how,
    ).said
    after = checker.look()
    if fate == "lost":
        assert after.history[key] == ["reserved", "lost"]
        assert "lost" in again.get("declined", "")
    else:
        assert "payload" in again
        assert after.sealed[key] == [again["payload"]]
    if fate == "same":
        assert books.sealed[key] == [again["payload"]]
    assert once_more == again
    assert "another request" in other.get("declined", "")
    assert all("payload" in said for said in (later, *runs)), (later, runs)
    assert "budget" in fourth.get("declined", "")
    assert after.spent == after.cap
