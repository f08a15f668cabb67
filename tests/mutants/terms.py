"""Bugs of the terms: what is said and not meant, and what is refused too late or in vain."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_UP_FRONT = "hdpfl_flower/config/test_feasibility.py::"
_REUSE = "server_app/run/test_reuse.py::"

MUTANTS = (
    Mutant(
        "an explicit pull of 0 becomes the rule's own",
        "strategies/multi_model/mr_mtl.py",
        "if terms.prox_lambda == AUTO:",
        "if not terms.pull:",
        _UP_FRONT + "test_mr_mtl_pulls_where_the_terms_leave_it_open_alone",
    ),
    Mutant(
        "an explicit personal noise overruled",
        "strategies/averaging/ditto.py",
        "if terms.personal_noise == AUTO:",
        "if True:",
        _UP_FRONT + "test_an_explicit_personal_noise_stays_under_ditto",
    ),
    Mutant(
        "the strictest site's ε above a stricter cap",
        "strategies/averaging/minimum.py",
        "least = min(least, terms.epsilon_cap or math.inf)",
        "",
        _UP_FRONT + "test_the_strictest_epsilon_does_not_raise_a_cap_that_is_stricter",
    ),
    Mutant(
        "a pull that is too long found by the sites",
        "hdpfl_flower/config/feasibility.py",
        "if terms.pull * terms.learning_rate > 1:",
        "if False:",
        _UP_FRONT + "test_a_step_beyond_the_anchor_is_refused_before_any_site_is_asked",
    ),
    Mutant(
        "what the rule sets is not looked at",
        "server_app/run/rounds.py",
        "check_up_front(terms)",
        "check_up_front(config.terms)",
        _UP_FRONT + "test_a_step_beyond_the_anchor_is_refused_before_any_site_is_asked",
    ),
    Mutant(
        "rounds that no site can plan for",
        "hdpfl_flower/config/feasibility.py",
        "    if extras and reasons:",
        "    if False:",
        _UP_FRONT + "test_rounds_that_no_site_can_plan_for_are_refused_with_both_keys",
    ),
    Mutant(
        "a site that leaves equal rounds to the server",
        "hdpfl_flower/privacy/policy.py",
        "if unlike_rounds(terms) and reasons_for_equal_rounds(terms):",
        "if False:",
        _UP_FRONT + "test_sites_decline_the_same",
    ),
    Mutant(
        "a number where a text is asked for",
        "hdpfl_flower/config/settings.py",
        "repr(value) if key in texts and type(value) in (int, float) else value",
        "value",
        "hdpfl_flower/config/test_terms.py::test_a_number_is_a_text_where_a_text_is_asked_for",
    ),
    Mutant(
        "the server's folder in every message",
        "hdpfl_flower/config/terms.py",
        '    run_id: str = Field("", description="Name of',
        '    runs_dir: str = Field("", description="")\n'
        '    run_id: str = Field("", description="Name of',
        "hdpfl_flower/config/test_owners.py"
        "::test_what_the_server_alone_uses_is_in_no_message_and_no_ledger",
    ),
    Mutant(
        "blanks that cost a second model",
        "hdpfl_flower/config/terms.py",
        "return value.strip()",
        "return value",
        "hdpfl_flower/config/test_terms.py::test_blanks_are_no_pull_that_a_site_would_pay_for",
    ),
    Mutant(
        "a folder of other terms used again",
        "server_app/run/reuse.py",
        "    if differ:",
        "    if False:",
        _REUSE + "test_other_terms_in_the_same_folder_are_refused_before_anything_runs",
    ),
    Mutant(
        "a folder of other sites used again",
        "server_app/run/reuse.py",
        "    if before != num_sites:",
        "    if False:",
        _REUSE + "test_other_terms_in_the_same_folder_are_refused_before_anything_runs",
    ),
    Mutant(
        "a run id of two sets of terms",
        "server_app/run/rounds.py",
        "        check_same_terms(folder, config)\n",
        "",
        _REUSE + "test_a_run_id_is_of_one_set_of_terms",
    ),
    Mutant(
        "the second run's mistake after the first run",
        "server_app/commands/compare.py",
        "            ready_strategy(job.config)\n",
        "",
        _REUSE + "test_what_cannot_run_is_said_before_the_first_of_several_runs",
    ),
    Mutant(
        "the library's own text for a wrong type",
        "hdpfl_flower/config/validation.py",
        "_WORDS.get(kind, _OTHER)",
        "_WORDS.get(kind) if kind not in _TAGGED else item['msg']",
        "hdpfl_flower/config/test_validation.py"
        "::test_a_mistake_in_a_schema_names_the_column_and_what_is_allowed",
    ),
    Mutant(
        "a control character of a column's name in an error",
        "hdpfl_flower/data/schema.py",
        "plain = isinstance(name, str) and _PLAIN.match(name)",
        "plain = isinstance(name, str)",
        "hdpfl_flower/config/test_validation.py"
        "::test_a_mistake_in_a_schema_names_the_column_and_what_is_allowed",
    ),
    Mutant(
        "a site made before its profile is looked at",
        "deploy/sites_check.py",
        "    if found:\n",
        "    if False:\n",
        "deploy/test_up.py::test_what_is_found_is_raised_and_nothing_is_left",
    ),
)
