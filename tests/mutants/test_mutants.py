"""Each bug that ``make mutants`` puts back fits the code, and its runner can fail."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.mutants.runner import ROOT, Mutant, MutantError, mutated
from tests.mutants.table import MUTANTS


def misfit(mutant: Mutant) -> str | None:
    """Return why a mutant cannot be tried; None: it can."""
    try:
        changed = mutated(mutant)
        compile(changed, "mutant", "exec")
    except (MutantError, SyntaxError) as error:
        return str(error)
    return "nothing changed" if changed == (ROOT / mutant.file).read_text() else None


def test_every_mutant_fits_the_code_and_compiles() -> None:
    found = {mutant.name: misfit(mutant) for mutant in MUTANTS}
    assert {name: why for name, why in found.items() if why} == {}


@pytest.mark.parametrize("change", [{"old": "no such text"}, {"new": "x = ("}, {"new": None}])
def test_a_mutant_that_does_not_fit_is_listed(change: dict[str, str | None]) -> None:
    first = MUTANTS[0]
    assert misfit(replace(first, **{k: v or first.old for k, v in change.items()}))


def test_a_mutant_that_no_longer_fits_is_told() -> None:
    with pytest.raises(MutantError, match="0 times"):
        mutated(replace(MUTANTS[0], old="no such text"))


def test_every_killer_is_there() -> None:
    killers = [mutant.killer.partition("::") for mutant in MUTANTS]
    gone = [
        (file, test)
        for file, _, test in killers
        if f"def {test.partition('[')[0]}(" not in (ROOT / "tests" / file).read_text()
    ]
    assert gone == []


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
