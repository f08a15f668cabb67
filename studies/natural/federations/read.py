"""Records of a natural federation by site, through its schema."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.arrow_columns import ArrowColumn
from hdpfl_flower.data.own_table import OwnTable
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.data.table_reader import RawTable
from hdpfl_flower.data.table_records import records_of
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Records
from hdpfl_flower.system.extras import extra, missing
from studies.natural.federations.catalog import FEDERATIONS, Federation
from studies.natural.federations.restricted_pickle import read_table_pickle


@dataclass(frozen=True, repr=False)
class SiteRecords:
    """Records of all sites of a federation.

    Attributes:
        sites: their names, in numerical order if they are numbers.
        records: of each, one record per unit, in the order of the table.
        rows: records of the table, including those that are not a unit's first labelled one.
    """

    sites: tuple[str, ...]
    records: tuple[Records, ...]
    rows: int


def schema_of(name: str) -> Schema:
    """Return the public schema of a federation of ``FEDERATIONS``."""
    path = Path(__file__).with_name("schemas") / f"{name}.toml"
    return Schema.parse(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=2)
def read_federation(name: str) -> SiteRecords:
    """Return a federation's records, cached; do not modify them.

    Args:
        name: in ``FEDERATIONS``.

    Raises:
        InstallationError: its package, pandas or pyarrow is not installed.
        DataError: the package's table differs from the known one.
    """
    one = FEDERATIONS[name]
    schema, own = schema_of(name), OwnTable()
    table = read_table_pickle(_path_of(one))
    wanted = own.all_wanted(schema)
    columns = {each: _column(table, each.names[0], one) for each in wanted}
    raw = RawTable(columns, np.arange(len(table), dtype=np.int64), len(table))
    read = records_of(raw, schema, own)
    named = _names(_column(table, one.site, one))[read.positions]
    sites = sorted(set(named.tolist()), key=_by_number)
    parts = [read.records.take(np.flatnonzero(named == site)) for site in sites]
    return SiteRecords(tuple(sites), tuple(parts), len(table))


def installed_version(one: Federation) -> str:
    """Return the installed version of the federation's package, or empty."""
    try:
        return version(one.package)
    except PackageNotFoundError:
        return ""


def _path_of(one: Federation) -> Path:
    # Found, not imported: no code of the package runs.
    spec = find_spec(one.package)
    if spec is None or spec.origin is None:
        raise missing("bench", f"the federation '{one.name}'", one.package)
    return Path(spec.origin).parent / one.file


def _column(table: Any, name: str, one: Federation) -> ArrowColumn:
    with extra("bench", f"the federation '{one.name}'"):
        import pyarrow as pa

    if name not in table.columns:
        raise DataError(
            f"{one.package} {installed_version(one)} has no column '{name}' in {one.file}; "
            f"run: pip install {one.package}=={one.version}"
        )
    return ArrowColumn(pa.chunked_array([pa.array(table[name])]))


def _names(column: ArrowColumn) -> npt.NDArray[np.str_]:
    """Return the text of each cell."""
    texts = column.texts()
    if texts is None:
        raise DataError("a column of sites holds neither numbers nor texts")
    return np.array([value.decode() for value in texts.values])[texts.rows]


def _by_number(name: str) -> tuple[float, str]:
    return (float(name) if name.isdecimal() else 0.0, name)
