"""Records prepared once: a message reads the file of its run, and refuses any other."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app.site import prepared_records
from client_app.site.prepared_records import Facts, read_prepared
from client_app.site.site import Site
from hdpfl_flower import formats, wire
from hdpfl_flower.config.data_source import Withdrawn
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import DataError, Declined, HDPFLError, LedgerError
from hdpfl_flower.ledger.ledger import MOST_UNUSED, Ledger
from hdpfl_flower.models.task import Records, SiteRecords
from hdpfl_tools.site.approval import preparation
from hdpfl_tools.site.approval.preparation import head_of
from hdpfl_tools.tables import frozen_table, table_records
from hdpfl_tools.tables.frozen_table import import_table
from hdpfl_tools.tables.site_data import read_site_data
from tests.client_app.messages import SCHEMA, ask, make_site, terms_of
from tests.client_app.site.test_withdrawal import WITH_ID, site_with_ids, withdraw, write_table

STATED: dict[str, str] = {
    "schema": "",
    "task": {"kind": "classification", "shape": "2", "classes": 2},
}


def site_of(profile: Path, terms: RunTerms) -> Site:
    return Site(Profile.load(profile), terms)


def files_in(folder: Path) -> list[Path]:
    return sorted((folder / "ledger.sqlite.records").glob("*"))


def the_file(folder: Path) -> Path:
    (path,) = files_in(folder)
    return path


def kinds(folder: Path) -> list[str]:
    from hdpfl_flower.ledger.hash_chain import Chain

    with Chain(folder / "ledger.sqlite").transaction() as entries:
        return [entry.kind for entry in entries]


def same(ours: Records | None, theirs: Records | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return (
        ours.features.dtype == theirs.features.dtype
        and ours.targets.dtype == theirs.targets.dtype
        and np.array_equal(ours.features, theirs.features)
        and np.array_equal(ours.targets, theirs.targets)
    )


def table(folder: Path, **options: Any) -> tuple[Path, RunTerms]:
    return site_with_ids(folder, **options), terms_of(schema=WITH_ID)


def of_kind(folder: Path, kind: str, name: str) -> tuple[Path, RunTerms]:
    profile = make_site(folder, holdout=0.3)
    text = profile.read_text().replace('"csv"', f'"{kind}"').replace("records.csv", name)
    profile.write_text(text)
    if kind == "npz":
        x = np.random.default_rng(1).normal(size=(40, 2))
        x[3] = np.nan
        np.savez(folder / name, x=x, y=np.arange(40) % 2)
        return profile, terms_of(**STATED)
    image = pytest.importorskip("PIL.Image")
    for number in range(24):
        unit = folder / name / str(number % 2) / f"P-{number // 2}"
        unit.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((6, 6), 10 * number, np.uint8)).save(unit / "a.png")
    profile.write_text(text.replace("[data]", '[data]\nid = "folder"'))
    return profile, terms_of(
        schema="", task={"kind": "classification", "shape": "1,4,4", "classes": 2, "id": "folder"}
    )


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(table, id="table"),
        pytest.param(lambda folder: table(folder, holdout=0.3), id="holdout"),
        pytest.param(
            lambda folder: table(folder, data="records-per-unit = 2\n", holdout=0.3), id="several"
        ),
        pytest.param(lambda folder: of_kind(folder, "npz", "x.npz"), id="npz"),
        pytest.param(lambda folder: of_kind(folder, "images", "images"), id="images"),
    ],
)
def test_prepared_records_are_those_of_a_reading(
    tmp_path: Path, make: Callable[[Path], tuple[Path, RunTerms]]
) -> None:
    """Also without a unit that withdrew after the preparation."""
    profile, terms = make(tmp_path)
    source = Profile.load(profile).data
    assert source is not None
    gone = [[], [b"7", b"12"]] if source.column else [[], [b"P-3"]] if source.id else [[]]
    for ids in gone:
        if ids:
            withdraw(tmp_path, *ids, column=source.own_column)
            account = Ledger(tmp_path / "ledger.sqlite").account()
            noted = frozenset(account.withdrawn[source.own_column])
            key = bytes.fromhex((tmp_path / "ledger.sqlite.withdrawal-key").read_text())
            withdrawn = Withdrawn(key, noted)
            source = source.without(lambda withdrawn=withdrawn: withdrawn)  # type: ignore[misc]
        site = site_of(profile, terms)
        read = read_site_data(source, task_for(terms), terms.schema_text)
        assert len(read.train) > 3
        assert same(site.training_records(), read.train)
        assert same(site.test_records(), read.test)
        assert same(site.training_units(), read.units or read.train)
    assert the_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert the_file(tmp_path).parent.stat().st_mode & 0o777 == 0o700


def test_a_prepared_file_holds_no_id(tmp_path: Path) -> None:
    profile, terms = table(tmp_path)
    text = (tmp_path / "records.csv").read_text()
    (tmp_path / "records.csv").write_text(text.replace("P-3,", "PATIENT-123456,"))
    assert len(site_of(profile, terms).training_records()) == 30
    assert b"PATIENT-123456" not in the_file(tmp_path).read_bytes()


def test_a_changed_table_declines_until_it_is_checked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is charged; a run then goes on with the records that its approval saw."""
    profile, terms = table(tmp_path)
    ledger = tmp_path / "ledger.sqlite"
    before = site_of(profile, terms).training_records()
    entries, export = kinds(tmp_path), (tmp_path / "records.csv").read_bytes()
    for changed in (export[: len(export) // 4], export.split(b"\n")[0], export.replace(b",", b";")):
        (tmp_path / "records.csv").write_bytes(changed)
        for asked in (terms, terms.updated(run_id="run-2")):
            with pytest.raises(Declined, match="not the one that was checked"):
                site_of(profile, asked).training_records()
    assert ask(profile, terms).error.code == wire.DECLINED
    assert kinds(tmp_path) == entries
    (tmp_path / "records.csv").write_bytes(export)  # another time of change alone
    assert same(site_of(profile, terms).training_records(), before)
    write_table(tmp_path, without=(b"7",))
    import_table(Profile.load(profile).data, ledger)
    assert same(site_of(profile, terms).training_records(), before)
    (tmp_path / "records.csv").unlink()  # the frozen table is what is read
    assert ask(profile, terms).has_content()
    later = terms.updated(run_id="run-2")
    assert len(site_of(profile, later).training_records()) == len(before) - 1
    assert same(site_of(profile, terms).training_records(), before)


def test_a_changed_profile_counts_from_the_next_approval_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """But for the unit: the engine would clip other sums than those of the records."""
    profile, terms = table(tmp_path)
    before, text = site_of(profile, terms).training_records(), profile.read_text()
    profile.write_text(text.replace("[data]", "[data]\nmissing = ['-']"))
    assert same(site_of(profile, terms).training_records(), before)
    assert [record.message[:30] for record in caplog.records] == ["[data] of the profile changed "]
    profile.write_text(text.replace("[data]", "[data]\nrecords-per-unit = 2"))
    with pytest.raises(DataError, match="records-per-unit' changed since"):
        site_of(profile, terms).training_records()


def test_each_run_reads_the_records_of_its_schema(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    wide = terms_of(**{"run-id": "run-2"})
    narrow = terms_of(schema=SCHEMA.replace("[0, 10]", "[0, 100]"))
    read = [site_of(profile, terms).training_records() for terms in (wide, narrow, wide)]
    assert same(read[0], read[2]) and not same(read[0], read[1])
    assert len(files_in(tmp_path)) == 2
    with pytest.raises(Declined, match="another schema"):
        site_of(profile, narrow.updated(run_id="run-2")).training_records()
    assert ask(profile, narrow.updated(run_id="run-2")).error.code == wire.DECLINED


def test_runs_of_one_schema_share_a_file_until_the_export_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, terms = table(tmp_path)
    read: list[object] = []
    real = preparation.stored_site_data
    monkeypatch.setattr(
        preparation, "stored_site_data", lambda *words: read.append(words) or real(*words)
    )
    for number in range(3):
        site_of(profile, terms.updated(run_id=f"run-{number}")).training_records()
    assert (len(read), len(files_in(tmp_path))) == (1, 1)
    state = (tmp_path / "records.csv").stat()
    text = (tmp_path / "records.csv").read_text()
    (tmp_path / "records.csv").write_text(text.replace("7.0,", "8.0,"))
    os.utime(tmp_path / "records.csv", ns=(state.st_atime_ns, state.st_mtime_ns))
    other = terms.updated(run_id="same size and time")
    with pytest.raises(Declined, match="not the one that was checked"):
        site_of(profile, other).training_records()
    import_table(Profile.load(profile).data, tmp_path / "ledger.sqlite")
    site_of(profile, other).training_records()
    withdraw(tmp_path, b"12")
    records = site_of(profile, terms.updated(run_id="withdrawn")).training_records()
    # 31 in the export now: some of the rows of 7 are those of 8.
    assert (len(records), len(read), len(files_in(tmp_path))) == (30, 3, 3)


def rewritten(path: Path, kind: str = "records", number: int = 1) -> Path:
    """Write the records of a file in another format or kind, under its own name."""
    import safetensors.numpy

    prepared = read_prepared(path)
    content = safetensors.numpy.save(dict(prepared.arrays), head_of(prepared.facts, kind, number))
    other = path.with_name(f"{hashlib.sha256(content).hexdigest()}.safetensors")
    other.write_bytes(content)
    other.chmod(0o600)
    return other


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(damage, "damaged", id="content"),
        pytest.param(lambda path: path.chmod(0o640), "read by others", id="mode"),
        pytest.param(lambda path: path.parent.chmod(0o755), "read by others", id="folder"),
        pytest.param(lambda path: path.write_bytes(b""), "empty", id="empty"),
        pytest.param(lambda path: path.unlink(), "not there", id="missing"),
        pytest.param(linked, "not there or cannot be read", id="link"),
        pytest.param(None, "another user", id="owner"),
    ],
)
def test_a_prepared_file_that_is_not_the_site_s_own_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], object] | None,
    words: str,
) -> None:
    """The reply is that of a table that cannot be read; the line names the remedy, and no value."""
    profile, terms = table(tmp_path)
    site_of(profile, terms).training_records()
    if spoil is None:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    else:
        spoil(the_file(tmp_path))
    with pytest.raises(DataError, match=words) as refused:
        site_of(profile, terms).training_records()
    assert "hdpfl-site prepare RUN" in str(refused.value)
    broken, unread = ask(profile, terms), unreadable(tmp_path / "other")
    assert (broken.error.code, broken.error.reason) == (unread.error.code, unread.error.reason)
    assert "plan" not in kinds(tmp_path)


