"""Bugs of PFA+, in which a private site sends one number in place of its update."""

from __future__ import annotations

from tests.mutants.runner import Mutant

MUTANTS = (
    Mutant(
        "a projection of the noiseless update",
        "client_app/training/trainer.py",
        "            update = self._train(round_plan, UPDATE, course)\n",
        "            if self._direction:\n"
        "                round_plan = replace(round_plan, noise_std=0.0)\n"
        "            update = self._train(round_plan, UPDATE, course)\n",
        "client_app/training/test_last_step.py::test_the_number_is_of_the_noisy_update",
    ),
    Mutant(
        "one number without noise, seen in the sums",
        "client_app/training/trainer.py",
        "            update = self._train(round_plan, UPDATE, course)\n",
        "            if self._direction:\n"
        "                round_plan = replace(round_plan, noise_std=0.0)\n"
        "            update = self._train(round_plan, UPDATE, course)\n",
        "privacy/test_wire_proof.py::test_neither_epsilon_nor_records_move_the_number_but_through_the_noisy_sums",
    ),
    Mutant(
        "an old model taken for the last one",
        "client_app/training/last_step.py",
        "    if instructions.project != digests.get(_BEFORE) or not isinstance(before, ArrayRecord):\n",
        "    if not isinstance(before, ArrayRecord):\n",
        "client_app/training/test_last_step.py::test_a_model_that_is_not_the_last_one_gives_no_direction",
    ),
    Mutant(
        "a digest that leaves out what to project on",
        "hdpfl_flower/wire.py",
        "{server_round}\\n{named}\\n{contents}",
        "{server_round}\\n{contents}",
        "client_app/training/test_last_step.py::test_another_direction_for_a_round_that_was_answered_is_declined",
    ),
    Mutant(
        "a model kept although it was not checked",
        "client_app/training/trainer.py",
        "        self.models: Sequence[Arrays] = read_models(site, instructions)\n",
        "        site.memory['hdpfl.now'] = instructions.model\n"
        "        self.models: Sequence[Arrays] = read_models(site, instructions)\n",
        "client_app/training/test_last_step.py::test_a_model_that_is_refused_is_not_kept",
    ),
    Mutant(
        "one number from whom it was not asked",
        "strategies/core/round_messages.py",
        "may_be_projected=request.along is not None",
        "may_be_projected=True",
        "strategies/projection/test_pfa_plus.py::test_a_number_is_taken_only_from_whom_it_is_asked",
    ),
    Mutant(
        "any number lifted",
        "strategies/core/checks.py",
        "    if not square <= MAX_NORM**2:\n",
        "    if False:\n",
        "strategies/projection/test_pfa_plus.py::test_a_number_that_cannot_be_used_is_dropped",
    ),
    Mutant(
        "a request asked twice forgets the step",
        "client_app/training/last_step.py",
        "    if digests.get(_NOW) != instructions.model_digest:\n",
        "    if True:\n",
        "client_app/training/test_last_step.py::test_a_simulated_site_that_is_asked_twice_sends_the_same_bytes",
    ),
)
