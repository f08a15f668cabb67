"""Bugs of studies: runs mixed up, half runs taken for whole ones, the papers' noise."""

from __future__ import annotations

from tests.mutants.runner import Mutant

STUDIES = "studies/framework/test_studies.py::test_"
PAPER = "hdpfl_flower/simulation/test_paper_formulas.py::test_"
_ELSE = "a_runs_name_changes_with_all_else_that_makes_it"
_COST = "dp_accounting_gives_the_same_cost"
MUTANTS = (
    Mutant(
        "a run's name without its attack",
        "studies/framework/kept_runs.py",
        '"attack": repr(job.attack),',
        '"attack": "",',
        STUDIES + _ELSE,
    ),
    Mutant(
        "a run's name without the number of sites",
        "studies/framework/kept_runs.py",
        '"sites": job.num_sites,',
        '"sites": 0,',
        STUDIES + _ELSE,
    ),
    Mutant(
        "a half-finished run taken for a whole one",
        "studies/framework/kept_runs.py",
        "return events if len(events) == rounds else None",
        "return events",
        STUDIES + "a_run_that_was_interrupted_is_made_again",
    ),
    Mutant(
        "stopping early ignored",
        "server_app/run/rounds.py",
        "last = min(stop_after or terms.rounds, terms.rounds)",
        "last = terms.rounds",
        STUDIES + "stopping_early_leaves_the_noise_of_all_rounds",
    ),
    Mutant(
        "a paper's noise rounded down",
        "hdpfl_flower/simulation/paper_formulas.py",
        "return round(found, 2)",
        "return round(found * 0.97, 2)",
        PAPER + _COST,
    ),
    Mutant(
        "the paper's conversion left out",
        "hdpfl_flower/simulation/paper_formulas.py",
        "found = math.log(1 / delta) / (np.asarray(orders) - 1) + zcdp",
        "found = zcdp",
        PAPER + _COST,
    ),
)
