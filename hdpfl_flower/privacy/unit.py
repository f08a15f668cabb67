"""Unit of a run's guarantee: a record, all records of one id, or all records of a client.

Units of different size never count under one name: with an id the used records of a unit are
clipped as one, and taking a row away puts another of the same id in its place, so that sums move by
2C.
"""

from __future__ import annotations

from dataclasses import dataclass

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.noise_sources import ONE_MORE_OR_LESS
from hdpfl_flower.privacy.policy import id_of

OF_ID, OF_FOLDER = "all that lies under one value of column '{}'", "all images of one folder"
"""Units of ids, in words."""


@dataclass(frozen=True)
class Unit:
    """Unit of a run's (ε, δ).

    Attributes:
        unit: the protected unit in words for everybody: no value of a profile is in it.
        relation: which two data sets are compared.
    """

    unit: str
    relation: str


def unit_of(terms: RunTerms) -> Unit:
    """Return the unit of a run, by its public terms alone; raises as :func:`id_of`.

    >>> unit_of(RunTerms()).unit
    'one record of one client'
    """
    if terms.source.unit:
        return Unit(terms.source.unit, terms.source.relation)
    if column := id_of(terms.schema_text):
        return Unit(f"{OF_ID.format(column)} at one client", ONE_MORE_OR_LESS)
    if terms.task and terms.task.id:
        return Unit(f"{OF_FOLDER} at one client", ONE_MORE_OR_LESS)
    return Unit("one record of one client", ONE_MORE_OR_LESS)
