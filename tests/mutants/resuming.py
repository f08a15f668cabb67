"""Bugs of a run that goes on."""

from __future__ import annotations

from tests.mutants.runner import Mutant

RESUME = "server_app/run/test_resume.py::test_"
REFUSED = "server_app/run/test_resume_refused.py::test_"
COMMAND = "server_app/commands/test_resume_command.py::test_"

MUTANTS = (
    Mutant(
        "a model that leaves before its checkpoint",
        "server_app/run/rounds.py",
        "        self._checkpoints.save(self._strategy, self.model,",
        "        save_model(self._result)\n"
        "        self._checkpoints.save(self._strategy, self.model,",
        "crash/test_resume.py::test_the_points_are_the_phases_of_a_round",
    ),
    Mutant(
        "an old checkpoint releases a round again",
        "server_app/run/resume.py",
        "    if recorded > at.server_round:",
        "    if recorded > at.server_round + 99:",
        REFUSED + "an_old_checkpoint_does_not_release_a_round_again",
    ),
    Mutant(
        "two servers at work on one run",
        "hdpfl_flower/monitoring/journal.py",
        "        except BlockingIOError:\n            return False",
        "        except BlockingIOError:\n            return True",
        REFUSED + "two_processes_do_not_work_on_one_run",
    ),
    Mutant(
        "terms proposed anew after a crash",
        "strategies/core/base.py",
        "        if not self.settled:",
        "        if True:",
        RESUME + "the_terms_that_sites_froze_stay_whoever_is_online_then",
    ),
    Mutant(
        "participations forgotten by a crash",
        "strategies/core/strategy_state.py",
        '    strategy.sampler.note_declined(facts["declined"])\n',
        "    strategy.sampler.state.asked = {}\n",
        RESUME + "every_rule_goes_on_as_if_nothing_had_happened[drawn sites]",
    ),
    Mutant(
        "a guard that forgets its suspects in a crash",
        "strategies/core/strategy_state.py",
        'load_state(Any, facts["guard"], arrays, strategy.guard.state)\n',
        'load_state(Any, {**facts["guard"], "given": {}}, arrays, strategy.guard.state)\n',
        RESUME + "nothing_that_a_rule_remembers_is_forgotten[content]",
    ),
    Mutant(
        "noise used before the crash is used again",
        "hdpfl_flower/privacy/noise.py",
        "        self.bytes(rest)\n",
        "",
        RESUME + "a_stream_goes_on_where_it_was",
    ),
    Mutant(
        "a changed bit in a checkpoint goes unseen",
        "server_app/run/checkpoint.py",
        '    if said.get("sha256") != _digest(said["head"], arrays):\n        raise damaged\n',
        "",
        REFUSED + "one_changed_bit_is_damage[0.97]",  # in the arrays: no other check reads them
    ),
    Mutant(
        "terms changed by a resume",
        "server_app/run/resume.py",
        "    if other:\n",
        "    if False:\n",
        COMMAND + "a_term_that_differs_is_refused_by_name",
    ),
    Mutant(
        "a personal model trained twice for one round",
        "client_app/training/ditto.py",
        "    if site.simulated and kept_round(path) == instructions.server_round:\n",
        "    if False:\n",
        "client_app/after_run/test_personal_model.py::test_a_round_done_again_trains_no_second_time",
    ),
)
