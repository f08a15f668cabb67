"""Bugs of rounded updates and models: what is rounded, by what chance, and who reads it."""

from __future__ import annotations

from tests.mutants.runner import Mutant

SITE = "client_app/training/test_upload.py::test_"
VECTORS = "hdpfl_flower/test_quantize.py::test_"
SERVER = "strategies/core/test_rounded_uploads.py::test_"
_NOISY = "        return payload_of(self._site, self._instructions, update)\n"
_QUIET_SCALE = (
    "        quiet = replace(round_plan, noise_std=0.0)\n"
    "        largest = abs(self._train(quiet, UPDATE, course)).max()\n"
    "        update = update.clip(-largest, largest)\n" + _NOISY
)
MUTANTS = (
    Mutant(
        "int8 rounded to the nearest, which is biased",
        "hdpfl_flower/quantize.py",
        "(_uniform(draw, len(values)) + 0.5) * _WORDS",
        "(0 * _uniform(draw, len(values)) + 2.0**15) * _WORDS",
        VECTORS + "rounding_is_unbiased",
    ),
    Mutant(
        "bfloat16 cut off, which is biased",
        "hdpfl_flower/quantize.py",
        "(bits + _uniform(draw, len(bits)))",
        "(bits + 0 * _uniform(draw, len(bits)))",
        VECTORS + "rounding_is_unbiased",
    ),
    Mutant(
        "a scale of the update before its noise",
        "client_app/training/trainer.py",
        _NOISY,
        _QUIET_SCALE,
        SITE + "what_is_rounded_is_the_noisy_update_alone",
    ),
    Mutant(
        "a scale of the update before its noise, seen with frozen sums",
        "client_app/training/trainer.py",
        _NOISY,
        _QUIET_SCALE,
        "privacy/test_wire_proof.py"
        "::test_a_rounded_update_is_a_function_of_the_noisy_sums_and_chance",
    ),
    Mutant(
        "rounding in place of the noise",
        "client_app/training/trainer.py",
        "            update = self._train(round_plan, UPDATE, course)\n",
        "            if terms.upload != FLOAT32:\n"
        "                round_plan = replace(round_plan, noise_std=0.0)\n"
        "            update = self._train(round_plan, UPDATE, course)\n",
        SITE + "what_is_rounded_is_the_noisy_update_alone",
    ),
    Mutant(
        "a client's update rounded before its noise",
        "client_app/training/client_level.py",
        "payload_of(self._site, self._instructions, update.astype(np.float32))",
        "payload_of(self._site, self._instructions, moved.astype(np.float32))",
        SITE + "what_is_rounded_is_the_noisy_update_alone",
    ),
    Mutant(
        "a site rounds what a server's noise was made for",
        "hdpfl_flower/privacy/policy.py",
        "        check_up_front(terms)\n",
        "        pass\n",
        SITE + "updates_without_noise_are_not_rounded",
    ),
    Mutant(
        "one number of a rounded update",
        "client_app/training/trainer.py",
        "        if instructions.project is not None and terms.upload != FLOAT32:\n",
        "        if False:\n",
        SITE + "one_number_of_a_rounded_update_is_declined",
    ),
    Mutant(
        "the memory of rounded models is not counted",
        "client_app/training/trainer.py",
        "max(sent, 0 if form == FLOAT32 else decoded)",
        "sent",
        SITE + "a_rounded_model_may_not_take_more_memory_than_the_policy_allows",
    ),
    Mutant(
        "any scale is read",
        "hdpfl_flower/quantize.py",
        "    if np.signbit(scales).any() or not np.isfinite(scales).all():\n",
        "    if False:\n",
        VECTORS + "malformed_bytes_are_refused_in_constant_words",
    ),
    Mutant(
        "NaN carried into a number",
        "hdpfl_flower/quantize.py",
        "    halves[~np.isfinite(values)] = _NOT_A_NUMBER\n",
        "",
        VECTORS + "what_is_not_finite_is_sent_as_what_is_refused",
    ),
    Mutant(
        "another rounding of the model each time it is sent",
        "strategies/core/model_record.py",
        "RandomStream(bytes.fromhex(wire.model_digest(model)))",
        'RandomStream(__import__("os").urandom(32))',
        SERVER + "a_model_is_sent_rounded_for_training_alone_and_the_same_each_time",
    ),
    Mutant(
        "a rounded model at the end of a run",
        "strategies/core/model_record.py",
        "        if kind == wire.TRAIN and terms.download != FLOAT32:\n",
        "        if terms.download != FLOAT32:\n",
        SERVER + "a_model_is_sent_rounded_for_training_alone_and_the_same_each_time",
    ),
    Mutant(
        "rounding taken for noise that sites share",
        "strategies/guards/proof.py",
        "max(HUSH, floor.rounding)",
        "HUSH",
        SERVER + "rounding_of_sites_without_noise_is_no_shared_noise",
    ),
    Mutant(
        "numbers equal by chance taken for a copy",
        "strategies/guards/guard.py",
        "FEW if config.terms.upload == FLOAT32 else LEAST_KNOWN_APART",
        "FEW",
        SERVER + "few_rounded_numbers_are_equal_by_chance_and_nobody_is_refused_for_it",
    ),
    Mutant(
        "a liar in another form than the terms'",
        "server_app/in_process/liars.py",
        "            if liar.form != FLOAT32:",
        "            if False:",
        "server_app/in_process/test_rounded_runs.py"
        "::test_a_liar_sends_its_lie_in_the_form_of_the_terms",
    ),
)
