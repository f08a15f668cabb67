"""Each bug that ``make mutants`` puts back fits the code, and its runner can fail."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.mutants.runner import ROOT, MutantError, mutated
from tests.mutants.table import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_and_compiles(mutant: object) -> None:
    changed = mutated(mutant)  # type: ignore[arg-type]
    compile(changed, "mutant", "exec")
    assert changed != (ROOT / mutant.file).read_text()  # type: ignore[attr-defined]


def test_a_mutant_that_no_longer_fits_is_told() -> None:
    with pytest.raises(MutantError, match="0 times"):
        mutated(replace(MUTANTS[0], old="no such text"))


def test_names_are_unique() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 25


@pytest.mark.slow
def test_a_change_that_is_no_bug_survives() -> None:
    """The runner does not call everything dead."""
    script = (
        "from dataclasses import replace\n"
        "from tests.mutants.runner import judge_all\n"
        "from tests.mutants.table import MUTANTS\n"
        "harmless = replace(MUTANTS[0], new=MUTANTS[0].old + '.clone()')\n"
        "broken = replace(MUTANTS[0], new='nonsense(')\n"
        "print([v.fate for v in judge_all([harmless, broken], 2)])\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['survived', 'survived', 'no working code']", done.stderr
