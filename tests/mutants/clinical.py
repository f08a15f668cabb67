"""Bugs of the measures of a model: too sure, too good, or of records that a site must not show."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_MEASURES = "hdpfl_flower/measures/test_clinical.py::test_"
_SITE = "client_app/commands/test_evaluate.py::test_"
_RUN = "server_app/run/test_final_measures.py::test_"

MUTANTS = (
    Mutant(
        "an interval over records where persons have several",
        "hdpfl_flower/measures/clinical.py",
        "    found = with_intervals(statistic, units,",
        "    found = with_intervals(statistic, np.arange(len(targets)),",
        _MEASURES + "an_interval_is_over_persons_not_records",
    ),
    Mutant(
        "equal scores that count as ordered",
        "hdpfl_flower/measures/ranks.py",
        "np.cumsum(self.zeros, axis=1) - self.zeros / 2",
        "np.cumsum(self.zeros, axis=1)",
        _MEASURES + "two_classes_are_measured_as_by_another_library",
    ),
    Mutant(
        "certainty from ten records that are all right",
        "hdpfl_flower/measures/clinical.py",
        "    if name not in SHARES or one.low != one.high or units < 1:\n",
        "    if True:\n",
        _MEASURES + "few_records_that_are_all_right_are_no_certainty",
    ),
    Mutant(
        "a subgroup of a few persons shown",
        "client_app/worth/own_measures.py",
        "            if len(np.unique(units[chosen])) < source.subgroup_minimum:\n",
        "            if len(np.unique(units[chosen])) < 1:\n",
        _SITE + "a_small_subgroup_is_not_shown",
    ),
    Mutant(
        "a model measured on what it was trained on",
        "client_app/worth/own_measures.py",
        "np.flatnonzero(every.held_out) if which == HELD_OUT",
        "np.flatnonzero(every.first) if which == HELD_OUT",
        _SITE + "the_measures_are_of_the_held_out_records",
    ),
    Mutant(
        "several models measured as the first of them",
        "server_app/run/final_measures.py",
        "Counter((model, 0) for model in (of_site.values() if len(models) > 1 else [0]))",
        "Counter([(0, 0)])",
        _RUN + "several_models_are_measured_as_the_mean_over_their_sites",
    ),
)