def unreadable(folder: Path) -> Message:
    """Return the reply of a site whose table is not there at a run's first message."""
    profile = make_site(folder)
    (folder / "records.csv").unlink()
    return ask(profile, terms_of())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"number": 99}, "format 99 was written by a newer version"),
        ({"kind": "texts"}, "this version does not know the kind of the prepared records: update"),
    ],
    ids=["format", "kind"],
)
def test_a_newer_file_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    profile, terms = table(tmp_path)
    site_of(profile, terms).training_records()
    path = the_file(tmp_path)
    assert same(read_prepared(rewritten(path)).records.train, read_prepared(path).records.train)
    with pytest.raises(formats.RECORDS.error, match=words):
        read_prepared(rewritten(path, **change))


def test_a_full_disk_leaves_no_file_and_no_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    profile, terms = table(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "replace_file", full)
        assert ask(profile, terms).error.code == wire.FAILED
    assert "No space left on device; no part of them is left there" in caplog.text
    assert files_in(tmp_path) == []
    assert kinds(tmp_path) == ["cap"]
    assert ask(profile, terms).has_content()


def test_an_export_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, terms = table(tmp_path)
    real = frozen_table._write

    def meanwhile(*words: Any, **keys: Any) -> Any:
        counts = real(*words, **keys)
        write_table(tmp_path, without=(b"7",))
        return counts

    monkeypatch.setattr(frozen_table, "_write", meanwhile)
    with pytest.raises(DataError, match="changed while it was read"):
        site_of(profile, terms).training_records()


