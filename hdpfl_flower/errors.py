"""Errors of this package, naming key, fault and remedy.

Every error of this package is a :class:`HDPFLError`; the command lines print its text on one line
and end with a non-zero status. None of them carries a value of a profile or of a record: a text may
reach a log, and a log may leave the site.
"""

from __future__ import annotations

import signal
from enum import StrEnum


class HDPFLError(Exception):
    """Base of every error that a user can correct."""


def is_ctrl_c(reason: BaseException) -> bool:
    """Return whether an exception from an app's code is an operator's Ctrl-C.

    Not where another handler takes the signal, as Flower's does at a SuperNode: there a
    ``KeyboardInterrupt`` is the app's own, and one record may decide whether it is raised.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(reason, KeyboardInterrupt) and ours


def log_text(reason: BaseException) -> str:
    """Text of an exception for a log: of an error of this package; else its class alone.

    The text of another exception may hold values of records.
    """
    return str(reason) if isinstance(reason, HDPFLError) else type(reason).__name__


class TermsError(HDPFLError):
    """The run's public terms are wrong."""


class ProfileError(HDPFLError):
    """A site's profile is wrong; the text names keys, never values."""


class DataError(HDPFLError):
    """A data set, schema or table cannot be used as asked."""


class ModelError(HDPFLError):
    """A model cannot be built or trained privately."""


class AccountingError(HDPFLError):
    """A budget cannot be turned into noise, or noise into loss."""


class LedgerError(HDPFLError):
    """The ledger is missing, damaged, or not writable; no release is allowed."""


class StrategyError(HDPFLError):
    """A strategy cannot work with its inputs."""


class EstimationError(StrategyError):
    """Updates give no noise level: not finite, or too large."""


class CheckpointError(HDPFLError):
    """A run cannot be resumed: checkpoint damaged, other version, or complete."""


class WireError(HDPFLError):
    """A message violates the form in ``wire.py``; the text is constant."""


class DeploymentError(HDPFLError):
    """Keys or certificates of a federation cannot be made as asked."""


class InstallationError(HDPFLError):
    """A required library is not installed; the text names its extra."""


class Reason(StrEnum):
    """Reason why a site declines, for its own counts; the server receives one code for all.

    The values are stored beside the ledger: none is renamed or removed.
    """

    BUDGET = "budget"
    POLICY = "policy"
    PROFILE = "profile"
    REPLAY = "replay"
    TERMS = "terms"
    OTHER = "other"


class Declined(HDPFLError):  # noqa: N818 - a decision of the site, not a fault
    """The site refuses a request; the server receives one constant code, without a reason.

    Attributes:
        reason: category in the site's counts.
        text: for the site's own log.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        """Both are arguments of the exception, so that it can be pickled."""
        super().__init__(reason, text)
        self.reason, self.text = reason, text

    def __str__(self) -> str:
        return self.text if self.reason is Reason.OTHER else f"{self.reason.value}: {self.text}"


class Pending(Declined):
    """The operator has not yet approved the run; a separate code is sent."""

    def __init__(self, text: str) -> None:
        """``text``: for the site's own log."""
        super().__init__(Reason.OTHER, text)

    def __reduce__(self) -> tuple[type[Pending], tuple[str]]:
        return type(self), (self.text,)


class Refused(Pending):
    """The site's operator refused the run for good; a separate code."""
