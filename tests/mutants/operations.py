"""Bugs of running and watching a site: unapproved code, telling times, exporters, refusals."""

from __future__ import annotations

from tests.mutants.runner import Mutant

TIMING = "client_app/site/test_reply_time.py::test_"
APPROVE = "client_app/commands/test_approve.py::test_"
SHOWN, SITE = (
    "server_app/monitoring/test_exporter.py::test_",
    "client_app/commands/test_exporter.py::test_",
)
EXPOSITION = "hdpfl_flower/monitoring/test_prometheus.py::test_"
MUTANTS = (
    Mutant(
        "an app taken for the approved one of its first digits",
        "client_app/approval/launcher.py",
        'folder = APPROVED / "apps" / sent[0]',
        'folder = next((APPROVED / "apps").glob(f"{sent[0][:8]}*"), APPROVED / "apps" / sent[0])',
        APPROVE + "an_app_is_known_by_all_of_its_digest",
    ),
    Mutant(
        "what is sent is loaded when it is not approved",
        "client_app/approval/launcher.py",
        'raise runtime.LoadClientAppError("not approved")',
        "return loader(default_app_ref='', app_path=None, multi_app=True)(*of_run)",
        APPROVE + "a_changed_app_does_not_run",
    ),
    Mutant(
        "what is sent is unpacked before anybody looks",
        "client_app/approval/launcher.py",
        "        sent[0] = hashlib",
        "        importlib.import_module('flwr.cli.install').install_from_fab(content, None, True)\n"
        "        sent[0] = hashlib",
        APPROVE + "a_changed_app_does_not_run",
    ),
    Mutant(
        "an app that others can change",
        "client_app/approval/launcher.py",
        "(stat.S_IWGRP | stat.S_IWOTH)",
        "0",
        APPROVE + "a_folder_that_others_can_write_to_is_refused",
    ),
    Mutant(
        "a refusal that does not wait",
        "client_app/app.py",
        "_reply(answered, message, wait_until_due(arrived))",
        "_reply(\n                answered, message, None if isinstance(answered, int) else wait_until_due(arrived)\n            )",
        TIMING + "every_reply_leaves_at_the_same_time",
    ),
    Mutant(
        "a constant time after the work, not after the request",
        "client_app/app.py",
        "            arrived = arrival(context)\n            answered = answer(message, context, arrived.profile)\n",
        "            answered = answer(message, context, arrival(context).profile)\n            arrived = arrival(context)\n",
        TIMING + "every_reply_leaves_at_the_same_time",
    ),
    Mutant(
        "a late reply leaves at once",
        "client_app/site/reply_time.py",
        "    end = arrived.since + multiple * arrived.reply_after\n",
        "    end = arrived.since + arrived.reply_after\n",
        TIMING + "late_work_leaves_at_the_next_multiple_and_the_log_says_so",
    ),
    Mutant(
        "any gauge of a journal is shown",
        "server_app/monitoring/run_series.py",
        "        for name, series in _OF_A_ROUND.items():\n",
        "        for name, series in {**_OF_A_ROUND, **dict.fromkeys(gauges, metrics.MSS)}.items():\n",
        SHOWN + "what_a_journal_may_hold_of_a_profile_is_not_shown",
    ),
    Mutant(
        "a site's budget at the coordinator",
        "hdpfl_flower/monitoring/prometheus.py",
        "if reading.series in self._mine]",
        "if self._mine]",
        EXPOSITION + "only_series_of_its_own_place_are_shown",
    ),
    Mutant(
        "a budget shown to everybody",
        "client_app/commands/exporter.py",
        "    if not (address.mutual or address.local or insecure):",
        "    if not (address or insecure):",
        SITE + "the_site_answers_this_machine_alone_unless_clients_show_who_they_are",
    ),
    Mutant(
        "TLS that asks nobody for a certificate",
        "hdpfl_flower/monitoring/prometheus.py",
        "context.verify_mode = ssl.CERT_REQUIRED",
        "context.verify_mode = ssl.CERT_OPTIONAL",
        SITE + "with_tls_nobody_without_a_certificate_is_answered",
    ),
    Mutant(
        "a budget shown without the token",
        "hdpfl_flower/monitoring/prometheus.py",
        "if address.token and not hmac.compare_digest(borne, wanted):",
        "if address.token and not borne:",
        EXPOSITION + "a_request_without_the_token_is_not_answered",
    ),
    Mutant(
        "a budget shown to every user of the machine",
        "client_app/commands/exporter.py",
        "if token_file is None and not (address.mutual or insecure):",
        "if token_file is None and not (address.mutual or address.local or insecure):",
        SITE + "a_token_is_asked_for_unless_the_operator_says_otherwise",
    ),
    Mutant(
        "a token that every user may read",
        "client_app/commands/exporter.py",
        "found.st_mode & (stat.S_IRWXO | stat.S_IWGRP)",
        "found.st_mode & stat.S_IWGRP",
        SITE + "a_token_that_others_know_or_set_is_refused",
    ),
    Mutant(
        "a token of another user",
        "client_app/commands/exporter.py",
        "if found.st_uid not in (0, os.geteuid()) or ",
        "if ",
        SITE + "a_token_that_others_know_or_set_is_refused",
    ),
    Mutant(
        "a token that may be empty",
        "client_app/commands/exporter.py",
        "_SHORTEST, _LONGEST = 16, 1000",
        "_SHORTEST, _LONGEST = 0, 1000",
        SITE + "a_token_that_others_know_or_set_is_refused",
    ),
    Mutant(
        "a budget shown to a page of the web",
        "hdpfl_flower/monitoring/prometheus.py",
        'if not address.is_asked_as(request.get("HTTP_HOST", "")):',
        "if False:",
        EXPOSITION + "a_request_that_names_another_machine_is_not_answered",
    ),
    Mutant(
        "an address of another machine taken for this one",
        "hdpfl_flower/monitoring/prometheus.py",
        "return _is_loopback(name) or (not self.local and _is_ip(name))",
        "return _is_loopback(name) or _is_ip(name)",
        EXPOSITION + "a_request_that_names_another_machine_is_not_answered",
    ),
    Mutant(
        "numbers of a broken ledger",
        "client_app/commands/site_series.py",
        '            log.error("%s", error)\n            found = [metrics.INTACT.reads(False)]',
        '            log.error("%s", error)\n            found = self._found[:-1]',
        SITE + "a_ledger_that_does_not_bear_out_is_told_and_its_numbers_are_not",
    ),
    Mutant(
        "the norm of an update without noise",
        "strategies/core/base.py",
        'if self.terms.noise != "server" and updates.squares is not None:',
        "if updates.squares is not None:",
        SHOWN + "norms_are_those_of_the_updates_unless_they_have_no_noise_yet",
    ),
    Mutant(
        "a refusal that is kept with its text",
        "client_app/site/refusals.py",
        '    return word if word in REASONS["failed"] else "other"',
        '    return word if word in REASONS["failed"] else str(reason)',
        "client_app/site/test_refusals.py::test_what_is_kept_is_a_word_of_the_list_and_nothing_of_the_request",
    ),
    Mutant(
        "a count of refusals that can cost a reply",
        "client_app/site/refusals.py",
        "    except BaseException as error:  # the guard's own call: nothing may pass it\n",
        "    except ValueError as error:\n",
        "client_app/site/test_refusals.py::test_whatever_counting_raises_stays_inside",
    ),
)
