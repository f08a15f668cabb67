"""Bugs of the plan, the accountant and the ledger."""

from __future__ import annotations

from tests.mutants.runner import Mutant

GUARD = "privacy/test_guard.py::test_"
APP = "client_app/test_app.py::test_"
PLD = "hdpfl_flower/privacy/test_pld.py::test_"
ACCOUNTING = "hdpfl_flower/privacy/test_accounting.py::test_"
FORMATS = "test_formats.py::test_"
LEDGER = "hdpfl_flower/ledger/test_ledger.py::test_"
DAMAGE = "hdpfl_flower/ledger/test_ledger_damage.py::test_"
MUTANTS = (
    Mutant(
        "terms that change in mid-run",
        "hdpfl_flower/privacy/policy.py",
        "    if changed:\n",
        "    if False:\n",
        APP + "rounds_beyond_the_plan_and_terms_that_change_are_declined",
    ),
    Mutant(
        "more rounds than were paid for",
        "client_app/app.py",
        "    if not plan.covers(instructions.server_round):\n",
        "    if False:\n",
        APP + "rounds_beyond_the_plan_and_terms_that_change_are_declined",
    ),
    Mutant(
        "a plan made anew each round",
        "client_app/site/site.py",
        "        if frozen is not None:\n",
        "        if False:\n",
        GUARD + "a_run_keeps_the_plan_that_was_charged",
    ),
    Mutant(
        "work under a plan that was not charged",
        "hdpfl_flower/ledger/ledger.py",
        "            elif frozen != plan:",
        "            elif False:",
        LEDGER + "work_follows_the_plan_that_was_charged_and_no_other",
    ),
    Mutant(
        "calibration to twice the ε",
        "hdpfl_flower/privacy/plan.py",
        "find(paid, epsilon, delta, beside)",
        "find(paid, 2 * epsilon, delta, beside)",
        GUARD + "what_runs_costs_what_was_charged",
    ),
    Mutant(
        "a noise multiplier rounded down",
        "hdpfl_flower/privacy/accounting.py",
        "    return _narrow(fine, epsilon, low, high, _TOLERANCE)[1]",
        "    return _narrow(fine, epsilon, low, high, _TOLERANCE)[0]",
        PLD + "without_a_confirmation_the_noise_is_bracketed",
    ),
    Mutant(
        "noise that its slope alone calls enough",
        "hdpfl_flower/privacy/accounting.py",
        "if value <= epsilon and missing >= -_TOLERANCE:",
        "if abs(missing) <= _TOLERANCE:",
        PLD + "a_confirmed_noise_costs_no_more_than_the_target",
    ),
    Mutant(
        "a record more costs nothing",
        "hdpfl_flower/privacy/pld.py",
        "pmf(AdjacencyType.ADD) if sampling_prob < 1 else None",
        "None",
        PLD + "the_distribution_of_a_step_and_of_many_is_the_librarys",
    ),
    Mutant(
        "losses that are cut off are lost",
        "hdpfl_flower/privacy/pld.py",
        "infinite = tail_mass_truncation - math.expm1",
        "infinite = -math.expm1",
        PLD + "the_distribution_of_a_step_and_of_many_is_the_librarys",
    ),
    Mutant(
        "the kinder of the two neighbours",
        "hdpfl_flower/privacy/pld.py",
        "return max(_epsilon(pmf, target_delta)",
        "return min(_epsilon(pmf, target_delta)",
        PLD + "epsilon_is_the_librarys",
    ),
    Mutant(
        "a fixed PLD interval",
        "hdpfl_flower/privacy/accounting.py",
        "    return 1e-4 * epsilon / max(1.0, math.sqrt(steps) / 200)",
        "    return 1e-3",
        ACCOUNTING + "a_fixed_interval_is_a_trap",
    ),
    Mutant(
        "an accountant that forgets earlier runs",
        "hdpfl_flower/ledger/ledger.py",
        "charges = [*account.plans.values(), plan]",
        "charges = [plan]",
        APP + "the_lifetime_budget_pays_for_two_runs_and_not_for_three",
    ),
    Mutant(
        "a replay answered with fresh noise",
        "hdpfl_flower/ledger/ledger.py",
        '            if known.status in ("sealed", "sent") and not (again and not self._keeps):\n',
        "            if False:\n",
        APP + "the_same_request_gets_the_same_bytes_and_no_new_noise",
    ),
    Mutant(
        "another request for the same release",
        "hdpfl_flower/ledger/ledger.py",
        "            if known.request != request.digest:\n",
        "            if False:\n",
        APP + "another_model_for_a_round_that_was_answered_is_declined",
    ),
    Mutant(
        "a digest that leaves the model out",
        "hdpfl_flower/wire.py",
        "        digest.update(array.data)  # by itself: the two together would be a copy of it\n",
        "",
        APP + "another_model_for_a_round_that_was_answered_is_declined",
    ),
    Mutant(
        "release before the seal",
        "client_app/app.py",
        "        payload = taken.seal(work())\n",
        "        payload = work()\n"
        "        try:\n            taken.seal(payload)\n"
        "        except BaseException:\n            return Released(payload, False)\n",
        GUARD + "what_is_not_sealed_is_not_sent",
    ),
    Mutant(
        "a refund after a crash",
        "hdpfl_flower/ledger/account.py",
        "            release.status = entry.kind\n",
        "            release.status = entry.kind\n"
        '            if entry.kind == "lost":\n                self.plans.clear()\n',
        LEDGER + "work_that_fails_loses_its_release",
    ),
    Mutant(
        "a lost release worked on again",
        "hdpfl_flower/ledger/ledger.py",
        "            if not again:\n",
        "            if False:\n",
        LEDGER + "a_killed_process_leaves_a_lost_release",
    ),
    Mutant(
        "a release given to two workers",
        "hdpfl_flower/ledger/ledger.py",
        '            raise Declined(Reason.REPLAY, "the release is being worked on") from None\n',
        "            return\n",
        LEDGER + "a_release_being_worked_on_is_not_given_twice",
    ),
    Mutant(
        "what a crash left of a new ledger stands in the way for good",
        "hdpfl_flower/ledger/hash_chain.py",
        "    part.unlink(missing_ok=True)  # of a crash before\n",
        "",
        "hdpfl_flower/ledger/test_hash_chain_rules.py::test_a_crash_while_it_is_made_leaves_nothing_of_its_name",
    ),
    Mutant(
        "a new ledger in place of a file that has appeared meanwhile",
        "hdpfl_flower/ledger/hash_chain.py",
        "os.link(part, path)",
        "part.replace(path)",
        "hdpfl_flower/ledger/test_hash_chain_rules.py::test_a_file_that_appears_meanwhile_is_not_taken",
    ),
    Mutant(
        "entries believed unread",
        "hdpfl_flower/ledger/hash_chain.py",
        "if seq != self._last + 1 or digest != right:",
        "if seq != self._last + 1:",
        DAMAGE + "an_altered_entry_is_found_out[changed]",
    ),
    Mutant(
        "an old copy taken for the newest",
        "hdpfl_flower/ledger/hash_chain.py",
        "        if ((_FIRST,) if seq == 0 else row) != (digest,):\n",
        "        if False:\n",
        DAMAGE + "an_old_copy_is_found_out_by_the_anchor",
    ),
    Mutant(
        "an anchor that a slow process takes back",
        "hdpfl_flower/ledger/hash_chain.py",
        "        if _read_anchor(path)[0] < seq:\n",
        "        if True:\n",
        DAMAGE + "a_slow_process_does_not_take_the_anchor_back",
    ),
    Mutant(
        "a plan of a newer version that is trained by",
        "hdpfl_flower/privacy/plan.py",
        "    return formats.PLAN.check(number)\n",
        "    return number or 0\n",
        FORMATS + "a_newer_plan_is_never_trained_by",
    ),
    Mutant(
        "a plan's unknown field that is passed over",
        "hdpfl_flower/privacy/plan.py",
        "        return Plan(**data)\n",
        "        return Plan(**{k: v for k, v in data.items() if k in Plan.__dataclass_fields__})\n",
        FORMATS + "a_field_that_no_format_has_is_refused",
    ),
    Mutant(
        "a server's key that comes back to the sites",
        "hdpfl_flower/config/recorded_terms.py",
        "    if number > 0:\n",
        "    if number > 1:\n",
        FORMATS + "a_retired_key_is_ignored_in_records_of_format_0_alone",
    ),
    Mutant(
        "old terms that stop a run",
        "hdpfl_flower/config/recorded_terms.py",
        "    return RunTerms.from_json(_without_retired(text))\n",
        "    return RunTerms.from_json(text)\n",
        FORMATS + "a_site_answers_an_earlier_server_whose_terms_hold_a_retired_key",
    ),
    Mutant(
        "a journal of a newer version that is half shown",
        "server_app/monitoring/run_series.py",
        "            formats.JOURNAL.check(self._format)",
        '            formats.JOURNAL.check(event.get("format"))',
        FORMATS + "a_newer_journal_is_refused_and_not_shown",
    ),
    Mutant(
        "rejections that are read from words",
        "hdpfl_flower/monitoring/rejection.py",
        '    if "rejections" not in event:\n',
        "    if words:\n",
        "server_app/monitoring/test_exporter.py::"
        "test_a_rejection_is_counted_by_its_code_whatever_its_words",
    ),
)
