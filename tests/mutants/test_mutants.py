"""Each bug that ``make mutants`` puts back fits the code, and its runner can fail."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.mutants.runner import ROOT, Mutant, MutantError, mutated
from tests.mutants.table import MUTANTS, bugs_of

HALF = next(mutant for mutant in MUTANTS if mutant.name == "half the noise")


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
    assert misfit(replace(HALF, **{k: v or HALF.old for k, v in change.items()}))


def test_a_mutant_that_no_longer_fits_is_told() -> None:
    with pytest.raises(MutantError, match="0 times"):
        mutated(replace(HALF, old="no such text"))


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


@pytest.mark.parametrize("end", ["", "another line\n> a::test_b\n", "# without a test\n"])
def test_a_list_of_bugs_is_read_to_its_end_or_not_at_all(end: str) -> None:
    text = "Bugs\n\nin a.py\n# a bug\n-x = 1\n-y\n> a::test_b\n"
    assert bugs_of(text) == ("Bugs", [Mutant("a bug", "a.py", "x = 1\ny", "", "a::test_b")])
    if end:
        with pytest.raises(ValueError, match="Bugs: "):
            bugs_of(text + end)


@pytest.mark.slow
def test_a_change_that_is_no_bug_survives() -> None:
    """The runner does not call everything dead."""
    script = (
        "from dataclasses import replace\n"
        "from tests.mutants.runner import judge_all\n"
        "from tests.mutants.table import MUTANTS\n"
        "half = next(mutant for mutant in MUTANTS if mutant.name == 'half the noise')\n"
        "harmless = replace(half, new=half.old + '.clone()')\n"
        "broken = replace(half, new='nonsense(')\n"
        "print([v.fate for v in judge_all([harmless, broken], 2)])\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['survived', 'survived', 'no working code']", done.stderr
