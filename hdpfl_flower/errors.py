"""Errors of this package: each text names the key, the fault and the remedy.

Every error of this package is a :class:`HDPFLError`; the command lines print its text on one line
and end with a non-zero status. None of them carries a value of a profile or of a record: a text may
reach a log, and a log may leave the site.
"""

from __future__ import annotations

from enum import StrEnum


class HDPFLError(Exception):
    """Base of every error that a user can correct."""


class TermsError(HDPFLError):
    """The run's public terms are wrong."""


class ProfileError(HDPFLError):
    """A site's private profile is wrong; the text names keys, never values."""


class DataError(HDPFLError):
    """A data set, a schema or a site's table cannot be used as asked."""


class ModelError(HDPFLError):
    """A model cannot be built, or cannot be trained privately."""


class AccountingError(HDPFLError):
    """A privacy budget cannot be turned into noise, or noise into a privacy loss."""


class LedgerError(HDPFLError):
    """The ledger is missing, damaged, or cannot be written; nothing may be released."""


class StrategyError(HDPFLError):
    """An aggregation rule cannot work with what it was given."""


class EstimationError(StrategyError):
    """Updates from which no noise level can be estimated: not finite, or too large."""


class CheckpointError(HDPFLError):
    """A run cannot be resumed: its checkpoint is damaged, of another version, or it is complete."""


class WireError(HDPFLError):
    """A message does not have the form that ``wire.py`` prescribes; the text is a constant."""


class DeploymentError(HDPFLError):
    """Keys or certificates of a federation cannot be made as asked."""


class InstallationError(HDPFLError):
    """A library that this use needs is not installed; the text names the extra that holds it."""


class Reason(StrEnum):
    """Why a site declines, for its own counts; the server receives the same code for all of them.

    The values are stored beside the ledger: none is renamed or removed.
    """

    BUDGET = "budget"
    POLICY = "policy"
    PROFILE = "profile"
    REPLAY = "replay"
    TERMS = "terms"
    OTHER = "other"


class Declined(HDPFLError):  # noqa: N818 - a decision of the site, not a fault
    """The site refuses what the server asks. The server receives one constant code, no reason.

    Attributes:
        reason: what the refusal is counted under.
        text: for the site's own log.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        """Both are arguments of the exception, so that it can be pickled."""
        super().__init__(reason, text)
        self.reason, self.text = reason, text

    def __str__(self) -> str:
        return self.text if self.reason is Reason.OTHER else f"{self.reason.value}: {self.text}"


class Pending(Declined):
    """The site's operator has not approved the run; the server receives a code of its own."""

    def __init__(self, text: str) -> None:
        """``text``: for the site's own log."""
        super().__init__(Reason.OTHER, text)

    def __reduce__(self) -> tuple[type[Pending], tuple[str]]:
        return type(self), (self.text,)


class Refused(Pending):
    """The site's operator refused the run, for good; the server receives a code of its own."""