def test_a_flood_of_runs_prepares_a_bounded_number(tmp_path: Path) -> None:
    """A server that names a new run each time fills neither disk nor ledger."""
    profile, terms = table(tmp_path)
    for number in range(MOST_UNUSED):
        site_of(profile, terms.updated(run_id=f"run-{number}")).training_records()
    size = (tmp_path / "ledger.sqlite").stat().st_size
    before = len(kinds(tmp_path))
    for number in range(MOST_UNUSED, MOST_UNUSED + 5):
        with pytest.raises(LedgerError, match="requests --refuse"):
            site_of(profile, terms.updated(run_id=f"run-{number}")).training_records()
    assert len(kinds(tmp_path)) == before
    assert (tmp_path / "ledger.sqlite").stat().st_size == size
    Ledger(tmp_path / "ledger.sqlite").refuse("run-0", "Dr. Grace")
    site_of(profile, terms.updated(run_id="another")).training_records()


@pytest.mark.tool_process
def test_a_first_message_prepares_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the installed package, wherever the message's process runs."""
    (tmp_path / "client_app").mkdir()
    (tmp_path / "client_app" / "__init__.py").write_text("raise SystemExit('of the folder')")
    monkeypatch.chdir(tmp_path)
    profile = make_site(tmp_path)
    assert ask(profile, terms_of()).has_content()
    assert kinds(tmp_path)[:3] == ["cap", "records", "plan"]


