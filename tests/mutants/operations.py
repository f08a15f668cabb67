"""Bugs of running a site: code that was not approved, replies that tell by their time."""

from __future__ import annotations

from tests.mutants.runner import Mutant

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
)
