"""Bugs of the judgement whether a run was worth joining: what makes a site too sure."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_BOOT = "hdpfl_flower/measures/bootstrap.py"
_INTERVALS = "hdpfl_flower/measures/test_bootstrap.py::test_"
_WORDS = "client_app/worth/test_comparison.py::test_"
_SITE = "client_app/commands/test_worth.py::test_"
_HOME = "client_app/worth/test_home_model.py::test_"

MUTANTS = (
    Mutant(
        "records resampled, not persons",
        _BOOT,
        "    members, number = np.unique(units, return_inverse=True)\n    random",
        "    members = number = np.arange(len(units))\n    random",
        _INTERVALS + "all_records_of_a_unit_are_drawn_together",
    ),
    Mutant(
        "signs of records flipped, not of persons",
        _BOOT,
        "np.bincount(np.unique(units, return_inverse=True)[1], weights=gains)",
        "gains",
        _INTERVALS + "flips_move_a_person_as_one",
    ),
    Mutant(
        "four wins that are called a gain",
        _BOOT,
        "    if chance_of_sign(gains, units, seed) <= 1 - level:\n",
        "    if True:\n",
        _INTERVALS + "few_wins_and_no_loss_are_no_gain",
    ),
    Mutant(
        "an interval of large samples for few units",
        _BOOT,
        "stdtrit(units - 1, (1 - level) / 2)",
        "stdtrit(1e9, (1 - level) / 2)",
        _INTERVALS + "the_tails_of_few_units_are_those_of_students_t",
    ),
    Mutant(
        "the best of many models by chance",
        "client_app/worth/comparison.py",
        "    level = 1 - (1 - confidence) / len(pairs)\n",
        "    level = confidence\n",
        _WORDS + "the_level_of_a_gain_is_shared_out_over_all_of_them",
    ),
    Mutant(
        "worth it, and no better than a constant",
        "client_app/worth/verdict.py",
        "    if over_home.above and over_constant.above:\n",
        "    if over_home.above:\n",
        _WORDS + "the_words_of_a_verdict",
    ),
    Mutant(
        "a home model tested on what it was trained on",
        "client_app/worth/judgement.py",
        "np.flatnonzero(self._every.first & ~self._every.held_out)",
        "np.flatnonzero(self._every.first)",
        _SITE + "the_home_model_beside_them_was_trained_on_none_of_them",
    ),
    Mutant(
        "a joined model tested on what it was trained on",
        "client_app/worth/judgement.py",
        "np.flatnonzero(self._every.held_out)",
        "np.flatnonzero(self._every.first)",
        _SITE + "the_figures_are_of_the_held_out_records_alone",
    ),
    Mutant(
        "a person on both sides of a fold",
        "client_app/worth/judgement.py",
        "folds_of(every.copies, folds, home.seed)",
        "folds_of(np.arange(len(every.copies)), folds, home.seed)",
        _HOME + "a_record_is_predicted_by_a_model_that_saw_none_of_its_person",
    ),
    Mutant(
        "an expectation without the plan's noise",
        "client_app/worth/expectation.py",
        "            plan.round(server_round, terms.clip_norm),\n",
        "            replace(plan, noise_multiplier=0.0).round(server_round, terms.clip_norm),\n",
        "client_app/commands/test_expectation.py::test_the_simulation_is_that_of_the_plan",
    ),
    Mutant(
        "every record of a person in training",
        "hdpfl_flower/data/site_data.py",
        "every_record: bool = False",
        "every_record: bool = True",
        "hdpfl_flower/data/test_unit_records.py::"
        "test_training_is_the_first_record_of_each_unit_that_is_not_held_out",
    ),
)
