"""Ids of a site's units, as typed and as in its records, read alike."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data.columns import Notation, Texts
from hdpfl_tools.tables.images.image_folder import listing
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.table_reader import load_table


def read_alike(source: DataSource, typed: Sequence[bytes]) -> list[bytes]:
    """Return typed ids as a run reads them from ``source``; empty ones stay empty.

    >>> table = DataSource(format="csv", path="records.csv", id="patient")
    >>> read_alike(table, [b" 7.0", b"P-07"])
    [b'7', b'P-07']
    """
    if not source.column:
        return [text.strip() for text in typed]
    return Texts.of(typed).ids(Notation(source.decimal, source.thousands))


def unit_ids(source: DataSource) -> list[bytes]:
    """Return the different ids in the site's records, of withdrawn units, too.

    Raises:
        DataError: the records cannot be read.
    """
    if not source.column:
        folders = [
            unit.name for _, files in listing(source.path) for unit in files if unit.is_dir()
        ]
        return [os.fsencode(name) for name in dict.fromkeys(folders)]
    site_table = OwnTable.of(source)
    wanted = site_table.wanted(source.id)
    texts = load_table(*source.place, [wanted], site_table.form).columns[wanted]
    return list(dict.fromkeys(text for text in texts.ids(site_table.form.notation) if text))
