"""The table that was imported and checked: its digest, and the export that it was read from.

``hdpfl-site data import``, and with it ``profile check``, ``approve`` and ``prepare``, read an
export of any kind once and write a frozen table beside the ledger
(``hdpfl_tools/tables/frozen_table.py``). Records are prepared from it alone, and a message that
meets another export than the one it was read from declines.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from hdpfl_flower import formats
from hdpfl_flower.config.data_source import TABLES, DataSource
from hdpfl_flower.errors import DataError, Declined, Reason

_FORMS = frozenset(
    ("format", "path", "encoding", "delimiter", "skip", "sheet", "select", "connection", "query",
     "tables", "decimal", "id")
)  # fmt: skip
"""Keys of ``[data]`` that an import reads; the others act on the frozen table."""


@dataclass(frozen=True, repr=False)
class TableFacts:
    """Facts of a frozen table, private like it.

    Attributes:
        table: SHA-256 of its file.
        settings: digest of the keys of ``[data]`` by which it was read.
        export: SHA-256 of the export's files.
        stamp: of these files, as ``stamp_of`` returns it; empty for a database elsewhere.
        rows: of the table, bad ones included.
        columns: for each its name, its cells that are empty, and its different texts.
    """

    table: str
    settings: str
    export: str
    stamp: tuple[int, ...]
    rows: int
    columns: tuple[tuple[str, int, int], ...]

    def to_json(self) -> bytes:
        """Return the content of the file."""
        content = {"format": formats.TABLE.newest, "facts": asdict(self)}
        return json.dumps(content, sort_keys=True).encode()


def table_folder(ledger: Path) -> Path:
    """Return the folder of the frozen table, beside the ledger."""
    return ledger.with_name(f"{ledger.name}.table")


def facts_path(ledger: Path) -> Path:
    """Return the file of the facts of the frozen table: where it is, there is a table."""
    return table_folder(ledger) / "table.json"


def read_facts(ledger: Path) -> TableFacts | None:
    """Return the facts of the frozen table; None where there is none.

    Raises:
        DataError: they are damaged, or of a newer version.
    """
    try:
        content = json.loads(facts_path(ledger).read_bytes())
        number, facts = content["format"], dict(content["facts"])
        facts["stamp"] = tuple(facts["stamp"])
        facts["columns"] = tuple(map(tuple, facts["columns"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            "the facts of the imported table are damaged; import it again: hdpfl-site data import"
        ) from None
    formats.TABLE.check(number)
    return TableFacts(**facts)


def settings_digest(source: DataSource) -> str:
    """Return the SHA-256 of the keys of ``[data]`` that an import reads."""
    content = source.model_dump(mode="json", include=set(_FORMS))
    # Without an id rows are digested, for the holdout.
    return json_digest({**content, "id": bool(source.id)})


def is_current(facts: TableFacts, source: DataSource, *, whole: bool = False) -> bool:
    """Return whether the table is the export as it is now.

    An export that is not there any more is no other one. Files of the same number, size and time
    of change are the same, unless ``whole`` asks for their content.

    Raises:
        DataError: the export cannot be read.
    """
    if facts.settings != settings_digest(source):
        return False
    stamp = stamp_of(source)
    if not stamp or (stamp == facts.stamp and not whole):
        return True
    return facts.export == digest_of(source)


def check_table(source: DataSource, ledger: Path, *, whole: bool = False) -> None:
    """Decline where the export is not the one that the frozen table was read from.

    ``whole``: as of :func:`is_current`.

    Raises:
        Declined: it was replaced or changed since, or ``[data]`` reads it in another way.
        DataError: it cannot be read, or the facts of the table are damaged.
    """
    if source.format not in TABLES:
        return
    facts = read_facts(ledger)
    if facts is not None and not is_current(facts, source, whole=whole):
        raise Declined(
            Reason.PROFILE,
            "the table of [data] is not the one that was checked; see what changed: hdpfl-site "
            "data status; then check it: hdpfl-site data import",
        )


def stamp_of(source: DataSource) -> tuple[int, ...]:
    """Return number, bytes and newest change of the export's files; empty where there is none."""
    try:
        states = [file.stat() for path in places_of(source) for file in files_of(path)]
    except OSError:
        return ()
    if not states:
        return ()
    sizes, times = [s.st_size for s in states], [s.st_mtime_ns for s in states]
    return (len(sizes), sum(sizes), max(times))


def places_of(source: DataSource) -> list[Path]:
    """Return files and folders of the export; of a database on another machine none."""
    tables = source.tables.values() if source.tables else (source,)
    return [table.path for table in tables if table.path != Path()]


def files_of(path: Path) -> Iterator[Path]:
    """Yield a file, or all files below a folder in the order of their names."""
    if not path.is_dir():
        yield path
        return
    yield from sorted(file for file in path.rglob("*") if file.is_file())


def digest_of(source: DataSource) -> str:
    """Return the SHA-256 of an export: of a file, or of the names and contents of several.

    Raises:
        DataError: it cannot be read.
    """
    total = hashlib.sha256()
    try:
        for path in places_of(source):
            for file in files_of(path):
                with file.open("rb") as opened:
                    content = hashlib.file_digest(opened, "sha256")
                if places_of(source) == [file]:
                    return content.hexdigest()
                name = os.fsencode(file.relative_to(path)) if file != path else b"."
                total.update(name + b"\0" + content.digest())
    except OSError:
        raise DataError("'data.path' cannot be read; check the file and its permissions") from None
    return total.hexdigest()


def json_digest(content: object) -> str:
    """Return the SHA-256 of a content as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
