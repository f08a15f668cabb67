"""One record of the site's log is one printable line, whatever the server wrote into it."""

from __future__ import annotations

import csv
import io
import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.system.printable import LONGEST, printable, site_log
from hdpfl_tools.shell.csv_text import csv_text

TRICKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x00\x08\x1b\x7f\x9b\u202e\u2066\u200b\ufeff\xa0"
"""What ends a line for somebody, moves a cursor, turns text round, or cannot be seen."""


@given(st.text())
def test_what_is_shown_is_one_line_that_shows_everything(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown
    assert (shown == text) == text.isprintable()


@pytest.mark.parametrize("trick", TRICKS, ids=lambda c: unicodedata.name(c, f"U+{ord(c):04X}"))
def test_each_trick_is_spelled_out(trick: str) -> None:
    shown = printable(f"a{trick}b")
    assert shown.startswith("a\\")
    assert shown.endswith("b")
    assert shown.isprintable()


def test_halves_of_a_pair_can_be_written() -> None:
    """JSON may hold them, and no file or terminal takes them."""
    assert printable("\ud800") == "\\ud800"


def record_of(say: object) -> logging.LogRecord:
    """Return what a handler gets when ``say`` has spoken to the site's log."""
    seen: list[logging.LogRecord] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    log, handler = site_log(), Keeps()
    log.addHandler(handler)
    try:
        say(log)  # type: ignore[operator]
    finally:
        log.removeHandler(handler)
    (record,) = seen
    return record


def test_the_sites_log_says_one_line_a_record() -> None:
    record = record_of(lambda log: log.warning("declined: %s", f"a{TRICKS}b"))
    line = logging.Formatter().format(record)
    assert line == f"declined: {printable(f'a{TRICKS}b')}"
    assert line.isprintable()


def test_a_traceback_is_one_line_as_well() -> None:
    def say(log: logging.Logger) -> None:
        try:
            raise ValueError("x\nWARNING forged")
        except ValueError:
            log.exception("failed")

    lines = logging.Formatter().format(record_of(say)).split("\n")
    assert len(lines) == 2
    assert "\\nWARNING forged" in lines[1]


def test_a_flood_is_cut_and_counted() -> None:
    record = record_of(lambda log: log.warning("%s", "\n" * 10 * LONGEST))
    line = record.getMessage()
    assert len(line) < LONGEST + 50
    assert line.endswith(f"… ({10 * LONGEST} characters)")
    whole = record_of(lambda log: log.warning("%s", "a" * LONGEST)).getMessage()
    assert whole == "a" * LONGEST


@pytest.mark.parametrize(
    "text",
    ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "|a", "%a",
     "\uff1d1+1", "\u200b=1", "-", "+", "=1e5", "-1\n"],
)  # fmt: skip
def test_no_cell_of_a_csv_is_a_formula(text: str) -> None:
    """A class of the server's schema reaches a spreadsheet of the site."""
    shown = csv_text([[text, "a"]])
    ((cell, other),) = csv.reader(io.StringIO(shown))
    assert cell[0] not in "=+-@|%\t\r\n \uff1d"
    assert cell == f"'{printable(text)}" or cell == printable(text) != text
    assert other == "a" and shown.removesuffix("\n").isprintable()


def test_numbers_and_names_stay_as_they_are_in_a_csv() -> None:
    row = ["-0.5", "+1e-5", "-.5", -2, -0.25, "1", "yes", "a=b", "Ünïcode", 'a "b", c', ""]
    assert list(csv.reader(io.StringIO(csv_text([row])))) == [[str(one) for one in row]]
