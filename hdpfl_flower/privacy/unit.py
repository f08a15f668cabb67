"""Unit of a run's guarantee: a record, all records of one id, or all records of a client.

Units of different size never count under one name: with an id the used records of a unit are
clipped as one, and taking a row away puts another of the same id in its place, so that sums move by
2C.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined, Reason

ONE_MORE_OR_LESS = "add or remove one such unit"
ANY_CHANGE = "change, add or remove any of these records, one or all of them"
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


@lru_cache(maxsize=64)
def id_of(schema_text: str) -> str:
    """Return the id column of a run's ``schema``, or empty.

    Raises:
        DataError: the schema is none.

    >>> id_of(""), id_of("heart")
    ('', '')
    """
    if not schema_text:
        return ""
    from hdpfl_flower.data.schema import Schema

    return Schema.load(schema_text).id


def unit_of(terms: RunTerms) -> Unit:
    """Return the unit of a run, by its public terms alone; raises as :func:`id_of`.

    >>> unit_of(RunTerms()).unit
    'one record of one client'
    """
    if terms.noise == "server":
        return Unit("one client with all of its records", ONE_MORE_OR_LESS)
    if terms.noise == "client":
        return Unit("all records of one client", ANY_CHANGE)
    if column := id_of(terms.schema_text):
        return Unit(f"{OF_ID.format(column)} at one client", ONE_MORE_OR_LESS)
    if terms.task and terms.task.id:
        return Unit(f"{OF_FOLDER} at one client", ONE_MORE_OR_LESS)
    return Unit("one record of one client", ONE_MORE_OR_LESS)


def check_unit(profile: Profile, terms: RunTerms) -> None:
    """Refuse a schema or task with another id than the profile's.

    Guarantees:
        Decided by profile and terms alone, before a record is read.

    Raises:
        Declined: one of the two names an id that the other does not.
        DataError: the schema is none.
    """
    column = profile.data.column if profile.data else ""
    folder = profile.data.id if profile.data and not column else ""
    asked = id_of(terms.schema_text), terms.task.id if terms.task else ""
    if asked != (column, folder):
        raise Declined(
            Reason.POLICY,
            "the 'id' of the run's 'schema' is not the profile's 'data.id', so that the "
            "run would protect another unit than this site; "
            "write the schema's id as 'data.id', and its name in this table into "
            "[data.columns.ID]; or ask the coordinator to name this site's id (or to drop it where "
            "the table has none); of images in folders it is 'id=folder' in the run's 'task'",
        )
