"""Bugs of a site that keeps a part of its model, and of the audit that looks for them."""

from __future__ import annotations

from tests.mutants.runner import Mutant

SITE = "client_app/after_run/test_personal_site.py::test_"
AUDIT = "client_app/audits/test_personal.py::test_"
GUESSES = "hdpfl_flower/privacy/test_audit_guesses.py::test_"
MUTANTS = (
    Mutant(
        "the mask of clean weights at a real site",
        "client_app/work/base.py",
        "if terms.work.reads_clean_weights and not site.simulated:",
        "if terms.work.reads_clean_weights and site.simulated is None:",
        SITE + "the_round_itself_refuses_what_is_for_simulations_alone[more0]",
    ),
    Mutant(
        "a personal vector stored before its release is sealed",
        "client_app/training/trainer.py",
        "            update = own.sent(update)\n",
        "            update = own.sent(update)\n            own.save(self._after)\n",
        SITE + "the_state_is_stored_once_the_release_is_sealed",
    ),
    Mutant(
        "an older round written over a later one",
        "client_app/training/trainer.py",
        "own is None or own.state.server_round >= self._instructions.server_round:",
        "own is None:",
        SITE + "rounds_in_another_order_are_one_release_each",
    ),
    Mutant(
        "a personal part sent in place of the shared update",
        "client_app/work/base.py",
        "return np.ascontiguousarray(update[self.work.sent])",
        "return np.resize(self.own, len(update[self.work.sent]))",
        SITE + "no_reply_holds_a_number_of_the_personal_vector[alternate]",
    ),
    Mutant(
        "a damaged part taken for none",
        "client_app/site/personal_state.py",
        '        raise DataError(\n            f"the personal part {path} is damaged;',
        "        return PersonalState()\n        raise DataError(\n"
        '            f"the personal part {path} is damaged;',
        SITE + "a_damaged_state_is_one_clear_line_and_costs_no_release[torn]",
    ),
    Mutant(
        "half the noise on a histogram of scores, found by the audit",
        "client_app/after_run/score_histogram.py",
        "add_noise(torch.from_numpy(exact), noise_multiplier, stream)",
        "add_noise(torch.from_numpy(exact), noise_multiplier / 2, stream)",
        AUDIT + "a_histogram_of_scores_is_refuted_with_half_its_noise_alone[1.0]",
    ),
    Mutant(
        "an audit of a cell of the histogram that no record moves",
        "tests/client_app/audits/neighbours.py",
        "astype(np.int64)).argmax()",
        "astype(np.int64)).argmin()",
        AUDIT + "a_histogram_of_scores_is_refuted_with_half_its_noise_alone[1.0]",
    ),
    Mutant(
        "an audit of what is sent alone",
        "tests/client_app/audits/personal.py",
        "moved[work.own] += _own_part(site, work) - before",
        "pass",
        AUDIT + "a_head_without_noise_is_refuted_where_it_may_be_shown[fedrep]",
    ),
    Mutant(
        "an audit that leaves the tuning out",
        "tests/client_app/audits/personal.py",
        "    if plan.tuning is not None:\n",
        "    if plan.tuning is None:\n",
        AUDIT + "tuning_that_is_not_paid_for_is_refuted",
    ),
    Mutant(
        "an audit whose record is in every batch",
        "tests/client_app/audits/neighbours.py",
        "return np.arange(count if self._steps == 1 else _OTHERS)",
        "return np.arange(count)",
        AUDIT + "a_record_outside_the_batch_shifts_the_body_by_exactly_0",
    ),
    Mutant(
        "an audit that a violated claim passes",
        "client_app/commands/audit.py",
        "if any(finding.violates for finding in findings):",
        "if False:",
        "client_app/commands/test_audit.py::test_half_the_noise_violates_the_claim",
    ),
    Mutant(
        "the share that was seen taken for a bound on it",
        "hdpfl_flower/privacy/audit.py",
        "return float(betaincinv(count, of - count + 1, error_rate)) if count else 0.0",
        "return count / of",
        GUESSES + "a_gaussian_is_above_its_epsilon_in_5_percent_at_most[0.5]",
    ),
    Mutant(
        "both bounds of a guess at the whole error rate",
        "hdpfl_flower/privacy/audit.py",
        "half = error_rate / 2",
        "half = error_rate",
        GUESSES + "the_bound_is_that_of_clopper_and_pearson",
    ),
)
