"""Records that the operator's tool prepared: a file beside the ledger, bound to a run by it.

A message reads no export. ``hdpfl-site approve`` and ``prepare``, or the first message of a run
under a standing approval, read the export once
(``hdpfl_tools/site/approval/preparation.py``, another process) and write one file of safetensors:
features before any backbone, targets, and a keyed digest of each unit's id. The ledger names the
file of a run by its SHA-256.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower import errors, formats
from hdpfl_flower.config.data_source import TABLES, DataSource
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError, Declined, HDPFLError, LedgerError, Reason
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.checked_table import check_table, json_digest, stamp_of
from hdpfl_flower.ledger.site_ledger import SiteLedger
from hdpfl_flower.ledger.withdrawals import withdrawn_from
from hdpfl_flower.models.task import Records, SiteRecords, Task
from hdpfl_flower.system.printable import site_log

log = site_log()

TOOL = "hdpfl_tools.site.approval.preparation"
"""Module that reads exports; no message imports it."""
HEAD, KIND = "hdpfl", "records"
"""Key of a file's metadata, and the kind of file that this version reads."""
GROUPS, IDS, DIGEST_BYTES = ("train", "test", "units"), ("train.ids", "test.ids"), 32
_PIECE = 2**24
"""Bytes of a file that are digested at a time; whole pages."""
_DTYPES = {"F32": np.float32, "I64": np.int64, "U8": np.uint8}


@dataclass(frozen=True, repr=False)
class Facts:
    """Facts of prepared records, private like them.

    Attributes:
        task: digest of the schema and the shapes by which they were encoded.
        source: digest of the profile's ``[data]``.
        export: SHA-256 of the export; of a table that of its frozen one.
        stamp: of the export: number of files, bytes, newest change in nanoseconds.
        unit: the profile's ``data.id``, and its number of records a unit.
        column: the column of ids in the export; empty without.
        key: name of the key of the ids' digests; empty without ids.
        withdrawn: digest of the units that had withdrawn; the file holds no record of them.
        counts: of records, by a name in words.
    """

    task: str
    source: str
    export: str
    stamp: tuple[int, ...]
    unit: tuple[str, int]
    column: str
    key: str
    withdrawn: str
    counts: dict[str, int]

    @staticmethod
    def of(content: dict[str, Any]) -> Facts:
        """Return the facts in a head."""
        stamp, unit = tuple(content["stamp"]), tuple(content["unit"])
        return Facts(**{**content, "stamp": stamp, "unit": unit})


@dataclass(frozen=True, repr=False, eq=False)
class PreparedRecords:
    """Content of a prepared file: its facts, and its arrays by their names."""

    facts: Facts
    arrays: Mapping[str, npt.NDArray[Any]]

    @property
    def records(self) -> SiteRecords:
        """The records, without ids."""
        train, test, units = (
            Records(
                self.arrays[f"{name}.features"],
                self.arrays[f"{name}.targets"],
                self.arrays.get(f"{name}.missing"),
            )
            if f"{name}.features" in self.arrays
            else None
            for name in GROUPS
        )
        if train is None:
            raise _unusable("hold no records for training")
        return SiteRecords(train, test, units)

    def without(self, names: Container[bytes]) -> SiteRecords:
        """Return the records of all units but those of ``names``, digests of their ids."""
        ids, test_ids = (
            self.arrays[name].view(f"V{DIGEST_BYTES}").ravel().tolist() for name in IDS
        )
        return replace(self.records, ids=ids, test_ids=test_ids).without(names)


def records_of_run(
    profile: Profile, source: DataSource, terms: RunTerms, task: Task, ledger: SiteLedger
) -> SiteRecords:
    """Return the records that a run is bound to, without units that withdrew since.

    A run without any is bound to new ones first. A table that changed since its import declines, as
    ``checked_table.check_table`` says.

    Args:
        profile: of a deployed site, with ``[data]`` and ``[ledger]``.
        source: of the profile, its ``[data]``.
        terms: of the run.
        task: of the run.
        ledger: of the site.

    Raises:
        DataError: the records cannot be prepared, or the prepared file cannot be used.
        Declined: they were prepared for another schema; the profile lies in no file; or the
            export of the table was replaced.
        LedgerError: the ledger cannot say which units withdrew.
    """
    check_table(source, ledger.path)
    account = ledger.account()
    if terms.run_id not in account.records:
        ask_tool(profile, terms)
        account = ledger.account()
    digest = account.records.get(terms.run_id, "")
    prepared = read_prepared(prepared_path(ledger.path, digest))
    facts = prepared.facts
    if facts.task != task_digest(task, terms.schema_text):
        raise Declined(Reason.TERMS, "the run's records were prepared for another schema or task")
    if facts.unit != unit_of(source):
        raise DataError(
            "'data.id' or 'data.records-per-unit' changed since the run's records were prepared; "
            "set it back, or prepare them again: hdpfl-site prepare RUN"
        )
    is_file = source.format not in TABLES  # a table that changed was declined above
    for what, is_other in (
        ("the export", is_file and facts.stamp != stamp_of(source)),
        ("[data] of the profile", facts.source != source_digest(source)),
    ):
        if is_other:
            log.warning(
                "%s changed since the records of run '%s' were prepared; the run uses the "
                "prepared records, and the change counts from the next approval on; see: "
                "hdpfl-site prepare RUN --dry-run",
                what,
                terms.run_id,
            )
    return without_withdrawn(prepared, account, ledger.path)


