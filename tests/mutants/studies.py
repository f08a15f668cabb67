"""Bugs of studies: runs mixed up, half runs taken for whole ones, the papers' noise."""

from __future__ import annotations

from tests.mutants.runner import Mutant

STUDIES = "studies/framework/test_studies.py::test_"
FINISHED = "server_app/in_process/test_finished_runs.py::test_"
PAPER = "hdpfl_flower/scenarios/test_paper_formulas.py::test_"
SPLIT = "hdpfl_flower/scenarios/test_partitions.py::test_"
NATURAL = "studies/natural/test_natural.py::test_"
FLAMBY = "studies/flamby/test_flamby.py::test_"
WHICH = "studies/which_rule/test_which_rule.py::test_"
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
        "server_app/in_process/finished_runs.py",
        "return events if len(events) == rounds else None",
        "return events",
        STUDIES + "a_run_that_was_interrupted_is_made_again",
    ),
    Mutant(
        "a comparison does not resume its runs",
        "server_app/in_process/finished_runs.py",
        "if (folder / CHECKPOINT).exists():",
        "if False:",
        FINISHED + "a_comparison_that_resumes_ends_as_one_that_was_never_interrupted",
    ),
    Mutant(
        "a run that another process is at removed",
        "server_app/in_process/finished_runs.py",
        "    if is_locked(folder):",
        "    if False:",
        FINISHED + "a_run_of_another_process_is_left_alone",
    ),
    Mutant(
        "a simulated site's ledger left without its cap",
        "client_app/site/site.py",
        "            if not _LEDGERS[path].account().cap_epsilon:",
        "            if False:",
        FINISHED + "a_crash_while_a_sites_ledger_is_made_leaves_no_trace",
    ),
    Mutant(
        "a run begun anew is resumed where an earlier one was",
        "server_app/in_process/finished_runs.py",
        "for name in (FINISHED, CHECKPOINT):",
        "for name in (FINISHED,):",
        FINISHED + "a_run_begun_anew_is_not_resumed_where_an_earlier_one_was",
    ),
    Mutant(
        "a run begun anew still marked as finished",
        "server_app/in_process/finished_runs.py",
        "for name in (FINISHED, CHECKPOINT):",
        "for name in (CHECKPOINT,):",
        FINISHED + "a_run_begun_anew_is_not_finished_before_its_end",
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
        "hdpfl_flower/scenarios/paper_formulas.py",
        "return round(found, 2)",
        "return round(found * 0.97, 2)",
        PAPER + _COST,
    ),
    Mutant(
        "the paper's conversion left out",
        "hdpfl_flower/scenarios/paper_formulas.py",
        "found = math.log(1 / delta) / (np.asarray(orders) - 1) + zcdp",
        "found = zcdp",
        PAPER + _COST,
    ),
    Mutant(
        "the class of the site that alone holds it at other sites, too",
        "hdpfl_flower/scenarios/partitions.py",
        "(labels == label, labels != label)",
        "(labels == label, labels >= 0)",
        SPLIT + "the_first_site_alone_holds_its_class",
    ),
    Mutant(
        "a site with fewer records of its class than it is said to have",
        "hdpfl_flower/scenarios/partitions.py",
        "min(2 * len(own) + 1,",
        "min(2 * len(own) + 2,",
        SPLIT + "a_class_alone_takes_no_more_than_there_is",
    ),
    Mutant(
        "drawn records of a Dirichlet split with the labels of others",
        "hdpfl_flower/scenarios/partitions.py",
        "labels = labels[rows]",
        "labels = labels[: len(rows)]",
        SPLIT + "dirichlet_takes_so_many_records_for_each_site_on_average",
    ),
    Mutant(
        "more batch sizes than sites",
        "hdpfl_flower/scenarios/budgets.py",
        "if is_each and len(choices) != num_sites:",
        "if is_each and len(choices) < num_sites:",
        "hdpfl_flower/scenarios/test_budgets.py::test_each_site_has_its_own_batch_size",
    ),
    Mutant(
        "rules compared by the spread of their accuracies, not of the differences",
        "studies/which_rule/regret.py",
        "np.std(gaps, ddof=1)",
        "np.std(values, ddof=1)",
        WHICH + "differences_are_taken_seed_by_seed",
    ),
    Mutant(
        "a rule that is the best of its others",
        "studies/which_rule/regret.py",
        "others = [name for name in accuracies if name != rule]",
        "others = list(accuracies)",
        WHICH + "the_best_other_is_not_the_rule_itself",
    ),
    Mutant(
        "the best case taken for the worst",
        "studies/which_rule/regret.py",
        "case = min(known,",
        "case = max(known,",
        WHICH + "the_worst_case_is_the_least_ahead",
    ),
    Mutant(
        "a difference within its noise taken for established",
        "studies/which_rule/regret.py",
        "return abs(self.mean) >= 2 * self.error",
        "return abs(self.mean) >= self.error",
        WHICH + "the_tables_show_what_is_behind_and_what_is_not_established",
    ),
    Mutant(
        "a difference from one seed taken for established",
        "studies/which_rule/regret.py",
        "return abs(self.mean) >= 2 * self.error",
        "return not abs(self.mean) < 2 * self.error",
        WHICH + "one_seed_establishes_nothing",
    ),
    Mutant(
        "rates chosen by the reported runs",
        "studies/which_rule/study.py",
        "for seed in range(self.tasks[self.task(place)].searches)",
        "for seed in self.seeds(place, options)",
        WHICH + "the_search_has_seeds_of_its_own_and_chooses_alone",
    ),
    Mutant(
        "a run on the leaderboard is not recounted",
        "studies/framework/kept_runs.py",
        "    verify(folder)\n",
        "",
        NATURAL + "a_run_that_costs_more_than_it_charged_is_not_kept",
    ),
    Mutant(
        "rates of the leaderboard chosen by the reported records",
        "studies/natural/federation.py",
        "outer.train.take(tests)",
        "outer.test.take(tests)",
        NATURAL + "the_search_tests_every_fifth_training_record_of_each_site_and_no_other",
    ),
    Mutant(
        "a site counts whatever its records",
        "studies/natural/scores.py",
        "weights=weights",
        "weights=None",
        NATURAL + "a_score_counts_a_site_by_its_test_records",
    ),
    Mutant(
        "rates of FLamby's table chosen by the reported records",
        "studies/flamby/study.py",
        "splits[place] = inner_split(outer[place.split, place.row.scaling])",
        "splits[place] = outer[place.split, place.row.scaling]",
        FLAMBY + "the_search_sees_no_record_of_the_reported_test",
    ),
    Mutant(
        "test records in the mean that a hospital scales by",
        "studies/flamby/records.py",
        "own = encoded[parts.train]",
        "own = encoded",
        FLAMBY + "a_site_scales_by_its_training_records_alone",
    ),
    Mutant(
        "the ε of the steps that FLamby accounts, not of those it takes",
        "studies/flamby/spent.py",
        "event_of([Steps(1 / batches, STEPS)], sigma)",
        "event_of([Steps(1 / batches, ROUNDS * batches)], sigma)",
        FLAMBY + "the_steps_that_are_taken_cost_more_than_those_accounted",
    ),
    Mutant(
        "a pass that is not finished is free",
        "studies/flamby/spent.py",
        "passes = math.ceil(STEPS / batches)",
        "passes = STEPS // batches",
        FLAMBY + "the_steps_that_are_taken_cost_more_than_those_accounted",
    ),
    Mutant(
        "the ε of FLamby's table rounded down",
        "studies/flamby/tables.py",
        "math.ceil(value * 10**digits - 1e-9)",
        "math.floor(value * 10**digits)",
        FLAMBY + "an_epsilon_is_rounded_up_in_the_table",
    ),
    Mutant(
        "FLamby's noise without its clip norm",
        "studies/flamby/procedure.py",
        "noise = sigma * CLIP_NORM * normals",
        "noise = sigma * normals",
        FLAMBY + "noise_and_clipping_have_their_scales",
    ),
    Mutant(
        "noise of each hospital's own where all have one seed",
        "studies/flamby/procedure.py",
        "streams[0 if recipe.one_seed else site]",
        "streams[site]",
        FLAMBY + "hospitals_share_their_numbers_as_published_and_no_others",
    ),
    Mutant(
        "a negative control is said to show nothing, whatever it shows",
        "studies/natural/tables.py",
        'return self.mean("gain") > self.mean("gain_reach")',
        "return False",
        NATURAL + "a_negative_control_says_what_it_shows",
    ),
    Mutant(
        "a row of the page is not that of the numbers",
        "studies/natural/page.py",
        '(*kept, *more["cells"])',
        '(*more["cells"], *kept)',
        "studies/natural/test_page.py::test_a_run_adds_a_rule_and_replaces_its_own_cell",
    ),
)
