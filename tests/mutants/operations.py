"""Bugs of running a site: code that was not approved, replies that tell by their time."""

from __future__ import annotations

from tests.mutants.runner import Mutant

TIMING = "client_app/test_timing.py::test_"
APPROVE = "client_app/commands/test_approve.py::test_"
MUTANTS = (
    Mutant(
        "an app taken for the approved one of its first digits",
        "client_app/launcher.py",
        'folder = APPROVED / "apps" / sent[0]',
        'folder = next((APPROVED / "apps").glob(f"{sent[0][:8]}*"), APPROVED / "apps" / sent[0])',
        APPROVE + "an_app_is_known_by_all_of_its_digest",
    ),
    Mutant(
        "what is sent is loaded when it is not approved",
        "client_app/launcher.py",
        'raise runtime.LoadClientAppError("not approved")',
        "return loader(default_app_ref='', app_path=None, multi_app=True)(*of_run)",
        APPROVE + "a_changed_app_does_not_run",
    ),
    Mutant(
        "what is sent is unpacked before anybody looks",
        "client_app/launcher.py",
        "        sent[0] = hashlib",
        "        importlib.import_module('flwr.cli.install').install_from_fab(content, None, True)\n"
        "        sent[0] = hashlib",
        APPROVE + "a_changed_app_does_not_run",
    ),
    Mutant(
        "an app that others can change",
        "client_app/launcher.py",
        "(stat.S_IWGRP | stat.S_IWOTH)",
        "0",
        APPROVE + "a_folder_that_others_can_write_to_is_refused",
    ),
    Mutant(
        "a refusal that does not wait",
        "client_app/app.py",
        "        hold(begun, context)",
        "        reply.has_error() or hold(begun, context)",
        TIMING + "every_reply_leaves_at_the_same_time",
    ),
    Mutant(
        "a constant time after the work, not after the request",
        "client_app/app.py",
        "        begun = time.monotonic()\n        reply = answer(message, context)",
        "        reply = answer(message, context)\n        begun = time.monotonic()",
        TIMING + "every_reply_leaves_at_the_same_time",
    ),
    Mutant(
        "a late reply leaves at once",
        "client_app/timing.py",
        "end = begun + multiple * reply_after",
        "end = begun + reply_after",
        TIMING + "late_work_leaves_at_the_next_multiple_and_the_log_says_so",
    ),
)