def without_withdrawn(prepared: PreparedRecords, account: Account, ledger: Path) -> SiteRecords:
    """Return the records of all units but those that withdrew.

    Raises:
        LedgerError: the withdrawals were noted by another column or under another key.
    """
    facts = prepared.facts
    withdrawn = withdrawn_from(account, facts.column, ledger)
    if not withdrawn.digests:
        return prepared.records
    if facts.key != account.withdrawal_key:
        raise LedgerError(
            "the records were prepared under another key than that of the withdrawals, so no "
            "record tells its unit; prepare them again: hdpfl-site prepare RUN"
        )
    return prepared.without({bytes.fromhex(unit) for unit in withdrawn.digests})


def records_folder(ledger: Path) -> Path:
    """Return the folder of prepared records, beside the ledger."""
    return ledger.with_name(f"{ledger.name}.records")


def prepared_path(ledger: Path, digest: str) -> Path:
    """Return the file of the prepared records of SHA-256 ``digest``."""
    return records_folder(ledger) / f"{digest}.safetensors"


def read_prepared(path: Path) -> PreparedRecords:
    """Return the records in a prepared file, mapped into memory.

    Raises:
        DataError: it is missing, of another owner, open to others, damaged, of a newer version, or
            of a kind that this version does not know.
    """
    try:
        content = _mapped(path)
    except OSError:
        raise _unusable("are not there or cannot be read") from None
    if _digest_of(content) != path.stem:
        raise _unusable("are damaged: their content does not fit their name")
    try:
        head, arrays = _content_of(content)
        number, kind = head["format"], head["kind"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _unusable("are not in a safetensors file with a head") from None
    formats.RECORDS.check(number)
    if kind != KIND:
        raise DataError(
            "this version does not know the kind of the prepared records: update hdpfl-flower, or "
            "prepare them again: hdpfl-site prepare RUN"
        )
    return PreparedRecords(Facts.of(head["facts"]), arrays)


def _unusable(fault: str) -> DataError:
    return DataError(f"the prepared records {fault}; prepare them again: hdpfl-site prepare RUN")


def _mapped(path: Path) -> mmap.mmap:
    """Map a file that only this user can read; no link is followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        for status in (os.fstat(descriptor), path.parent.stat()):
            if status.st_uid != os.geteuid():
                raise _unusable("belong to another user than the one who reads them")
            if status.st_mode & 0o077:
                raise _unusable("can be read by others (0600 in a folder of 0700 is right)")
        if not os.fstat(descriptor).st_size:
            raise _unusable("are empty")
        # Copied on write: the file never changes, and torch takes only arrays that may.
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)


def _digest_of(content: mmap.mmap) -> str:
    """Return the SHA-256 of a mapped file; its pages do not stay in memory."""
    total = hashlib.sha256()
    with memoryview(content) as whole:
        for start in range(0, len(content), _PIECE):
            total.update(whole[start : start + _PIECE])
            content.madvise(mmap.MADV_DONTNEED, start, min(_PIECE, len(content) - start))
    return total.hexdigest()


def _content_of(content: mmap.mmap) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the head and the arrays of a file whose digest was checked."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    head, arrays = json.loads(header.pop("__metadata__")[HEAD]), {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        dtype = np.dtype(_DTYPES[tensor["dtype"]])
        if begin == end:  # no buffer of no bytes
            arrays[name] = np.zeros(tensor["shape"], dtype)
            continue
        count = (end - begin) // dtype.itemsize
        flat = np.frombuffer(content, dtype, count, start + begin)
        arrays[name] = flat.reshape(tensor["shape"])
    return head, arrays


def task_digest(task: Task, schema_text: str) -> str:
    """Return the SHA-256 of a schema and of the shapes of its records."""
    stored = task.of_records
    return json_digest([list(stored.input_shape), stored.outputs, stored.loss, schema_text])


def source_digest(source: DataSource) -> str:
    """Return the SHA-256 of ``[data]``."""
    return json_digest(source.model_dump(mode="json"))


def unit_of(source: DataSource) -> tuple[str, int]:
    """Return the protected unit of ``[data]``: the column, and its number of records."""
    return source.id, source.records_per_unit


def ask_tool(profile: Profile, terms: RunTerms) -> None:
    """Let the operator's tool prepare records for a run and bind it to them.

    A process of its own, from the installed package: the app of a message holds no reader of
    exports.

    Raises:
        HDPFLError: that of the tool.
        Declined: the profile lies in no file.
        DataError: the tool could not be started, or broke off.
    """
    if profile.file is None:
        raise Declined(Reason.PROFILE, "the profile was not read from a file")
    # -P: never from the folder that the process happens to be in.
    command = [sys.executable, "-P", "-m", TOOL, str(profile.file)]
    try:
        done = subprocess.run(
            command, input=terms.to_json(), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise DataError(f"the records cannot be prepared: {error.strerror}") from None
    if done.returncode:
        raise _said(done.stdout)


def _said(text: str) -> HDPFLError:
    """Return the error that the tool printed, a line of JSON; never another text of it."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        said = json.loads(text)
        kind = getattr(errors, said["error"])
        if issubclass(kind, HDPFLError) and not issubclass(kind, Declined):
            error: HDPFLError = kind(str(said["text"]))
            return error
    return DataError("the records cannot be prepared: the tool broke off; try: hdpfl-site prepare")
