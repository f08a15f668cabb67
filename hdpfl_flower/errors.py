"""What can go wrong, in words that name the key, say what is wrong and give the remedy.

Every error of this package is a :class:`HDPFLError`; the command lines print its text on one line
and end with a non-zero status. None of them carries a value of a profile or of a record: a text may
reach a log, and a log may leave the site.
"""

from __future__ import annotations


class HDPFLError(Exception):
    """Base of every error that a user can mend."""


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
    """Updates that no noise level can be read from: numbers that are not finite, or too large."""


class CheckpointError(HDPFLError):
    """A run cannot go on from what it left: damaged, of another version, or complete."""


class DeploymentError(HDPFLError):
    """Keys or certificates of a federation cannot be made as asked."""


class Declined(HDPFLError):  # noqa: N818 - a decision of the site, not a fault
    """The site will not do what the server asks; the server learns only a constant code."""
