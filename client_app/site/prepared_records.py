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
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower import errors, formats
from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError, Declined, HDPFLError, LedgerError, Reason
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.withdrawals import withdrawn_from
from hdpfl_flower.models.site_records import SiteRecords
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.system.printable import site_log

log = site_log()

TOOL = "hdpfl_tools.site.approval.preparation"
"""Module that reads exports; no message imports it."""
HEAD, KIND = "hdpfl", "records"
"""Key of a file's metadata, and the kind of file that this version reads."""
GROUPS, IDS, DIGEST_BYTES = ("train", "test", "units"), ("train.ids", "test.ids"), 32
_DTYPES = {"F32": np.float32, "I64": np.int64, "U8": np.uint8}


@dataclass(frozen=True, repr=False)
class Facts:
    """Facts of prepared records, private like them.

    Attributes:
        task: digest of the schema and the shapes by which they were encoded.
        source: digest of the profile's ``[data]``.
        export: SHA-256 of the export.
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
            Records(self.arrays[f"{name}.features"], self.arrays[f"{name}.targets"])
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


def records_of_run(profile: Profile, terms: RunTerms, task: Task, ledger: Ledger) -> SiteRecords:
    """Return the records that a run is bound to, without units that withdrew since.

    A run without any is bound to new ones first. An export that changed since is named in the log;
    it is used from the next approval on, also where a record was deleted from it.

    Args:
        profile: of a deployed site, with ``[data]`` and ``[ledger]``.
        terms: of the run.
        task: of the run.
        ledger: of the site.

    Raises:
        DataError: the records cannot be prepared, or the prepared file cannot be used.
        Declined: they were prepared for another schema; or the profile lies in no file.
        LedgerError: the ledger cannot say which units withdrew.
    """
    source, paths = profile.data, profile.ledger
    if source is None or paths is None:
        raise Declined(Reason.PROFILE, "[data] or [ledger] is missing in the profile")
    account = ledger.account()
    if terms.run_id not in account.records:
        ask_tool(profile, terms)
        account = ledger.account()
    digest = account.records.get(terms.run_id, "")
    prepared = read_prepared(prepared_path(paths.path, digest))
    facts = prepared.facts
    if facts.task != task_digest(task, terms.schema_text):
        raise Declined(Reason.TERMS, "the run's records were prepared for another schema or task")
    if facts.unit != unit_of(source):
        raise DataError(
            "'data.id' or 'data.records-per-unit' changed since the run's records were prepared; "
            "set it back, or prepare them anew: hdpfl-site prepare RUN"
        )
    for what, is_other in (
        ("the export", facts.stamp != stamp_of(source)),
        ("[data] of the profile", facts.source != source_digest(source)),
    ):
        if is_other:
            log.warning(
                "%s changed since the records of run '%s' were prepared; the run uses those, and "
                "the change counts from the next approval on: hdpfl-site prepare RUN --dry-run",
                what,
                terms.run_id,
            )
    return without_withdrawn(prepared, account, paths.path)


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
            "the records were prepared under another key than that of the withdrawals, so that "
            "none tells its unit; prepare them anew: hdpfl-site prepare RUN"
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
    if hashlib.sha256(content).hexdigest() != path.stem:
        raise _unusable("are damaged: their content is not that of their name")
    try:
        head, arrays = _content_of(content)
        number, kind = head["format"], head["kind"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _unusable("are in no file of safetensors with a head") from None
    formats.RECORDS.check(number)
    if kind != KIND:
        raise DataError(
            "the prepared records are of a kind that this version does not know: update "
            "hdpfl-flower, or prepare them anew: hdpfl-site prepare RUN"
        )
    return PreparedRecords(Facts.of(head["facts"]), arrays)


def _unusable(fault: str) -> DataError:
    return DataError(f"the prepared records {fault}; prepare them anew: hdpfl-site prepare RUN")


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


def head_of(facts: Facts, kind: str = KIND, number: int = formats.RECORDS.newest) -> dict[str, str]:
    """Return the metadata of a prepared file; of one key, so that equal files have equal bytes."""
    head = {"format": number, "kind": kind, "facts": asdict(facts)}
    return {HEAD: json.dumps(head, ensure_ascii=False, sort_keys=True)}


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


def arrays_of(records: SiteRecords) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a prepared file; ids are digests of 32 bytes."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, group in zip(GROUPS, (records.train, records.test, records.units), strict=True):
        if group is not None:
            arrays[f"{name}.features"], arrays[f"{name}.targets"] = group.features, group.targets
    if records.ids is not None:
        for name, ids in zip(IDS, (records.ids, records.test_ids or ()), strict=True):
            digests = np.frombuffer(b"".join(ids), np.uint8)
            arrays[name] = digests.reshape(len(ids), DIGEST_BYTES)
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def task_digest(task: Task, schema_text: str) -> str:
    """Return the SHA-256 of a schema and of the shapes of its records."""
    stored = task.of_records
    return _digest([list(stored.input_shape), stored.outputs, stored.loss, schema_text])


def source_digest(source: DataSource) -> str:
    """Return the SHA-256 of ``[data]``."""
    return _digest(source.model_dump(mode="json"))


def unit_of(source: DataSource) -> tuple[str, int]:
    """Return the protected unit of ``[data]``: the column, and its number of records."""
    return source.id, source.records_per_unit


def stamp_of(source: DataSource) -> tuple[int, ...]:
    """Return number, bytes and newest change of the export's files; empty where there is none."""
    try:
        states = [file.stat() for file in files_of(source.path)]
    except OSError:
        return ()
    sizes, times = [s.st_size for s in states], [s.st_mtime_ns for s in states]
    return (len(sizes), sum(sizes), max(times, default=0))


def files_of(path: Path) -> Iterator[Path]:
    """Yield a file, or all files below a folder in the order of their names."""
    if not path.is_dir():
        yield path
        return
    yield from sorted(file for file in path.rglob("*") if file.is_file())


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
        raise Declined(Reason.PROFILE, "the profile was read from no file")
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
    return DataError("the records cannot be prepared: the tool broke off; try hdpfl-site prepare")
