"""Safe display of untrusted text.

No character of it ends a line, moves a cursor or hides others.

The server chooses a run's name, its strategy and a schema, and they stand in errors, in the site's
log and in its reports. With a line break in one of them a server could add its own lines to a log
that an operator trusts.
"""

from __future__ import annotations

import logging

LONGEST = 4000
"""Maximum characters of a log line; the rest is only counted."""

_SITE = "hdpfl.site"


def printable(text: str) -> str:
    r"""Return ``text`` with all non-printable characters spelled out.

    Line breaks, escapes, marks of direction and characters without width become ``\n``, ``\x1b``,
    ``\u202e`` and the like; a blank is the only white space that stays.

    >>> printable("ε of run-1" + chr(27) + "[2J")
    'ε of run-1\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class OneLine(logging.Filter):
    """Log filter that turns every record into one printable line.

    Guarantees:
        A record is one printable line of at most ``LONGEST`` characters, and their number; its
        traceback is another one.
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
    """Return the site's log; its records are always one line."""
    log = logging.getLogger(_SITE)
    if not any(isinstance(present, OneLine) for present in log.filters):
        log.addFilter(OneLine())
    return log


def _one_line(text: str) -> str:
    shown = printable(text[:LONGEST])
    if len(text) <= LONGEST and len(shown) <= LONGEST:
        return shown
    return f"{shown[:LONGEST]} … ({len(text)} characters)"
