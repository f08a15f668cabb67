"""Text of other people, shown: no character of it ends a line, moves a cursor or hides others.

A run's name, its rule, a schema: the server chooses them, and they stand in errors, in the site's
log and in its reports. With a line break in one of them a server could write lines of its own into
a log that an operator trusts.
"""

from __future__ import annotations

import logging

LONGEST = 4000
"""Characters of one line of a log; the rest is counted."""

_SITE = "hdpfl.site"


def printable(text: str) -> str:
    r"""Return ``text`` with every character that is not printed as itself spelled out.

    Line breaks, escapes, marks of direction and characters without width become ``\n``, ``\x1b``,
    ``\u202e`` and the like; a blank stays, every other white space does not.

    >>> printable("ε of run-1" + chr(27) + "[2J")
    'ε of run-1\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class OneLine(logging.Filter):
    """Turns every record of a log into one line that shows what it holds.

    Guarantees:
        Whatever a message or a traceback is made of, one record is one printable line of at most
        ``LONGEST`` characters, and their number (a traceback: another such line).
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Change ``record`` and let it pass."""
        record.msg, record.args = _one_line(record.getMessage()), None
        if record.exc_info:
            record.exc_text = _one_line(logging.Formatter().formatException(record.exc_info))
        if record.stack_info:
            record.stack_info = _one_line(record.stack_info)
        return True


def site_log() -> logging.Logger:
    """Return the site's log; what is said in it is always one line."""
    log = logging.getLogger(_SITE)
    if not any(isinstance(each, OneLine) for each in log.filters):
        log.addFilter(OneLine())
    return log


def _one_line(text: str) -> str:
    shown = printable(text[:LONGEST])
    if len(text) <= LONGEST and len(shown) <= LONGEST:
        return shown
    return f"{shown[:LONGEST]} … ({len(text)} characters)"
