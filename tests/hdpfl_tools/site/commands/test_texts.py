"""Texts of the commands: no value of a template draws on a terminal."""

from __future__ import annotations

import pytest

from hdpfl_tools.site.commands.texts.render import text_of

HOSTILE = "run\x1b[2J\nok       all is well\u202e"


@pytest.mark.parametrize("key", ["decision", "run", "by"])
def test_a_value_adds_no_line_and_no_control_character(key: str) -> None:
    decision = {"at": "2026-01-01", "decision": "approved", "run": "a", "by": "b"}
    text = text_of("requests", waiting=[], decided=[{**decision, key: HOSTILE}])
    assert text.count("\n") == 1
    assert text.replace("\n", "").isprintable()
