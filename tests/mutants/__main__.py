"""Put known bugs back, one at a time, and show which test kills each: ``make mutants``."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.mutants.runner import judge_all
from tests.mutants.table import MUTANTS

chosen = [m for m in MUTANTS if not sys.argv[1:] or m.name in sys.argv[1:]]
if not chosen:
    sys.exit("error: no mutant has that name; without a name, all of them run")
console = Console(width=max(Console().width, 120))
running = judge_all(chosen, os.cpu_count() or 1)
found = list(
    track(running, "mutants", total=len(chosen) + 1, console=Console(stderr=True), transient=True)
)
healthy, verdicts = found[0], found[1:]
if healthy.fate != "survived":
    sys.exit(f"error: a test fails on the code as it is: {healthy.reason}")
table = Table(title="Bugs put back, and what kills them")
for title in ("bug", "in", "killed by", "fate"):
    table.add_column(title, overflow="fold")
for mutant, verdict in zip(chosen, verdicts, strict=True):
    fate = verdict.fate + (f": {verdict.reason}" if verdict.fate == "no working code" else "")
    table.add_row(mutant.name, mutant.file, mutant.killer, fate)
console.print(table)
killed = sum(verdict.fate == "killed" for verdict in verdicts)
for verdict in verdicts:
    if verdict.fate != "killed":
        console.print(f"alive: {verdict.name} ({verdict.fate})")
console.print(f"killed {killed} of {len(verdicts)}")
sys.exit(killed != len(verdicts))
