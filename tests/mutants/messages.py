"""Bugs of a site's answers: when they leave, to what, what it keeps, what its log and ledger say."""

from __future__ import annotations

from tests.mutants.runner import Mutant

APP = "client_app/test_app.py::test_"
TIMING = "client_app/site/test_reply_time.py::test_"
NAMES = "client_app/personal/test_personal_names.py::test_"
LINES = "client_app/test_log_lines.py::test_"
CHECKS = "client_app/commands/test_report_checks.py::test_"
HELD_OUT = "client_app/personal/test_held_out.py::test_"
ONCE = "client_app/site/test_opened_once.py::test_"
DIGEST = "hdpfl_flower/test_digest.py::test_"
_ANSWER = "        return guarded(_HANDLERS.get(message.metadata.message_type))(message, context)"
MUTANTS = (
    Mutant(
        "a reply built before its wait",
        "client_app/app.py",
        "            return _reply(answered, message, wait_until_due(arrived))\n",
        "            reply = _reply(answered, message, None)\n"
        "            wait_until_due(arrived)\n"
        "            return reply\n",
        TIMING + "what_a_reply_bears_is_a_constant_whatever_the_work_took",
    ),
    Mutant(
        "a reply that bears the moment at which the wait ended",
        "client_app/site/reply_time.py",
        "    return arrived.at + multiple * arrived.reply_after",
        "    return time.time()",
        TIMING + "a_sleep_that_ends_late_is_not_to_be_seen_in_the_reply",
    ),
    Mutant(
        "a time to live that tells when the reply was built",
        "client_app/site/reply_time.py",
        "        reply.metadata.ttl = request.metadata.created_at + request.metadata.ttl - created_at\n",
        "",
        TIMING + "what_a_reply_bears_is_a_constant_whatever_the_work_took",
    ),
    Mutant(
        "no second wait where the first one failed",
        "client_app/app.py",
        "        created_at = wait_until_due(arrived) if arrived else None\n",
        "        created_at = None\n",
        TIMING + "a_refusal_because_waiting_or_building_failed_is_held_back_as_well",
    ),
    Mutant(
        "a type of message that nobody handles passes the guard",
        "client_app/app.py",
        _ANSWER,
        "        handler = _HANDLERS.get(message.metadata.message_type)\n"
        "        if handler is None:\n"
        "            return super().__call__(message, context)\n"
        "        return guarded(handler)(message, context)",
        APP + "a_type_that_nobody_handles_gets_the_constant_and_is_counted",
    ),
    Mutant(
        "a type of message that nobody handles is refused at once",
        "client_app/app.py",
        _ANSWER,
        "        handler = _HANDLERS.get(message.metadata.message_type)\n"
        "        if handler is None:\n"
        "            return wire.refusal(wire.FAILED, message)\n"
        "        return guarded(handler)(message, context)",
        TIMING + "what_no_handler_gets_to_see_waits_as_long",
    ),
    Mutant(
        "a private personal model started from an un-noised one",
        "client_app/personal/ditto.py",
        "    own = load_personal_model(path, len(shared), _noise_of(terms))\n"
        "    return train_personal_privately(",
        "    own = load_personal_model(path, len(shared))\n    return train_personal_privately(",
        NAMES + "an_unnoised_model_in_the_place_of_a_private_one_is_not_gone_on_with",
    ),
    Mutant(
        "a private personal model and an un-noised one share a file",
        "client_app/personal/ditto.py",
        "json.dumps([terms.run_id, _noise_of(terms)])",
        "json.dumps([terms.run_id])",
        NAMES + "a_private_model_of_a_run_that_was_an_unnoised_one_before",
    ),
    Mutant(
        "runs of like names share a personal model",
        "client_app/personal/ditto.py",
        "json.dumps([terms.run_id, _noise_of(terms)])",
        "json.dumps([terms.run_id.replace('/', '.'), _noise_of(terms)])",
        NAMES + "no_two_runs_share_a_file_and_no_two_noises",
    ),
    Mutant(
        "choices held against the rounds that the plan pays for",
        "hdpfl_flower/ledger/invariants.py",
        '    if kind == "update":\n',
        "    if kind:\n",
        CHECKS + "a_ledger_that_contradicts_its_promise",
    ),
    Mutant(
        "a private personal model that nobody holds against the plan",
        "hdpfl_flower/ledger/invariants.py",
        "    return 2 if private else 1\n",
        "    return 1\n",
        CHECKS + "a_ledger_that_contradicts_its_promise",
    ),
    Mutant(
        "a server's text unescaped in the log",
        "hdpfl_flower/system/printable.py",
        "        record.msg, record.args = _one_line(record.getMessage()), None\n",
        "",
        LINES + "a_record_of_the_log_is_one_line_whatever_the_server_sends",
    ),
    Mutant(
        "a server's text unescaped in an error",
        "hdpfl_flower/system/terminal.py",
        "{printable(str(error))}",
        "{error}",
        LINES + "what_the_tool_prints_of_a_run_with_an_evil_name_has_no_line_of_its_own",
    ),
    Mutant(
        "a server's text unescaped in a table",
        "client_app/reports/formatting.py",
        "[printable(cell) for cell in row]",
        "[*row]",
        LINES + "what_the_tool_prints_of_a_run_with_an_evil_name_has_no_line_of_its_own",
    ),
    Mutant(
        "a site's name that is markup of the report's page",
        "server_app/reports/run_template.py",
        "autoescape=True",
        "autoescape=False",
        "server_app/reports/test_run_page.py"
        "::test_the_page_stands_alone_and_says_what_the_journal_says",
    ),
    Mutant(
        "a final model of a run that the site took no part in",
        "client_app/app.py",
        "        check_may_keep(site, site.profile.state.path)\n",
        "",
        APP + "a_run_that_the_site_took_no_part_in_leaves_no_model",
    ),
    Mutant(
        "metrics that count as a part in a run",
        "client_app/personal/final_model.py",
        '        if clipped or (run in account.plans and kind != "metrics"):\n',
        "        if clipped or kind:\n",
        APP + "a_run_that_the_site_took_no_part_in_leaves_no_model",
    ),
    Mutant(
        "an old run's model in the place of a later one's",
        "client_app/personal/final_model.py",
        "    if begun.get(kept, 0) > begun[run]:\n",
        "    if False:\n",
        APP + "an_older_run_leaves_no_model_in_a_later_ones_place",
    ),
    Mutant(
        "a digest that omits the use of the other models",
        "hdpfl_flower/wire.py",
        'f"\\n{use}\\n{model_digest(other)}"',
        'f"\\n{model_digest(other)}"',
        DIGEST + "whatever_is_asked_differently_has_another_digest",
    ),
    Mutant(
        "training includes the held-out records",
        "hdpfl_flower/data/site_data.py",
        "    train, test = np.flatnonzero(~out), np.flatnonzero(out)\n",
        "    train, test = np.arange(len(out)), np.flatnonzero(out)\n",
        HELD_OUT + "what_is_trained_is_a_function_of_the_records_that_are_not_held_out",
    ),
    Mutant(
        "a trainer that is given the held-out records as well",
        "client_app/site/site.py",
        "        return self._records[0]\n",
        "        import numpy as np\n"
        "        train, test = self._records\n"
        "        if test is None:\n"
        "            return train\n"
        "        return Records(\n"
        "            np.concatenate([train.features, test.features]),\n"
        "            np.concatenate([train.targets, test.targets]),\n"
        "        )\n",
        HELD_OUT + "what_is_trained_is_a_function_of_the_records_that_are_not_held_out",
    ),
    Mutant(
        "metrics computed on training records, with a holdout",
        "client_app/site/site.py",
        "        return self._records[1]\n",
        "        train, test = self._records\n        return None if test is None else train\n",
        HELD_OUT + "what_is_tested_is_a_function_of_the_records_that_are_held_out",
    ),
    Mutant(
        "metrics computed on training records, without a holdout",
        "client_app/site/site.py",
        "        return self._records[1]\n",
        "        train, test = self._records\n        return train if test is None else test\n",
        HELD_OUT + "without_a_holdout_nothing_is_tested_and_nothing_leaves",
    ),
    Mutant(
        "records read again for every use",
        "client_app/site/site.py",
        "    @cached_property\n    def _records(self)",
        "    @property\n    def _records(self)",
        ONCE + "one_message_opens_everything_once[a choice]",
    ),
    Mutant(
        "a profile parsed again for the site",
        "client_app/app.py",
        "            site = open_site(context, instructions.terms, profile)\n",
        "            from client_app.site.site import node_profile\n\n"
        "            site = open_site(context, instructions.terms, node_profile(context))\n",
        ONCE + "a_refusal_parses_the_profile_once_and_reads_no_record",
    ),
)
