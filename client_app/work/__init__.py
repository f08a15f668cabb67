"""Local work at a site: a file a kind, a row in its table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from client_app.site.site import Site
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.models.task import Task
from hdpfl_flower.releases.of_run import has_personal_state
from hdpfl_flower.work import Alternate, Frozen, Joint, Offset, Work

if TYPE_CHECKING:
    from client_app.work.base import LocalWork, OwnRound

TRAINING: Final[dict[type[Work], tuple[str, str]]] = {
    Joint: ("parted", "PartedWork"),
    Alternate: ("parted", "AlternateWork"),
    Frozen: ("parted", "FrozenWork"),
    Offset: ("offset", "OffsetWork"),
}
"""Module and class of each kind of local work but the plain one, loaded where a run names it."""


def local_work(terms: RunTerms, task: Task, sent: int) -> LocalWork:
    """Return the training of a run's work; raises as :class:`LocalWork`.

    Args:
        terms: the run's.
        task: of the head's outputs.
        sent: d, the size of the sent part.
    """
    module, name = TRAINING.get(type(terms.work), ("base", "LocalWork"))
    work: LocalWork = getattr(import_module(f"{__name__}.{module}"), name)(terms, task, sent)
    return work


def own_round(site: Site, server_round: int, sent: int) -> OwnRound | None:
    """Return the round of a site's own vector, or None.

    Raises:
        Declined, DataError, ModelError: as :class:`OwnRound` and :class:`LocalWork`.
    """
    if not has_personal_state(site.terms):
        return None
    from client_app.work.base import OwnRound

    return OwnRound(local_work(site.terms, site.task, sent), site, server_round)
