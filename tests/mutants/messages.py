"""Bugs of a site's answers: when they leave, to what, what it keeps, what its log and ledger say."""

from __future__ import annotations

from tests.mutants.runner import Mutant

BEYOND = "client_app/test_beyond_approval.py::test_"
APP = "client_app/test_app.py::test_"
TIMING = "client_app/site/test_reply_time.py::test_"
NAMES = "client_app/after_run/test_personal_names.py::test_"
LINES = "client_app/test_log_lines.py::test_"
CHECKS = "client_app/commands/test_report_checks.py::test_"
HELD_OUT = "client_app/after_run/test_held_out.py::test_"
ONCE = "client_app/site/test_opened_once.py::test_"
DIGEST = "hdpfl_flower/test_digest.py::test_"
EXPORT = (
    "hdpfl_flower/monitoring/test_prometheus.py::"
    "test_a_name_that_no_encoding_holds_and_a_long_one_end_no_exporter"
)
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
        "client_app/training/ditto.py",
        "    own = load_personal_model(path, len(shared), _kind_of(terms))\n"
        "    return train_personal_privately(",
        "    own = load_personal_model(path, len(shared))\n    return train_personal_privately(",
        NAMES + "an_unnoised_model_in_the_place_of_a_private_one_is_not_gone_on_with",
    ),
    Mutant(
        "a private personal model and an un-noised one share a file",
        "client_app/training/ditto.py",
        "json.dumps([terms.run_id, _kind_of(terms)])",
        "json.dumps([terms.run_id])",
        NAMES + "a_private_model_of_a_run_that_was_an_unnoised_one_before",
    ),
    Mutant(
        "runs of like names share a personal model",
        "client_app/training/ditto.py",
        "json.dumps([terms.run_id, _kind_of(terms)])",
        "json.dumps([terms.run_id.replace('/', '.'), _kind_of(terms)])",
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
        '    return 2 if str(second).split(" ")[0] == "private" else 1\n',
        "    return 1\n",
        CHECKS + "a_ledger_that_contradicts_its_promise",
    ),
    Mutant(
        "a server's text unescaped in the log",
        "hdpfl_flower/system/printable.py",
        "        record.msg, record.args = _one_line(record.getMessage()), None\n",
        "",
        LINES + "a_text_that_nothing_escaped_before_is_one_line",
    ),
    Mutant(
        "a cell of a CSV that a spreadsheet runs",
        "hdpfl_flower/system/printable.py",
        """return f"'{printable(value)}" if formula else printable(value)""",
        "return printable(value)",
        "hdpfl_flower/system/test_printable.py::test_no_cell_of_a_csv_is_a_formula",
    ),
    Mutant(
        "a class predicted as a formula",
        "client_app/commands/model.py",
        "    return csv_text([header, ",
        "    return '\\n'.join(','.join(map(str, row)) for row in [header, ",
        "client_app/commands/test_predict.py::test_no_class_that_is_predicted_is_a_formula",
    ),
    Mutant(
        "a server's text unescaped in JSON",
        "client_app/reports/facts.py",
        "indent=2, allow_nan=False",
        "indent=2, ensure_ascii=False, allow_nan=False",
        "client_app/commands/test_report_forms.py::test_the_name_of_a_run_cannot_forge_the_report",
    ),
    Mutant(
        "a server's text unescaped in an error",
        "hdpfl_flower/system/terminal.py",
        "{printable(str(error))}",
        "{error}",
        LINES + "a_key_of_the_run_config_writes_no_line_of_its_own",
    ),
    Mutant(
        "a server's text unescaped in a table",
        "client_app/reports/formatting.py",
        "[printable(cell) for cell in row]",
        "[*row]",
        "client_app/commands/test_report_forms.py::test_the_name_of_a_run_cannot_forge_the_report",
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
        "client_app/after_run/final_model.py",
        "            check_may_keep(site, folder, model)\n",
        "",
        APP + "a_run_that_the_site_took_no_part_in_leaves_no_model",
    ),
    Mutant(
        "metrics that count as a part in a run",
        "client_app/after_run/final_model.py",
        '        if clipped or (run in account.plans and kind != "metrics"):\n',
        "        if clipped or kind:\n",
        APP + "a_run_that_the_site_took_no_part_in_leaves_no_model",
    ),
    Mutant(
        "an old run's model in the place of a later one's",
        "client_app/after_run/final_model.py",
        "    if begun.get(kept.terms.run_id, 0) > begun[run]:\n",
        "    if False:\n",
        APP + "an_older_run_leaves_no_model_in_a_later_ones_place",
    ),
    Mutant(
        "the model of an ended run replaced by its server",
        "client_app/after_run/final_model.py",
        "    if kept.terms.run_id == run and not _is_same(kept, model):\n",
        "    if False:\n",
        BEYOND + "the_end_of_an_ended_run_changes_nothing[]",
    ),
    Mutant(
        "the terms of an ended run replaced by its server",
        "client_app/after_run/final_model.py",
        "    return not changed_terms(kept.terms, sent.terms) and (\n",
        "    return (\n",
        BEYOND + "the_same_model_under_other_terms_is_another_end",
    ),
    Mutant(
        "a personal model made again before the final one is held against the kept",
        "client_app/app.py",
        "    if site.profile.state is not None:\n        # Before",
        "    if has_personal_model(instructions.terms):\n"
        "        _end_run(site, instructions)\n"
        "    if site.profile.state is not None:\n        # Before",
        BEYOND + "the_end_of_an_ended_run_changes_nothing[prior]",
    ),
    Mutant(
        "two ends at once of which the last one counts",
        "client_app/after_run/final_model.py",
        "        with alone_in(folder, _PATIENCE):\n",
        "        if True:\n",
        BEYOND + "two_ends_at_once_leave_the_first_model",
    ),
    Mutant(
        "tests that the approved terms do not ask for",
        "client_app/after_run/held_out.py",
        '    if site.terms.evaluation != "sites":\n',
        "    if False:\n",
        BEYOND + "no_test_is_answered_that_the_approved_terms_do_not_ask_for[none]",
    ),
    Mutant(
        "tests under terms that changed after the charge",
        "client_app/after_run/held_out.py",
        "        _ = site.plan  # declines terms that changed\n",
        "        pass\n",
        BEYOND + "no_test_is_answered_under_terms_that_changed_after_the_charge",
    ),
    Mutant(
        "tests of rounds that the site took no part in",
        "client_app/after_run/held_out.py",
        "    if not any(release and",
        "    if releases and not any(release is None or",
        BEYOND + "a_test_belongs_to_a_round_that_the_site_answered[server]",
    ),
    Mutant(
        "tests of rounds whose update was lost",
        "client_app/after_run/held_out.py",
        'release.status in ("sealed", "sent")',
        "release.status",
        BEYOND + "a_test_belongs_to_a_round_that_the_site_answered[server]",
    ),
    Mutant(
        "two models tested in one answer",
        "client_app/after_run/held_out.py",
        "    return max(1, (not site.terms.work.sent_part) + has_personal_model(site.terms) + second)\n",
        "    return 1\n",
        "client_app/after_run/test_personal_model.py::test_its_metrics_leave_only_where_the_profile_"
        "discloses_them[listed1]",
    ),
    Mutant(
        "a model read only after its test is counted",
        "client_app/app.py",
        "    tests = local_metrics(site, instructions)\n",
        "    tests = lambda: local_metrics(site, instructions)()  # noqa: E731\n",
        BEYOND + "a_test_that_cannot_be_done_is_not_counted",
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
    Mutant(
        "a message of any size digested before the policy is asked",
        "client_app/app.py",
        "            check_sizes(message.content, profile)\n",
        "",
        "client_app/site/test_model_bounds.py::"
        "test_a_message_above_the_policy_is_declined_before_a_byte_of_it_is_read",
    ),
    Mutant(
        "arrays without end",
        "client_app/site/site.py",
        "len(arrays) > MOST_ARRAYS or any(",
        "any(",
        "client_app/site/test_model_bounds.py::"
        "test_a_message_has_so_many_arrays_and_short_names_before_any_is_read",
    ),
    Mutant(
        "an exporter that ends over a name",
        "hdpfl_flower/monitoring/prometheus.py",
        'label[:LONGEST].encode(errors="backslashreplace").decode()',
        "label[:LONGEST]",
        EXPORT,
    ),
    Mutant(
        "a label of any length",
        "hdpfl_flower/monitoring/prometheus.py",
        "label[:LONGEST].encode",
        "label.encode",
        EXPORT,
    ),
)
