"""Bugs of a rate that the server finds."""

from __future__ import annotations

from tests.mutants.runner import Mutant

FOUND = "strategies/server_step/test_found.py::test_"

MUTANTS = (
    Mutant(
        "a rate that follows chance",
        "strategies/server_step/found.py",
        "if evidence > NOISE else 0.0",
        "if evidence > 0 else 0.0",
        FOUND + "noise_alone_moves_the_rate_in_one_round_of_twenty",
    ),
    Mutant(
        "a rate that grows after an overshoot",
        "strategies/server_step/found.py",
        "GAIN * agreement *",
        "GAIN * abs(agreement) *",
        FOUND + "the_rates_are_those_of_the_equations",
    ),
    Mutant(
        "a first step that does not know how large the aggregate is",
        "strategies/server_step/found.py",
        "distance(len(delta)) / (math.sqrt(self._rounds) * norm)",
        "distance(len(delta)) / math.sqrt(self._rounds)",
        FOUND + "the_moves_do_not_depend_on_the_unit_of_the_aggregate[0.001]",
    ),
    Mutant(
        "a rate of the sites that does not know the clip norm",
        "hdpfl_flower/config/run_config.py",
        'self.terms.clip_norm if self.terms.noise == "records" else 1.0',
        "1.0",
        FOUND + "sites_are_sent_a_number[{'clip-norm': 4}-0.075]",
    ),
    Mutant(
        "a guard that takes out a part at a rate that was not known",
        "strategies/server_step/found.py",
        "    is_linear = False\n",
        "",
        FOUND + "no_guard_takes_out_what_moved_at_a_rate_that_was_not_known",
    ),
    Mutant(
        "a default that leaves a guard nothing to take out",
        "strategies/composition.py",
        'if config.server.guard == "content":',
        "if False:",
        FOUND + "where_no_rate_can_be_found_the_default_is_a_stated_one[{'guard': 'content'}-0.1]",
    ),
    Mutant(
        "a default by which the parts of a model move at different rates",
        "strategies/composition.py",
        "return not (terms.has_personal_state or terms.second)",
        "return True",
        FOUND + "where_no_rate_can_be_found_the_default_is_a_stated_one[{'strategy': 'ditto'}-0.1]",
    ),
)
