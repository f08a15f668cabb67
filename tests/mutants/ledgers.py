"""Bugs of the plan, the accountant and the ledger."""

from __future__ import annotations

from tests.mutants.runner import Mutant

GUARD = "privacy/test_guard.py::test_"
APP = "client_app/test_app.py::test_"
BEYOND = "client_app/test_beyond_approval.py::test_"
PLD = "hdpfl_flower/privacy/test_pld.py::test_"
ACCOUNTING = "hdpfl_flower/privacy/test_accounting.py::test_"
FORMATS = "test_formats.py::test_"
LEDGER = "hdpfl_flower/ledger/test_ledger.py::test_"
DAMAGE = "hdpfl_flower/ledger/test_ledger_damage.py::test_"
MUTANTS = (
    Mutant(
        "terms that change in mid-run",
        "hdpfl_flower/privacy/policy.py",
        "    if changed := changed_terms(frozen, proposed):\n",
        "    if False:\n",
        APP + "rounds_beyond_the_plan_and_terms_that_change_are_declined",
    ),
    Mutant(
        "rounds that no run has",
        "hdpfl_flower/privacy/policy.py",
        "    if not first <= server_round <= last:\n",
        "    if False:\n",
        APP + "rounds_beyond_the_plan_and_terms_that_change_are_declined",
    ),
    Mutant(
        "an un-noised update for a round beyond the approval",
        "hdpfl_flower/privacy/policy.py",
        "    if not first <= server_round <= last:\n",
        '    if terms.noise != "server" and not first <= server_round <= last:\n',
        BEYOND + "no_round_outside_of_the_approved_ones_is_answered[train-server]",
    ),
    Mutant(
        "a round more than was approved",
        "hdpfl_flower/privacy/policy.py",
        "(0, 0) if joins else (1, terms.rounds)",
        "(0, 0) if joins else (1, terms.rounds + 1)",
        BEYOND + "no_round_outside_of_the_approved_ones_is_answered[train-server]",
    ),
    Mutant(
        "a round before the first",
        "hdpfl_flower/privacy/policy.py",
        "(0, 0) if joins else (1, terms.rounds)",
        "(0, 0) if joins else (0, terms.rounds)",
        BEYOND + "no_round_outside_of_the_approved_ones_is_answered[train-server]",
    ),
    Mutant(
        "a site that joins in whichever round",
        "hdpfl_flower/privacy/policy.py",
        "(0, 0) if joins else (1, terms.rounds)",
        "(server_round, server_round) if joins else (1, terms.rounds)",
        BEYOND + "a_site_joins_in_round_0_and_no_other[3]",
    ),
    Mutant(
        "un-noised updates beyond the participations",
        "client_app/app.py",
        "rounds_asked(terms) if plan is None",
        "0 if plan is None",
        BEYOND + "a_trusted_server_gets_no_more_updates_than_participations",
    ),
    Mutant(
        "runs of a trusted server that the policy does not count",
        "hdpfl_flower/ledger/ledger.py",
        "        if plan is not None or request.epsilon is not None:\n",
        "        if plan is not None:\n",
        BEYOND + "runs_of_a_trusted_server_count_among_the_runs_of_the_policy",
    ),
    Mutant(
        "a trusted server's runs that a noisy one does not count",
        "hdpfl_flower/ledger/account.py",
        "        return self.plans.keys() | self.declared.keys()\n",
        "        return set(self.plans)\n",
        BEYOND + "runs_of_a_trusted_server_count_among_the_runs_of_the_policy",
    ),
    Mutant(
        "exact answers without a bound",
        "hdpfl_flower/ledger/ledger.py",
        "        self._account.check_exact(request, max_exact)\n",
        "",
        BEYOND + "exact_answers_are_bounded_over_all_runs",
    ),
    Mutant(
        "exact answers without a bound, seen by the attack",
        "hdpfl_flower/ledger/ledger.py",
        "        self._account.check_exact(request, max_exact)\n",
        "",
        "client_app/audits/test_answers.py"
        "::test_answers_show_fewer_labels_than_the_profile_has_answers",
    ),
    Mutant(
        "one exact answer more than the profile states",
        "hdpfl_flower/ledger/account.py",
        "self.exact_answers + request.exact > most",
        "self.exact_answers >= most + 1",
        BEYOND + "exact_answers_are_bounded_over_all_runs",
    ),
    Mutant(
        "exact answers that count where they were sent alone",
        "hdpfl_flower/ledger/account.py",
        "sum(release.exact for release in self.releases.values())",
        "sum(r.exact for r in self.releases.values() if r.status in ('sealed', 'sent'))",
        BEYOND + "a_lost_answer_counts",
    ),
    Mutant(
        "exact answers counted by the run",
        "hdpfl_flower/ledger/account.py",
        "self.exact_answers + request.exact > most",
        "request.exact + sum(r.exact for k, r in self.releases.items() "
        "if k[0] == request.run_id) > most",
        BEYOND + "exact_answers_are_bounded_over_all_runs",
    ),
    Mutant(
        "exact answers held against the account of before",
        "hdpfl_flower/ledger/ledger.py",
        '        taken: Reservation | bytes | Declined = b""\n',
        '        taken: Reservation | bytes | Declined = b""\n'
        "        self._account.check_exact(request, max_exact)\n"
        "        max_exact = math.inf\n",
        BEYOND + "the_bound_is_checked_by_what_another_process_wrote",
    ),
    Mutant(
        "exact answers that the chain does not hold",
        "hdpfl_flower/ledger/account.py",
        '{"exact": self.exact} if self.exact else {}',
        "{}",
        BEYOND + "exact_answers_are_bounded_over_all_runs",
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
        "        if frozen is not None and frozen != plan:",
        "        if False:",
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
        "losses without a bound that do not add up over the steps",
        "hdpfl_flower/privacy/pld.py",
        "math.log1p(-self._infinity_mass)",
        "math.log1p(self._infinity_mass)",
        PLD + "what_any_of_many_losses_may_exceed_without_bound_adds_up",
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
        "hdpfl_flower/ledger/account.py",
        "charges = [*self.plans.values(), plan]",
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
        '            raise Declined(Reason.REPLAY, "the release is in progress") from None\n',
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
        '        formats.PLAN.check(data.pop("format", None))  # before other keys, which may be newer\n',
        '        data.pop("format", None)\n',
        FORMATS + "a_newer_plan_is_never_trained_by",
    ),
    Mutant(
        "a plan's missing field that is a default",
        "hdpfl_flower/privacy/plan.py",
        "        if data.keys() != {each.name for each in fields(Plan)}:\n",
        "        if data.keys() - {each.name for each in fields(Plan)}:\n",
        "hdpfl_flower/privacy/test_plan_rules.py::test_a_plan_that_lacks_a_field_is_none",
    ),
    Mutant(
        "a journal of a newer version that is half shown",
        "server_app/monitoring/run_series.py",
        "            formats.JOURNAL.check(self._format)",
        '            formats.JOURNAL.check(event.get("format"))',
        FORMATS + "a_journal_of_another_number_is_refused_and_not_shown",
    ),
)
