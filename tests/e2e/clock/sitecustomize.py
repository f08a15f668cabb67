"""Python reads this first where its folder is in PYTHONPATH: a clock that is off.

``CLOCK_FILE`` names a file with the seconds by which Python's clock on the wall is ahead; the file
may change at any time. C code, OpenSSL's check of certificates among it, keeps the machine's clock.
"""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path
from typing import Any


def set_by(offset: Path) -> None:
    """Shift ``time.time`` and the times of ``datetime`` from now on."""
    right_time, right = time.time, datetime.datetime

    def ahead() -> float:
        try:
            return float(offset.read_text())
        except (OSError, ValueError):  # not set, or being written
            return 0.0

    class OfKind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, right)

    class Shifted(right, metaclass=OfKind):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(shifted_time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(shifted_time(), datetime.UTC).replace(tzinfo=None)

    def shifted_time() -> float:
        return right_time() + ahead()

    time.time = shifted_time
    time.time_ns = lambda: int(shifted_time() * 1e9)
    datetime.datetime = Shifted  # type: ignore[misc]


if "CLOCK_FILE" in os.environ:
    set_by(Path(os.environ["CLOCK_FILE"]))
