"""Bugs of personal models: a prior that shows the records, or that nobody pays for."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_SHRINK = "client_app/after_run/test_shrinkage.py::test_"
_CLOSED = "hdpfl_flower/ledger/test_closed_runs.py::test_"
_MODEL = "client_app/commands/test_model.py::test_"
_PRIOR = "client_app/after_run/test_prior.py::test_"
MUTANTS = (
    Mutant(
        "a prior from exact counts",
        "client_app/after_run/end_of_run.py",
        "        return count_labels(site.task, records, noise.noise_multiplier, stream)\n",
        "        return count_labels(site.task, records, 0.0, stream)\n",
        _PRIOR + "the_noise_is_that_of_the_plan",
    ),
    Mutant(
        "half the noise on the counts",
        "client_app/after_run/prior.py",
        "    return wire.encode_update(add_noise(exact, noise_multiplier, stream).numpy())\n\n\n"
        "def sum_residuals(",
        "    return wire.encode_update(add_noise(exact, noise_multiplier / 2, stream).numpy())\n\n\n"
        "def sum_residuals(",
        _PRIOR + "every_count_has_the_noise_of_the_plan",
    ),
    Mutant(
        "residuals that are not clipped",
        "client_app/after_run/prior.py",
        "np.clip((records.targets - outputs) / BOUND, -1, 1)",
        "(records.targets - outputs) / BOUND",
        _PRIOR + "one_record_changes_one_count_by_one_and_a_sum_by_at_most_one",
    ),
    Mutant(
        "counts drawn anew in a later round",
        "client_app/app.py",
        "    once = replace(instructions, server_round=1)\n",
        "    once = replace(instructions)\n",
        _PRIOR + "the_counts_are_drawn_once_a_run_and_never_lost",
    ),
    Mutant(
        "counts that another message cannot read",
        "client_app/app.py",
        "        once = replace(once, digest=prior_digest(instructions.terms.run_id))\n",
        "        pass\n",
        _PRIOR + "the_counts_are_drawn_once_a_run_and_never_lost",
    ),
    Mutant(
        "lost counts drawn again",
        "client_app/app.py",
        "        again=site.simulated,\n",
        "        again=True,\n",
        _PRIOR + "lost_counts_are_spent",
    ),
    Mutant(
        "counts that are handed over",
        "client_app/app.py",
        "    if kind not in STAYS:\n",
        "    if True:\n",
        _PRIOR + "the_counts_are_drawn_once_a_run_and_never_lost",
    ),
    Mutant(
        "counts that are not charged",
        "hdpfl_flower/privacy/plan.py",
        "        beside = [one for one in (choices, counts, scores) if one and epsilon < math.inf]\n",
        "        beside = [one for one in (choices, scores) if one and epsilon < math.inf]\n",
        "hdpfl_flower/privacy/test_plan_extras.py::test_counts_are_charged_beside_the_steps",
    ),
    Mutant(
        "counts that no account shows",
        "hdpfl_flower/privacy/plan.py",
        "        return tuple(one for one in (self.choices, self.counts, self.scores) if one)\n",
        "        return tuple(one for one in (self.choices, self.scores) if one)\n",
        "hdpfl_flower/privacy/test_plan_extras.py::test_counts_are_charged_beside_the_steps",
    ),
    Mutant(
        "the personal prior divided by the true number of records",
        "client_app/after_run/end_of_run.py",
        "        declared = site.profile.training.declared_records\n",
        "        declared = len(site.training_records())\n",
        _PRIOR + "what_a_prior_adds_is_a_function_of_the_sealed_numbers_and_constants"
        "[regression-20]",
    ),
    Mutant(
        "a prior smoothed by the true number of records",
        "client_app/after_run/end_of_run.py",
        "log_prior(task, found, z)",
        "log_prior(task, found + np.float32(len(site.training_records())), z)",
        _PRIOR + "what_a_prior_adds_is_a_function_of_the_sealed_numbers_and_constants[classes-20]",
    ),
    Mutant(
        "an un-noised Ditto model labelled private",
        "client_app/after_run/personal_model.py",
        '    plain = terms.second is not None and terms.second.kind != "private"\n',
        "    plain = False\n",
        _MODEL + "a_ditto_model_without_noise_is_never_called_private[kept-terms1-kept]",
    ),
    Mutant(
        "a Ditto model that the tool calls private",
        "client_app/commands/model.py",
        "np.float32), kind_of(terms)), task\n",
        'np.float32), "private"), task\n',
        _MODEL + "a_ditto_model_without_noise_is_never_called_private[kept-terms1-kept]",
    ),
    Mutant(
        "a Ditto model that the comparison calls private",
        "client_app/worth/candidates.py",
        '        kind = noisy if kind_of(terms) == "private" else "kept"\n',
        "        kind = noisy\n",
        _MODEL + "a_ditto_model_without_noise_is_never_called_private[kept-terms1-kept]",
    ),
    Mutant(
        "a kept model that the comparison calls private",
        "client_app/worth/candidates.py",
        '        kind = noisy if personal.kind == "private" else "kept"\n',
        "        kind = noisy\n",
        _MODEL + "a_ditto_model_without_noise_is_never_called_private[kept-terms1-kept]",
    ),
    Mutant(
        "a kept model stored as private",
        "client_app/after_run/end_of_run.py",
        "arrays, added, kind_of(site.terms))",
        'arrays, added, "private")',
        _MODEL + "a_ditto_model_without_noise_is_never_called_private[kept-terms1-kept]",
    ),
    Mutant(
        "a model of no known kind read as private",
        "client_app/after_run/personal_model.py",
        '"private" if metadata[_KIND] == "private" else "kept"',
        '"kept" if metadata[_KIND] == "kept" else "private"',
        _MODEL + "a_file_that_does_not_say_private_is_not[unknown]",
    ),
    Mutant(
        "shrinkage that keeps the noise",
        "client_app/after_run/shrinkage.py",
        "max(0.0, 1 - size * state.variance / energy)",
        "max(0.0, 1 - 0 * state.variance / energy)",
        _SHRINK + "noise_alone_leaves_next_to_nothing_and_a_smaller_variance_much_of_it",
    ),
    Mutant(
        "shrinkage under models of the sites' own",
        "strategies/composition.py",
        "strategy.several_models and config.terms.after.shrink is not None",
        "False",
        _SHRINK + "what_has_no_global_path_or_no_noise_of_steps_is_refused[more0-does not go with "
        "'local']",
    ),
    Mutant(
        "a release after the run was closed",
        "hdpfl_flower/ledger/ledger.py",
        "                    self._account.check_open(request)\n",
        "",
        _CLOSED + "no_release_follows_of_whichever_kind[update]",
    ),
    Mutant(
        "a release after the end that no check finds",
        "hdpfl_flower/ledger/invariants.py",
        'if run in closed and entry.kind in ("plan", "reserved", "sealed"):',
        'if run in closed and entry.kind == "plan":',
        _CLOSED + "a_forged_release_after_the_end_is_found",
    ),
    Mutant(
        "a model tuned without noise before the run is closed",
        "client_app/after_run/home_tuning.py",
        "    ledger.close_run(model.terms.run_id, tuned=True)\n",
        "",
        _MODEL + "tuning_closes_the_run_and_keeps_the_model_apart",
    ),
    Mutant(
        "a kept model called private",
        "client_app/after_run/home_tuning.py",
        'added=none, kind="kept")',
        'added=none, kind="private")',
        _MODEL + "tuning_closes_the_run_and_keeps_the_model_apart",
    ),
    Mutant(
        "a kept model in the place that a run reads",
        "client_app/after_run/home_tuning.py",
        "    save_personal_model(home_tuned_path(folder, model.terms.run_id), tuned)\n",
        "    from client_app.after_run.personal_model import personal_model_file\n"
        "    save_personal_model(home_tuned_path(folder, model.terms.run_id), tuned)\n"
        "    save_personal_model(personal_model_file(folder, model.terms.run_id), tuned)\n",
        _MODEL + "tuning_closes_the_run_and_keeps_the_model_apart",
    ),
)
"""As ``table.MUTANTS``."""
