"""Bugs in the charged histogram of scores, and in what is estimated from it."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_SITE = "client_app/after_run/test_score_histogram.py::test_"
_CELLS = "hdpfl_flower/measures/test_score_cells.py::test_"
_FROM = "hdpfl_flower/measures/test_from_cells.py::test_"
_RUN = "server_app/run/test_federated_measures.py::test_"
_HISTOGRAM = "client_app/after_run/score_histogram.py"
_ESTIMATE = "hdpfl_flower/measures/from_cells.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "scores that cost nothing beside the steps",
        "hdpfl_flower/privacy/plan.py",
        "beside = [one for one in (choices, counts, scores) if one and epsilon < math.inf]",
        "beside = [one for one in (choices, counts) if one and epsilon < math.inf]",
        "hdpfl_flower/privacy/test_plan_extras.py::test_counts_are_charged_beside_the_steps",
    ),
    Mutant(
        "scores that no accountant sees",
        "hdpfl_flower/privacy/plan.py",
        "(one for one in (self.choices, self.counts, self.scores) if one)",
        "(one for one in (self.choices, self.counts) if one)",
        _SITE + "it_is_charged_sealed_and_sent_once",
    ),
    Mutant(
        "scores without noise",
        _HISTOGRAM,
        "add_noise(torch.from_numpy(exact), noise_multiplier, stream)",
        "torch.from_numpy(exact)",
        _SITE + "every_cell_has_the_noise_of_the_plan",
    ),
    Mutant(
        "scores with half of the noise",
        _HISTOGRAM,
        "add_noise(torch.from_numpy(exact), noise_multiplier, stream)",
        "add_noise(torch.from_numpy(exact), noise_multiplier / 2, stream)",
        _SITE + "every_cell_has_the_noise_of_the_plan",
    ),
    Mutant(
        "empty cells without noise",
        _HISTOGRAM,
        "add_noise(torch.from_numpy(exact), noise_multiplier, stream)",
        "torch.cat([add_noise(torch.from_numpy(exact), noise_multiplier, stream)[:48], "
        "torch.zeros(32)])",
        _SITE + "every_cell_has_the_noise_of_the_plan",
    ),
    Mutant(
        "two records of a person counted",
        "hdpfl_flower/data/site_data.py",
        "schema, own, every_record=every_record, digests",
        "schema, own, every_record=True, digests",
        _SITE + "of_a_person_one_record_counts",
    ),
    Mutant(
        "a record counted twice",
        "hdpfl_flower/measures/score_cells.py",
        "    return np.minimum(cells, MOST)",
        "    return np.minimum(2 * cells, MOST)",
        _SITE + "neighbours_differ_by_one_count_whatever_the_model",
    ),
    Mutant(
        "scores of training records",
        _HISTOGRAM,
        "    records = site.test_records()\n    stream",
        "    records = site.training_records()\n    stream",
        _SITE + "it_counts_the_scores_of_the_held_out_records_alone",
    ),
    Mutant(
        "scores that depend on the other records",
        _HISTOGRAM,
        "        outputs = predict_apart(spec, task, arrays, records.features)\n",
        "        outputs = predict_apart(spec, task, arrays, records.features - "
        "records.features.mean())\n",
        _SITE + "neighbours_differ_by_one_count_whatever_the_model",
    ),
    Mutant(
        "scores sent anew for each round that is named",
        "client_app/app.py",
        "    once = replace(instructions, server_round=terms.rounds)\n"
        "    payload = _release(\n"
        "        site, once, SCORES, charged,\n"
        "        lambda: count_scores(site, arrays, noise), noise.count,\n",
        "    payload = _release(\n"
        "        site, instructions, SCORES, charged,\n"
        "        lambda: count_scores(site, arrays, noise),\n",
        _SITE + "it_is_charged_sealed_and_sent_once",
    ),
    Mutant(
        "a run charged for its scores alone",
        "client_app/app.py",
        "    if not took_part(site):  # else the end",
        "    if False:  # else the end",
        _SITE + "no_run_is_charged_for_a_histogram_alone",
    ),
    Mutant(
        "scores whose data are read after the release",
        "client_app/app.py",
        "    arrays = read_model(site, instructions)\n    site.test_records()\n",
        "    arrays = read_model(site, instructions)\n",
        _SITE + "data_that_cannot_be_read_costs_no_release",
    ),
    Mutant(
        "scores that a policy cannot forbid",
        "hdpfl_flower/privacy/policy.py",
        "for each in terms.kinds if each.is_charged]",
        'for each in terms.kinds if each.is_charged and each.kind != "scores"]',
        _SITE + "a_policy_can_forbid_it",
    ),
    Mutant(
        "scores of any number in the invariants",
        "hdpfl_flower/ledger/invariants.py",
        "    once = {COUNTS: plan.counts, SCORES: plan.scores, TUNING: plan.tuning}\n",
        "    once = {COUNTS: plan.counts, TUNING: plan.tuning}\n",
        _SITE + "it_is_charged_sealed_and_sent_once",
    ),
    Mutant(
        "simulated sites that hold out no record for scores",
        "client_app/site/simulated.py",
        'config.terms.evaluation == "sites" or config.terms.after.scores is not None',
        'config.terms.evaluation == "sites"',
        _RUN + "without_noise_it_is_exact_and_every_site_released_it_once",
    ),
    Mutant(
        "an interval without the noise",
        _ESTIMATE,
        "cells.variance + np.maximum(h, 0)",
        "np.maximum(h, 0)",
        _FROM + "intervals_cover_as_often_as_they_say_and_those_of_another_scale_do_not",
    ),
    Mutant(
        "an interval of the noise alone",
        _ESTIMATE,
        "cells.variance + np.maximum(h, 0)",
        "cells.variance + 0 * np.maximum(h, 0)",
        _FROM + "intervals_cover_as_often_as_they_say_and_those_of_another_scale_do_not",
    ),
    Mutant(
        "a ratio with its bias",
        _ESTIMATE,
        "    return _share(ratio + lead / pairs**2, ",
        "    return _share(ratio, ",
        _FROM + "a_ratio_of_noisy_counts_is_debiased",
    ),
    Mutant(
        "ties within a bin counted as right",
        _ESTIMATE,
        "np.tri(BINS, k=-1) + np.eye(BINS) / 2",
        "np.tri(BINS, k=-1) + np.eye(BINS)",
        _FROM + "without_noise_every_measure_is_that_of_the_binned_scores",
    ),
    Mutant(
        "noise estimated from cells that hold records",
        _ESTIMATE,
        "np.square(rows[:, 2 * BINS :]).mean(1)",
        "np.square(rows[:, BINS:]).mean(1)",
        _FROM + "the_noise_is_estimated_from_the_empty_cells",
    ),
    Mutant(
        "measures where the noise hides a class",
        _ESTIMATE,
        "    if not min(cells.zeros.sum(), cells.ones.sum()) > least:\n",
        "    if not cells.records > 0:\n",
        _FROM + "noise_that_hides_a_class_leaves_no_measure",
    ),
    Mutant(
        "scores of many classes",
        "server_app/run/rounds.py",
        "            each.check_task(task_for(terms))\n",
        "            pass\n",
        _RUN + "what_cannot_be_is_refused_up_front",
    ),
)
"""As ``table.MUTANTS``."""
