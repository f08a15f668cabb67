"""Preparation of records: the export is read once, by the operator's tool.

``python -m hdpfl_tools.site.approval.preparation PROFILE`` with the terms (JSON) on standard input
binds a run to prepared records, for the first message of a run under a standing approval.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from client_app.site.prepared_records import (
    DIGEST_BYTES,
    GROUPS,
    HEAD,
    IDS,
    KIND,
    Facts,
    PreparedRecords,
    prepared_path,
    read_prepared,
    records_folder,
    source_digest,
    task_digest,
    unit_of,
)
from hdpfl_flower import formats
from hdpfl_flower.config.data_source import TABLES, DataSource, keyed_digest
from hdpfl_flower.config.profile import LedgerPaths, Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.data.schema import CategoryColumn, Schema
from hdpfl_flower.errors import DataError, Declined, HDPFLError, ProfileError
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.checked_table import check_table, digest_of, read_facts, stamp_of
from hdpfl_flower.ledger.ledger import Ledger, check_bindable
from hdpfl_flower.ledger.withdrawals import key_name
from hdpfl_flower.models.task import SiteRecords, Task
from hdpfl_flower.system.files import replace_file, sync
from hdpfl_tools.tables.frozen_table import checked_table, import_table, table_path
from hdpfl_tools.tables.site_data import SiteData, stored_site_data
from hdpfl_tools.tables.table_records import check_width
from hdpfl_tools.tables.withdrawals import unit_key, withdrawn_by


@dataclass(frozen=True, repr=False, eq=False)
class ExportRead:
    """An export read by a run's schema, not yet written.

    Attributes:
        data: the records, with ids in clear.
        facts: of the file to be; the key of the ids is named when it is written.
        paths: of the ledger beside which it will lie.
        account: of that ledger.
    """

    data: SiteData
    facts: Facts
    paths: LedgerPaths
    account: Account

    def write(self) -> str:
        """Write the prepared file durably, mode 0600; return its SHA-256.

        Raises:
            DataError: the disk refuses; no part of the file is left.
            LedgerError: units withdrew and their key is lost, or it cannot be written.
        """
        import safetensors.numpy

        data, facts = self.data, self.facts
        if data.ids is not None:
            key = unit_key(self.account, self.paths.path)
            ids, test_ids = (
                [bytes.fromhex(keyed_digest(key, unit)) for unit in units or ()]
                for units in (data.ids, data.test_ids)
            )
            data = replace(data, ids=ids, test_ids=test_ids)
            facts = replace(facts, key=key_name(key))
        content = safetensors.numpy.save(arrays_of(data), head_of(facts))
        digest = hashlib.sha256(content).hexdigest()
        path = prepared_path(self.paths.path, digest)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(path, content, durable=True)
            sync(path.parent)
        except OSError as error:
            raise DataError(
                f"the prepared records ({len(content):,} bytes in {path.parent}) cannot be "
                f"written: {error.strerror}; no part of them is left there"
            ) from None
        return digest


def read_export(
    profile: Profile, terms: RunTerms, account: Account, *, beside: Path | None = None
) -> ExportRead:
    """Return the export of ``[data]``, read by a run's schema with all checks.

    Args:
        profile: of the site.
        terms: of the run.
        account: of the site's ledger; units that withdrew are left out.
        beside: the path beside which a table is imported, as that of the ledger; None: the table
            that was checked is read, whatever became of its export.

    Raises:
        ProfileError: ``[data]`` or ``[ledger]`` is missing.
        DataError: the export cannot be read, or changed while it was read.
        LedgerError: the ledger cannot say which units withdrew.
    """
    source, paths = sources_of(profile)
    withdrawn = withdrawn_by(account, source, paths.path)
    task, stamp, export = task_for(terms), stamp_of(source), ""
    reading = source.without(lambda: withdrawn)
    if source.format in TABLES:
        check_width(Schema.load(terms.schema_text), profile.training.declared_records)
        if beside is None:
            table = checked_table(source, paths.path, terms.schema_text)
        else:
            table = import_table(source, beside, terms.schema_text)
        stamp, export = table.stamp, table.table
        reading = reading.frozen(lambda: table_path(beside or paths.path, export))
    data = stored_site_data(reading, task, terms.schema_text)
    if source.format not in TABLES:
        export = digest_of(source)
        if stamp_of(source) != stamp:
            raise DataError("the export changed while it was read; wait until it is complete")
    facts = Facts(
        task_digest(task, terms.schema_text),
        source_digest(source),
        export,
        stamp,
        unit_of(source),
        source.own_column,
        "",
        _withdrawn_digest(account),
        dict(_counts(data, source, task, terms.schema_text)),
    )
    return ExportRead(data, facts, paths, account)


def bind_run(profile: Profile, terms: RunTerms) -> str:
    """Bind a run to prepared records unless it is; return their digest.

    A file of the same export, schema, ``[data]`` and withdrawals is used again.

    Raises:
        HDPFLError: as :func:`read_export`, and :meth:`ExportRead.write`.
        Declined: the export is not the one that was imported.
    """
    source, paths = sources_of(profile)
    with contextlib.closing(Ledger(paths.path, paths.anchor)) as ledger:
        account = ledger.account()
        if bound := account.records.get(terms.run_id):
            return bound
        check_bindable(account)  # before any reading
        check_table(source, paths.path, whole=True)
        usable = reusable(profile, terms, account)
        if usable is None:
            reading = read_export(profile, terms, account)
            usable = reading.write(), reading.facts.export
        return ledger.bind_records(terms.run_id, *usable)


def reusable(profile: Profile, terms: RunTerms, account: Account) -> tuple[str, str] | None:
    """Return the digests of a prepared file, and of its export, that a reading would give anew."""
    source, paths = sources_of(profile)
    wanted = (
        task_digest(task_for(terms), terms.schema_text),
        source_digest(source),
        _withdrawn_digest(account),
    )
    is_table = source.format in TABLES
    table = read_facts(paths.path) if is_table else None
    stamp = stamp_of(source)
    for path, prepared in prepared_in(paths.path):
        facts = prepared.facts
        same_key = not facts.key or facts.key == key_name(unit_key(account, paths.path))
        same = (facts.task, facts.source, facts.withdrawn) == wanted and same_key
        # The content last: it is read whole.
        if same and (
            table is not None and facts.export == table.table
            if is_table
            else facts.stamp == stamp and facts.export == digest_of(source)
        ):
            return path.stem, facts.export
    return None


def prepared_in(ledger: Path) -> Iterator[tuple[Path, PreparedRecords]]:
    """Yield the usable prepared files beside a ledger, the newest first."""
    for path in files_in(ledger):
        with contextlib.suppress(DataError):
            yield path, read_prepared(path)


def files_in(ledger: Path) -> list[Path]:
    """Return all prepared files beside a ledger, the newest first."""
    paths = records_folder(ledger).glob("*.safetensors")
    return sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def last_prepared(ledger: Path, account: Account) -> Facts | None:
    """Return the facts of the records that a run was bound to last, where they are there."""
    for digest in reversed(account.records.values()):
        with contextlib.suppress(DataError):
            return read_prepared(prepared_path(ledger, digest)).facts
    return None


def changes(before: Facts, now: Facts) -> list[tuple[str, str, str]]:
    """Return the counts that differ: name, before, now; a dash where one has no such count.

    >>> empty = Facts("", "", "", (), ("", 1), "", "", "", {})
    >>> changes(replace(empty, counts={"a": 1, "b": 2}), replace(empty, counts={"b": 3}))
    [('a', '1', '-'), ('b', '2', '3')]
    """
    was, now_is = (
        {name: str(count) for name, count in facts.counts.items()} for facts in (before, now)
    )
    return [
        (name, was.get(name, "-"), now_is.get(name, "-"))
        for name in dict.fromkeys([*was, *now_is])
        if was.get(name) != now_is.get(name)
    ]


def sources_of(profile: Profile) -> tuple[DataSource, LedgerPaths]:
    """Return ``[data]`` and ``[ledger]``; raises ``ProfileError`` where one is missing."""
    if profile.data is None:
        raise ProfileError("profile: [data] is missing; say where the site's records lie")
    if profile.ledger is None:
        raise ProfileError("profile: [ledger] is missing; add it with its 'path'")
    return profile.data, profile.ledger


def _withdrawn_digest(account: Account) -> str:
    noted = {column: sorted(units) for column, units in account.withdrawn.items()}
    content = json.dumps([account.withdrawal_key, noted], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _counts(
    data: SiteData, source: DataSource, task: Task, schema_text: str
) -> Iterator[tuple[str, int]]:
    """Yield the private counts of a reading, by their names in words."""
    summary = data.summary
    groups = [data.train] if data.test is None else [data.train, data.test]
    yield "records in the export", summary.rows
    yield "records for training", len(data.train)
    if data.test is not None:
        yield "records held out", len(data.test)
    yield "withdrawn units left out", summary.withdrawn
    yield from ((f"left out: {why}", count) for why, count in summary.left_out.items())
    yield "labels that no class has", summary.unknown_labels
    for words, counts in (
        ("filled", summary.filled),
        ("unreadable", summary.unreadable),
        ("clipped", summary.clipped),
    ):
        yield from ((f"column '{name}': {words}", count) for name, count in counts.items())
    targets = np.concatenate([group.targets for group in groups])
    for label in range(task.classes):
        yield f"label {label}", int((targets == label).sum())
    if task.intervals:
        yield "records with an event", int((targets % 2).sum())
    if source.format in TABLES:
        yield from _categories(np.concatenate([g.features for g in groups]), schema_text)


def _categories(features: np.ndarray, schema_text: str) -> Iterator[tuple[str, int]]:
    start = 0
    for column in Schema.load(schema_text).columns:
        names = column.feature_names
        if isinstance(column, CategoryColumn):
            sums = features[:, start : start + len(names)].sum(axis=0, dtype=np.float64)
            yield from (
                (f"category {name}", int(count)) for name, count in zip(names, sums, strict=True)
            )
        start += len(names)


def main(profile: str, terms: str) -> int:
    """Bind the run of ``terms`` (JSON); return 0, or 1 with the error as a line of JSON."""
    try:
        bind_run(Profile.load(Path(profile)), RunTerms.from_json(terms))
    except HDPFLError as error:
        # A decision of the site is for its own process: here it would be a fault of the data.
        kind = "DataError" if isinstance(error, Declined) else type(error).__name__
        print(json.dumps({"error": kind, "text": str(error)}))
        return 1
    return 0


def head_of(facts: Facts, kind: str = KIND, number: int = formats.RECORDS.newest) -> dict[str, str]:
    """Return the metadata of a prepared file; of one key, so that equal files have equal bytes."""
    head = {"format": number, "kind": kind, "facts": asdict(facts)}
    return {HEAD: json.dumps(head, ensure_ascii=False, sort_keys=True)}


def arrays_of(records: SiteRecords) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a prepared file; ids are digests of 32 bytes."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, group in zip(GROUPS, (records.train, records.test, records.units), strict=True):
        if group is not None:
            arrays[f"{name}.features"], arrays[f"{name}.targets"] = group.features, group.targets
            if group.missing is not None:
                arrays[f"{name}.missing"] = group.missing
    if records.ids is not None:
        for name, ids in zip(IDS, (records.ids, records.test_ids or ()), strict=True):
            digests = np.frombuffer(b"".join(ids), np.uint8)
            arrays[name] = digests.reshape(len(ids), DIGEST_BYTES)
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.stdin.read()))
