"""Reasons why the update of a site was not used: a code for programs, words for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Rejection(StrEnum):
    """Why an update was not used.

    The values are stored in journals and are labels of Prometheus: none is renamed or removed.
    """

    DECLINED = "declined"
    """The site refuses: by its policy, its terms or its budget."""
    FAILED = "failed"
    """The site reports an error."""
    LATE = "late"
    """No reply in time."""
    UNDELIVERED = "undelivered"
    """Flower could not deliver the message, or the site's app did not run to its end."""
    GUARD = "guard"
    """The guard refuses the update."""
    MALFORMED = "malformed"
    """The reply does not have the form that the wire prescribes."""
    PENDING = "pending"
    """The site's operator has not approved the run so far."""
    REFUSED = "refused"
    """The site's operator refused the run."""
    NOT_ASKED = "not-asked"
    """The strategy could not serve the site, and sent it no instructions."""


@dataclass(frozen=True)
class Rejected:
    """One site's update that was not used.

    Attributes:
        code: what programs read.
        words: what people read; no program does.
    """

    code: Rejection
    words: str


def rejections_in(event: Mapping[str, Any]) -> dict[str, Rejection]:
    """Return site → code of the updates that the round ``event`` of a journal rejects.

    A round of format 0 has words alone, of which the codes are looked up. A code that this version
    does not know cannot be in a journal whose format it knows, and raises ``ValueError``.
    """
    words: Mapping[str, str] = event.get("rejected", {})
    if "rejections" not in event:
        return {site: _of_format_0(str(why)) for site, why in words.items()}
    return {site: Rejection(code) for site, code in event["rejections"].items()}


_WORDS_OF_FORMAT_0 = {
    "declined": Rejection.DECLINED,
    "failed": Rejection.FAILED,
    "no reply in time": Rejection.LATE,
    "app not loaded there: it may have approved another one": Rejection.UNDELIVERED,
    "its work broke off": Rejection.UNDELIVERED,
    "asks for more privacy than any level gives": Rejection.NOT_ASKED,
    "its level had no site when the run began: there is no noise for it": Rejection.NOT_ASKED,
    "claims another level than it joined with": Rejection.NOT_ASKED,
}
_STARTS_OF_FORMAT_0 = {"not delivered": Rejection.UNDELIVERED, "guard:": Rejection.GUARD}
"""The words of journals of format 0. What this version writes is free to change; these are not."""


def _of_format_0(words: str) -> Rejection:
    starts = (code for start, code in _STARTS_OF_FORMAT_0.items() if words.startswith(start))
    return _WORDS_OF_FORMAT_0.get(words) or next(starts, Rejection.MALFORMED)
