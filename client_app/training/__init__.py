"""Local training, a class a source of noise."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from client_app.site.site import Site
    from client_app.training.client_level import ClientLevelTrainer
    from client_app.training.trainer import Trainer
    from hdpfl_flower.wire import Instructions

TRAINERS: Final = {
    "records": ("trainer", "Trainer"),
    "shared": ("sum_part", "SumPart"),
    "server": ("client_level", "ClientLevelTrainer"),
    "client": ("client_level", "ClientLevelTrainer"),
}
"""Module and class of the training under each source of noise, imported where a run names it."""


def trainer_of(site: Site, instructions: Instructions) -> Trainer | ClientLevelTrainer:
    """Return the round's training, checked without a record; raises as its class."""
    module, name = TRAINERS[instructions.terms.noise]
    trainer: Trainer | ClientLevelTrainer = getattr(import_module(f"{__name__}.{module}"), name)(
        site, instructions
    )
    return trainer
