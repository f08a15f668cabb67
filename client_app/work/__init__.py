"""Local work at a site: a file a kind, a row in its table."""

from __future__ import annotations

from typing import Final

from client_app.site.site import Site
from client_app.work.base import LocalWork, OwnRound
from client_app.work.offset import OffsetWork
from client_app.work.parted import AlternateWork, FrozenWork, PartedWork
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.models.task import Task
from hdpfl_flower.releases.of_run import has_personal_state
from hdpfl_flower.work import Alternate, Auto, Frozen, Joint, Offset, Plain, Work

TRAINING: Final[dict[type[Work], type[LocalWork]]] = {
    Auto: LocalWork,
    Plain: LocalWork,
    Joint: PartedWork,
    Alternate: AlternateWork,
    Frozen: FrozenWork,
    Offset: OffsetWork,
}
"""Training of every kind of local work."""


def local_work(terms: RunTerms, task: Task, sent: int) -> LocalWork:
    """Return the training of a run's work; raises as :class:`LocalWork`.

    Args:
        terms: the run's.
        task: of the head's outputs.
        sent: d, the size of the sent part.
    """
    return TRAINING[type(terms.work)](terms, task, sent)


def own_round(site: Site, server_round: int, sent: int) -> OwnRound | None:
    """Return the round of a site's own vector, or None.

    Raises:
        Declined, DataError, ModelError: as :class:`OwnRound` and :class:`LocalWork`.
    """
    if not has_personal_state(site.terms):
        return None
    return OwnRound(local_work(site.terms, site.task, sent), site, server_round)
