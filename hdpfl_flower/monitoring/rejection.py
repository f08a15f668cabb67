"""Reasons for unused updates: codes for programs, words for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Rejection(StrEnum):
    """Reason why an update was not used.

    The values are stored in journals and are labels of Prometheus: none is renamed or removed.
    """

    DECLINED = "declined"
    """The site refuses: by its policy, its terms or its budget."""
    FAILED = "failed"
    """The site reports an error."""
    LATE = "late"
    """No reply in time."""
    UNDELIVERED = "undelivered"
    """Message not delivered by Flower, or the site's app did not finish."""
    GUARD = "guard"
    """The guard refuses the update."""
    MALFORMED = "malformed"
    """The reply is not in the form of the wire."""
    PENDING = "pending"
    """The site's operator has not yet approved the run."""
    REFUSED = "refused"
    """The site's operator refused the run."""
    NOT_ASKED = "not-asked"
    """The strategy could not serve the site, and did not ask it."""


@dataclass(frozen=True)
class Rejected:
    """One site's unused update, with the reason.

    Attributes:
        code: for programs.
        words: for people; no program reads them.
    """

    code: Rejection
    words: str


def rejections_in(event: Mapping[str, Any]) -> dict[str, Rejection]:
    """Return site → code of the rejected updates in a round.

    Raises:
        LookupError, ValueError: there are none, or a code is unknown.
    """
    return {site: Rejection(code) for site, code in event["rejections"].items()}
