"""Bugs of the terms: what is said and not meant, and what is refused too late or in vain."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_UP_FRONT = "hdpfl_flower/config/test_feasibility.py::"
_TERMS = "hdpfl_flower/config/test_terms.py::test_"
_ANY = _TERMS + "deep_json_and_long_numbers_are_no_other_error"
_EVERY = _TERMS + "every_text_of_the_terms_is_bounded_and_refused_by_its_key"
_ALL = _TERMS + "all_texts_at_their_limits_fit_into_a_message"
_FIVE = _TERMS + "five_mistakes_are_named_and_one_gets_a_spelling"
_REUSE = "server_app/run/test_reuse.py::"

MUTANTS = (
    Mutant(
        "local work of any characters",
        "hdpfl_flower/config/kinds.py",
        " or not value.isprintable():",
        ":",
        _TERMS + "local_work_is_one_short_line_of_a_kind_and_its_settings",
    ),
    Mutant(
        "a kind of work that is not the strategy's",
        "hdpfl_flower/work/__init__.py",
        "isinstance(own, (Plain, type(given)))",
        "True",
        "strategies/personal/test_personal_terms.py"
        "::test_what_contradicts_is_refused_up_front_by_key_and_remedy",
    ),
    Mutant(
        "settings of work that no strategy read, passed over at a site",
        "hdpfl_flower/work/base.py",
        "        if self.changes:\n",
        "        if False:\n",
        "strategies/personal/test_personal_terms.py::test_sites_decline_the_same[terms0]",
    ),
    Mutant(
        "an explicit pull of 0 becomes the rule's own",
        "hdpfl_flower/work/base.py",
        'if getattr(self, key) == "auto"]',
        'if getattr(self, key) in ("auto", 0)]',
        _UP_FRONT + "test_mr_mtl_pulls_where_the_terms_leave_it_open_alone",
    ),
    Mutant(
        "an explicit second model overruled",
        "strategies/core/base.py",
        "second=terms.second or cls.second,",
        "second=cls.second or terms.second,",
        _UP_FRONT + "test_an_explicit_second_model_stays_under_ditto",
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
        "hdpfl_flower/work/base.py",
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
        "        check_up_front(terms)\n",
        "        pass\n",
        _UP_FRONT + "test_sites_decline_the_same",
    ),
    Mutant(
        "a number where a text is asked for",
        "hdpfl_flower/config/settings.py",
        "repr(value) if key in texts and _is_number(value) else value",
        "value",
        "hdpfl_flower/config/test_terms.py::test_a_number_is_a_text_where_a_text_is_asked_for",
    ),
    Mutant(
        "the server's folder in every message",
        "hdpfl_flower/config/terms.py",
        '    run_id: RunId = Field("", description="Name of',
        '    runs_dir: str = Field("", description="")\n'
        '    run_id: RunId = Field("", description="Name of',
        "hdpfl_flower/config/test_owners.py"
        "::test_what_the_server_alone_uses_is_in_no_message_and_no_ledger",
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
        "plain = isinstance(called, str) and _PLAIN.match(called)",
        "plain = isinstance(called, str)",
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
    Mutant(
        "a spelling for every unknown key of a server",
        "hdpfl_flower/config/validation.py",
        """'{prefix}{close}'?" if close else "", False""",
        """'{prefix}{close}'?" if close else "", True""",
        _FIVE,
    ),
    Mutant(
        "every mistake of a server named",
        "hdpfl_flower/config/validation.py",
        "    for item in found[:_NAMED]:",
        "    for item in found:",
        _FIVE,
    ),
    Mutant(
        "a key of any length in an error",
        "hdpfl_flower/config/validation.py",
        "str(part)[:_SHOWN] for part",
        "str(part) for part",
        "client_app/site/test_model_bounds.py::"
        "test_what_exceeds_a_limit_of_the_terms_fails_in_one_line[a long key]",
    ),
    Mutant(
        "terms of any length parsed",
        "hdpfl_flower/config/terms.py",
        "    if len(text) > MOST_TERMS:",
        "    if False:",
        _ALL,
    ),
    Mutant(
        "JSON in JSON is another error",
        "hdpfl_flower/config/terms.py",
        "    except (ValueError, RecursionError):",
        "    except ValueError:",
        _ANY,
    ),
    Mutant(
        "a number of any length made a text",
        "hdpfl_flower/config/settings.py",
        "type(value) is int and abs(value) < 2**63",
        "type(value) is int",
        _ANY,
    ),
    Mutant(
        "a run's name as long as a purpose",
        "hdpfl_flower/config/terms.py",
        "    run_id: RunId = Field(",
        "    run_id: Line = Field(",
        _EVERY,
    ),
    Mutant(
        "a run's name of any characters",
        "hdpfl_flower/config/terms.py",
        "    run_id: RunId = Field(",
        "    run_id: Annotated[str, Field(max_length=64)] = Field(",
        _EVERY,
    ),
    Mutant(
        "a model's name of any length",
        "hdpfl_flower/config/terms.py",
        "    model: Line = Field(",
        "    model: str = Field(",
        _EVERY,
    ),
    Mutant(
        "a schema of any length in the terms",
        "hdpfl_flower/config/terms.py",
        "    schema_text: Annotated[str, AfterValidator(_check_schema)] = Field(",
        "    schema_text: str = Field(",
        _EVERY,
    ),
    Mutant(
        "half of a character in a schema",
        "hdpfl_flower/config/terms.py",
        r"\x7f\ud800-\udfff]",
        r"\x7f]",
        _EVERY,
    ),
)
