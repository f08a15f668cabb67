"""Bugs of a site that keeps a part of its model, and of the audit that looks for them."""

from __future__ import annotations

from tests.mutants.runner import Mutant

SITE = "client_app/personal/test_personal_site.py::test_"
AUDIT = "client_app/test_personal_audit.py::test_"
GUESSES = "hdpfl_flower/privacy/test_audit_guesses.py::test_"
MUTANTS = (
    Mutant(
        "the mask of clean weights at a real site",
        "client_app/training/personal_round.py",
        'if terms.shared_mask == "published" and not site.simulated:',
        'if terms.shared_mask == "published" and site.simulated is None:',
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
        "client_app/training/personal_round.py",
        "return np.ascontiguousarray(update[self.split.sent])",
        "return np.resize(self.part, len(update[self.split.sent]))",
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
        "an audit of what is sent alone",
        "client_app/audit_personal.py",
        "moved[split.own] += _own_part(site, split) - before",
        "pass",
        AUDIT + "a_head_without_noise_is_refuted_where_it_may_be_shown[fedrep]",
    ),
    Mutant(
        "an audit that leaves the tuning out",
        "client_app/audit_personal.py",
        "    if plan.tuning is not None:\n",
        "    if plan.tuning is None:\n",
        AUDIT + "tuning_that_is_not_paid_for_is_refuted",
    ),
    Mutant(
        "an audit whose record is in every batch",
        "client_app/audit_neighbours.py",
        "return np.arange(count if self._steps == 1 else _OTHERS)",
        "return np.arange(count)",
        AUDIT + "a_record_outside_the_batch_shifts_the_body_by_exactly_0",
    ),
    Mutant(
        "an audit that no longer sees the published mask passes",
        "client_app/commands/audit.py",
        "if any(finding.violates != _is_known(finding) for",
        "if any(finding.violates > _is_known(finding) for",
        "client_app/commands/test_audit.py::test_the_published_mask_alone_may_and_must_be_refuted"
        "[blind]",
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
