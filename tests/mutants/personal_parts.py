"""Bugs of personal parts: what shows records without noise, and what nobody pays for."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_ROUND = "client_app/training/test_personal_round.py::test_"
_TERMS = "strategies/personal/test_personal_terms.py::test_"
_NOISE = "noisy = add_noise(total[place], plan.noise_std, streams.noise)"

MUTANTS = (
    Mutant(
        "the whole model tuned where the terms name its head",
        "client_app/after_run/end_of_run.py",
        "slice(0, size) if is_all else",
        "slice(0, size) if terms.after.tuning is not None else",
        "client_app/after_run/test_tuned_place.py"
        "::test_the_tuned_numbers_are_those_that_the_terms_name",
    ),
    Mutant(
        "a tuned update that is left out of the personal model",
        "client_app/after_run/end_of_run.py",
        "flatten(whole) + wire.read_sealed(tuned)",
        "flatten(whole) + 0 * wire.read_sealed(tuned)",
        "client_app/after_run/test_tuned_place.py::test_the_tuned_update_moves_the_final_model",
    ),
    Mutant(
        "momentum of updates without the noise of steps",
        "hdpfl_flower/work/momentum.py",
        "        return True\n",
        "        return False\n",
        _TERMS + "what_contradicts_is_refused_up_front_by_key_and_remedy",
    ),
    Mutant(
        "the noise of momentum taken for fresh",
        "hdpfl_flower/work/momentum.py",
        "return not self.beta",
        "return True",
        _TERMS + "what_contradicts_is_refused_up_front_by_key_and_remedy",
    ),
    Mutant(
        "an un-noised head in the loop",
        "client_app/training/trainer.py",
        "            self._whole(self.start),\n",
        "            self._whole(self.start)\n"
        "            + train(\n"
        "                self._engine, self._whole(self.start), site.training_records(),\n"
        "                replace(plan, noise_std=0.0, steps=type(plan.steps)(1.0, 1)), 0.1,\n"
        "                site.streams(instructions.server_round, 'head'), 256,\n"
        "                phases=(Phase(1, self._personal.work.own),),\n"
        "            ),\n",
        _ROUND + "a_record_outside_of_all_batches_shifts_the_shared_update_by_exactly_0[fedrep]",
    ),
    Mutant(
        "a phase of the head without noise",
        "client_app/training/dpsgd.py",
        "add_noise(total[place], plan.noise_std, streams.noise)",
        "add_noise(total[place], plan.noise_std * (phase is phases[-1]), streams.noise)",
        _ROUND + "every_coordinate_that_stays_has_the_noise_of_its_steps[fedrep]",
    ),
    Mutant(
        "noise on fewer coordinates than are sent",
        "client_app/training/dpsgd.py",
        _NOISE,
        "clean = total[place][-7:].clone()\n"
        f"                    {_NOISE}\n"
        "                    noisy[-7:] = clean",
        _ROUND + "every_coordinate_that_is_sent_has_the_noise_of_its_steps[fedrep]",
    ),
    Mutant(
        "a mask from clean weights",
        "client_app/training/trainer.py",
        "clean = self._instructions.terms.work.reads_clean_weights",
        "clean = True",
        _ROUND + "a_mask_has_noise_of_its_own_in_each_round[dsu top-k]",
    ),
    Mutant(
        "a mask of noisy updates made of clean ones",
        "client_app/work/parted.py",
        "            size_of = np.abs(round_.state.summed)\n",
        "            size_of = np.abs(shared)\n",
        _ROUND + "the_mask_of_noisy_updates_is_of_what_was_sent_before",
    ),
    Mutant(
        "a mask that takes the own part away",
        "client_app/work/parted.py",
        "mask = np.ones(self.size, np.bool_)",
        "mask = np.zeros(self.size, np.bool_)",
        _ROUND + "a_mask_beside_joint_steps_leaves_the_own_part_as_it_is",
    ),
    Mutant(
        "fine-tuning steps that are not charged",
        "hdpfl_flower/privacy/plan.py",
        "paid = (*schedule * models, *((tuning,) if tuning else ()))",
        "paid = schedule * models",
        "hdpfl_flower/privacy/test_plan_parts.py::test_tuning_is_charged_with_the_rounds",
    ),
    Mutant(
        "a charged mask's step that is not charged",
        "hdpfl_flower/work/parted.py",
        'return int(self.mask == "charged-top-k")',
        "return 0",
        "hdpfl_flower/privacy/test_plan_parts.py::test_the_step_of_a_charged_mask_is_charged",
    ),
    Mutant(
        "no step for the mask in a first round of all records",
        "hdpfl_flower/privacy/plan.py",
        "schedule = (Steps(1.0, terms.local_epochs + terms.work.extra_steps), *schedule[1:])",
        "schedule = (Steps(1.0, terms.local_epochs), *schedule[1:])",
        "hdpfl_flower/privacy/test_plan_parts.py::test_the_step_of_a_charged_mask_is_charged",
    ),
    Mutant(
        "a personal vector saved before its release is sealed",
        "client_app/app.py",
        "        lambda: trainer.run(plan), rounds_asked",
        "        lambda: (trainer.run(plan), trainer.keep(replayed=False, plan=plan))[0], rounds_asked",
        _ROUND + "nothing_of_a_round_is_saved_before_its_release_is_sealed",
    ),
    Mutant(
        "a part that moves again when a message is answered again",
        "client_app/work/base.py",
        "            self.state = load_state(path_before(self.path))\n",
        "            pass\n",
        _ROUND + "a_message_that_is_answered_again_leaves_the_part_as_it_is[fedrep]",
    ),
    Mutant(
        "clean masks at a real site",
        "hdpfl_flower/privacy/policy.py",
        "if terms.work.reads_clean_weights and not profile.simulated:",
        "if False:",
        _TERMS + "sites_decline_the_same[terms1]",
    ),
    Mutant(
        "releases that the profile forbids",
        "hdpfl_flower/privacy/policy.py",
        "if asked and not profile.policy.extra_releases:",
        "if False:",
        _TERMS + "a_profile_can_forbid_releases_beside_the_rounds",
    ),
    Mutant(
        "a violation that nobody says",
        "strategies/core/privacy_statement.py",
        "if terms.work.reads_clean_weights and",
        "if False and",
        _TERMS + "every_output_of_a_published_run_says_that_it_violates",
    ),
    Mutant(
        "silent sums sought in a body",
        "strategies/core/model_record.py",
        'if terms.work.sent_part == "body" or',
        "if False or",
        "strategies/personal/test_compositions.py"
        "::test_silent_sums_are_sought_where_the_head_is_sent_alone[head]",
    ),
)
