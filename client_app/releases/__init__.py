"""A site's halves of the kinds of release, loaded where a run names one."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from client_app.releases.base import SiteHalf
from hdpfl_flower.releases.base import ReleaseKind

ELSEWHERE: Final[dict[str, str]] = {}
"""Kind → module of its half, where that is not the module of the kind's name in this room."""


def half_of(kind: ReleaseKind | type[ReleaseKind]) -> SiteHalf:
    """Return the site's half of a registered kind.

    Args:
        kind: of the registry: a class of ours or of a user's project, and no text of a message.
    """
    here = f"client_app.releases.{kind.kind}"
    half: SiteHalf = import_module(ELSEWHERE.get(kind.kind, here)).HALF
    return half