@pytest.mark.tool_process
def test_a_table_that_the_tool_cannot_read_fails_the_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profile = make_site(tmp_path)
    (tmp_path / "records.csv").write_text("age,dose,PATIENT-123\n1,2,no\n")
    reply = ask(profile, terms_of())
    assert reply.error.code == wire.FAILED
    assert "column 'sick'" in caplog.text and "PATIENT-123" not in caplog.text
    assert kinds(tmp_path) == ["cap"]


@pytest.mark.tool_process
@pytest.mark.parametrize(
    ("printed", "kind", "words"),
    [
        ('{"error": "LedgerError", "text": "busy"}', LedgerError, "busy"),
        ('{"error": "Pending", "text": "PATIENT-123"}', DataError, "broke off"),
        ('{"error": "os", "text": "PATIENT-123"}', DataError, "broke off"),
        ("PATIENT-123", DataError, "broke off"),
        ("[]", DataError, "broke off"),
        ("", DataError, "broke off"),
    ],
)
def test_the_tool_s_output_is_never_quoted_but_its_own_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, kind: type[Exception], words: str
) -> None:
    done = subprocess.CompletedProcess([sys.executable], 1, printed, "PATIENT-123")
    monkeypatch.setattr(prepared_records.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(HDPFLError) as error:
        site_of(make_site(tmp_path), terms_of()).training_records()
    assert type(error.value) is kind
    assert words in str(error.value) and "PATIENT" not in str(error.value)


def test_equal_records_make_equal_files(tmp_path: Path) -> None:
    profile, terms = table(tmp_path)
    account = Ledger(tmp_path / "ledger.sqlite").account()
    for _ in range(5):
        preparation.read_export(Profile.load(profile), terms, account).write()
    assert len(files_in(tmp_path)) == 1


def test_a_refusal_of_a_wide_schema_shows_nothing_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server picks the width: refused by the true number, its search would find that number."""
    for rows in (30, 61, 90):  # of 61 that are declared
        profile = Profile.load(make_site(tmp_path / str(rows), rows=rows))
        assert profile.ledger is not None
        with contextlib.closing(Ledger(profile.ledger.path)) as ledger:
            account = ledger.account()
        for bound, fits in ((61 * 2 * 4, True), (61 * 2 * 4 - 1, False)):
            monkeypatch.setattr(table_records, "MOST_ENCODED", bound)
            with nullcontext() if fits else pytest.raises(DataError, match="'schema'"):
                preparation.read_export(profile, terms_of(), account, beside=profile.ledger.path)


def test_facts_survive_their_file_and_show_nothing() -> None:
    facts = Facts("a", "b", "c", (1, 2, 3), ("PATIENT-123", 2), "d", "e", "f", {"PATIENT-123": 1})
    head = json.loads(next(iter(head_of(facts).values())))
    assert Facts.of(head["facts"]) == facts
    assert "PATIENT" not in repr(facts)


@pytest.mark.parametrize("content", [b"PATIENT-123", b"\x02\0\0\0\0\0\0\0{}"])
def test_a_file_of_another_form_is_refused(tmp_path: Path, content: bytes) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / f"{hashlib.sha256(content).hexdigest()}.safetensors"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(DataError, match="not in a safetensors file"):
        read_prepared(path)


def test_records_without_units_keep_their_order_and_embed_in_one_call() -> None:
    features = np.arange(12, dtype=np.float32).reshape(6, 2)
    train, test = Records(features[:4], np.arange(4)), Records(features[4:], np.arange(2))
    units = Records(np.stack([features[:4], features[:4] + 1], 1), np.zeros((4, 2, 2), np.float32))
    records = SiteRecords(train, test, units, [b"a", b"b", b"c", b"d"], [b"e", b"f"])
    rest = records.without({b"b", b"e"})
    assert (rest.ids, rest.test_ids) == ([b"a", b"c", b"d"], [b"f"])
    assert rest.train.targets.tolist() == [0, 2, 3] and rest.test is not None
    assert rest.test.features.tolist() == features[5:].tolist()
    task = replace(task_for(terms_of()), scaling=((1.0, 2.0),))
    embedded = records.embedded(task)
    assert embedded.units is not None and embedded.test is not None
    assert np.array_equal(embedded.train.features, (features[:4] - 1) / 2)
    assert np.array_equal(embedded.test.features, (features[4:] - 1) / 2)
    assert np.array_equal(embedded.units.features, (units.features - 1) / 2)
