"""Tables at hand as a simulated federation, one a site, read as a site reads its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.redacted import Redacted
from hdpfl_flower.config.tasks import StatedTask
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_flower.system.paths import expanded
from hdpfl_tools.simulation.own_data.dataset import stated_of
from hdpfl_tools.tables.site_data import SiteData, read_site_data

FORMATS = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet"}
LEAST = 5
"""Records a table must have: every fifth tests."""


@dataclass(frozen=True, repr=False)
class TableSource(Redacted):
    """Table of a simulated site.

    Attributes:
        name: as it was given.
        source: its place and form.
    """

    name: str
    source: DataSource


def table_sources(
    names: Sequence[str],
    folder: Path,
    schema_text: str,
    load: Callable[[Path], Profile] = Profile.load,
) -> list[TableSource]:
    """Return the sources of tables, each a file or the profile of a site (``.toml``).

    Args:
        names: of the files.
        folder: that relative names start from.
        schema_text: of the tables.
        load: reads a profile; that of ``tables/withdrawals.py`` leaves out withdrawn units.

    Raises:
        DataError, ProfileError: a name is of neither, or a profile is wrong or names no table.
    """
    paths = {name: folder / expanded(name) for name in names}
    return [TableSource(name, _source(paths[name], schema_text, load)) for name in names]


def _source(path: Path, schema_text: str, load: Callable[[Path], Profile]) -> DataSource:
    if path.suffix == ".toml":
        source = load(path).data
        if source is None or source.format not in FORMATS.values():
            raise DataError(f"{path}: its [data] does not name a table; set 'data.format' to csv")
        return source
    if path.suffix.lower() not in FORMATS:
        endings = ", ".join((*FORMATS, ".toml"))
        raise DataError(
            f"{path} is not a table; give files that end in {endings} (a site's profile)"
        )
    return DataSource(
        format=FORMATS[path.suffix.lower()], path=path, id=Schema.load(schema_text).id
    )


def write_federation(
    tables: Sequence[TableSource], schema_text: str, to: Path
) -> tuple[StatedTask, list[str]]:
    """Write the encoded records of all tables to ``to`` (.npz).

    An owner a table; a record a unit, as a site uses it; ``holdout`` is disregarded.

    Returns:
        the task, and a line a table: records found, used, and left out by reason.

    Raises:
        DataError: a table cannot be read, or has fewer than ``LEAST`` records; it is named.
    """
    schema = Schema.load(schema_text)
    read = [_read(table, schema_text) for table in tables]
    targets = np.concatenate([site.train.targets for site in read])
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("wb") as file:
        to.chmod(0o600)
        np.savez(
            file,
            x=np.concatenate([site.train.features for site in read]),
            y=np.stack([targets // 2, targets % 2], axis=1) if schema.task.intervals else targets,
            owner=np.repeat(np.arange(len(read)), [len(site.train) for site in read]),
        )
    return stated_of(schema.task), [
        f"{table.name}: {_counts(site)}" for table, site in zip(tables, read, strict=True)
    ]


def _counts(data: SiteData) -> str:
    left = "".join(f"; left out: {n}, {why}" for why, n in data.summary.left_out.items() if n)
    return f"{data.summary.rows} records found, {len(data.train)} used{left}"


def _read(table: TableSource, schema_text: str) -> SiteData:
    source = table.source.model_copy(update={"holdout": 0.0})
    try:
        data = read_site_data(source, Schema.load(schema_text).task, schema_text)
    except DataError as error:
        raise DataError(f"{table.name}: {error}") from None
    if len(data.train) < LEAST:
        raise DataError(f"{table.name}: fewer than {LEAST} records have a label; give more")
    return data
