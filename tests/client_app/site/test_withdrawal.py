"""A unit that withdrew its consent: nothing that the site computes depends on its records."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from client_app.site.site import Site
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.task import Task
from hdpfl_tools.simulation.own_data.site_tables import table_sources
from hdpfl_tools.site.options import open_profile
from hdpfl_tools.site.worth.own_measures import source_of
from hdpfl_tools.tables import withdrawals
from hdpfl_tools.tables.site_check import check_site_data
from hdpfl_tools.tables.site_data import read_site_data, read_unit_records
from tests.client_app.messages import (
    SCHEMA,
    ask,
    check_table_again,
    config_of,
    make_site,
    model_of,
    send,
    terms_of,
    terms_with_test,
)

WITH_ID = f'id = "patient"\n{SCHEMA}'
GONE = (b"7", b"P-3", b"12")
"""Ids as a run reads them: of a number that one column writes as 7.0, and of texts."""
SEEDED = "[simulation]\nseed = 3\n"


def write_table(folder: Path, *, without: tuple[bytes, ...] = ()) -> None:
    """Write two rows a unit, some of them written 7.0; leave out those of some units."""
    lines = ["patient,age,dose,sick"]
    for i in range(60):
        unit = ("P-3", "7", "12", f"{20 + i % 30}")[min(i % 30, 3)]
        spelled = "7.0" if unit == "7" and i >= 30 else unit
        if unit.encode() not in without:
            lines.append(f"{spelled},{20 + i},{i % 10},{'yes' if i % 3 else 'no'}")
    (folder / "records.csv").write_text("\n".join(lines) + "\n")


def site_with_ids(folder: Path, *, data: str = "", more: str = "", **options: object) -> Path:
    """Write the site of :func:`make_site` with a table of patients."""
    profile = make_site(folder, more=more, **options)  # type: ignore[arg-type]
    text = profile.read_text().replace("[data]", f'[data]\nid = "patient"\n{data}')
    profile.write_text(text)
    write_table(folder)
    return profile


def withdraw(
    folder: Path, *ids: bytes, column: str = "patient", note: Callable[..., int] | None = None
) -> int:
    path = folder / "ledger.sqlite"
    with contextlib.closing(Ledger(path)) as ledger:
        return (note or withdrawals.withdraw)(ledger, path, column, ids)


def seeded_reply(profile: Path, kind: str = wire.TRAIN, **more: object) -> Message:
    """Return the reply of a site whose noise comes from a seed."""
    config = config_of(schema=WITH_ID, **more)
    content = server_wire.write_instructions(config.terms, 1, model_of(config.terms))
    node = {"profile": str(profile), "partition-id": 0, "num-partitions": 1}
    reply = send(node, kind, content, config=config, in_process=True)
    assert not reply.has_error()
    return reply


def numbers_in(reply: Message) -> list[bytes]:
    """Return all content of a reply, arrays and metrics."""
    arrays = [array.data for record in reply.content.array_records.values()
              for array in record.values()]  # fmt: skip
    return [*arrays, *(repr(dict(each)).encode() for each in reply.content.metric_records.values())]


@pytest.mark.parametrize("kind", [wire.TRAIN, wire.EVALUATE])
def test_a_reply_is_that_of_an_export_without_the_person(tmp_path: Path, kind: str) -> None:
    """With the noise of one seed the bits agree, so that the records moved nothing."""
    replies = []
    for name, without in (("ledger", ()), ("export", GONE), ("all", ())):
        profile = site_with_ids(tmp_path / name, more=SEEDED, disclose='["metrics"]', holdout=0.3)
        write_table(tmp_path / name, without=without)
        if name == "ledger":
            assert withdraw(tmp_path / name, *GONE) == len(GONE)
        replies.append(numbers_in(seeded_reply(profile, kind, evaluation="sites")))
    assert replies[0] == replies[1] != replies[2]


@pytest.mark.parametrize("data", ["", "records-per-unit = 2\n", "holdout = 0.4\n"])
def test_every_reading_is_that_of_an_export_without_the_person(tmp_path: Path, data: str) -> None:
    read = []
    for name, without in (("ledger", ()), ("export", GONE)):
        options = {} if "holdout" in data else {"holdout": 0.3}
        path = site_with_ids(tmp_path / name, data=data.replace("holdout = 0.4\n", ""), **options)
        write_table(tmp_path / name, without=without)
        if not without:
            withdraw(tmp_path / name, *GONE)
        profile, terms = open_profile(path), terms_of(schema=WITH_ID)
        task, source = task_for(terms), profile.data
        assert source is not None
        site = Site(Profile.load(path), terms)
        every = read_unit_records(source, task, WITH_ID)
        lines = check_site_data(source, task, WITH_ID, 61)
        read.append([
            site.training_records(), site.training_units(), site.test_records(),
            every.records, read_site_data(source, task, WITH_ID).train,
        ])  # fmt: skip
        gone = "withdrawn: 3 units are left out, with all their records"
        assert (gone in lines) == (not without)
        read[-1].append([line for line in lines if line != gone])
    for ours, theirs in zip(*read, strict=True):
        if isinstance(ours, list) or ours is None:
            assert ours == theirs
        else:
            assert np.array_equal(ours.features, theirs.features)
            assert np.array_equal(ours.targets, theirs.targets)


def test_another_table_of_the_site_is_read_without_the_person(tmp_path: Path) -> None:
    """As 'evaluate --table' and 'compare --tables PROFILE' read it."""
    path = site_with_ids(tmp_path)
    withdraw(tmp_path, *GONE)
    other = tmp_path / "later.csv"
    (tmp_path / "records.csv").rename(other)
    source, _ = source_of(open_profile(path), other, every=False)
    task = task_for(terms_of(schema=WITH_ID))
    assert len(np.unique(read_unit_records(source, task, WITH_ID).units)) == 27
    other.rename(tmp_path / "records.csv")
    (table,) = table_sources([str(path)], tmp_path, WITH_ID, withdrawals.load_profile)
    assert len(read_site_data(table.source, task, WITH_ID).train) == 27


def test_parquet_ids_of_any_type_are_the_ids_of_a_csv(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = site_with_ids(tmp_path)
    path.write_text(path.read_text().replace('"csv"', '"parquet"').replace(".csv", ".parquet"))
    withdraw(tmp_path, b"7")
    terms = terms_of(schema=WITH_ID)
    for kind in (pa.int64(), pa.float64(), pa.string(), pa.dictionary(pa.int32(), pa.string())):
        ids = pa.array(["6", "7", "7", "8"]) if "int" not in str(kind) or "dict" in str(kind) else (
            pa.array([6, 7, 7, 8]))  # fmt: skip
        columns = {"patient": ids.cast(kind), "age": [1, 2, 3, 4], "dose": [1, 2, 3, 4],
                   "sick": ["yes", "no", "no", "yes"]}  # fmt: skip
        parquet.write_table(pa.table(columns), tmp_path / "records.parquet")
        check_table_again(path)
        site = Site(Profile.load(path), terms.updated(run_id=f"run-{kind}"))
        assert len(site.training_records()) == 2, kind


def test_image_folders_of_a_person_are_not_opened(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = site_with_ids(tmp_path)
    text = path.read_text().replace('id = "patient"', 'id = "folder"')
    path.write_text(text.replace('"csv"', '"images"').replace("records.csv", "images"))
    for label in "01":
        for unit in ("7", "Ä-3", "P 1"):
            folder = tmp_path / "images" / label / unit
            folder.mkdir(parents=True)
            image.fromarray(np.full((6, 6), 40, np.uint8)).save(folder / "a.png")
    withdraw(tmp_path, "Ä-3".encode(), column="folder")
    task = {"kind": "classification", "shape": "1,4,4", "classes": 2, "id": "folder"}
    terms = terms_of(schema="", task=task)
    site = Site(Profile.load(path), terms)
    assert len(site.training_records()) == 2
    source = open_profile(path).data
    assert source is not None
    lines = check_site_data(source, task_for(terms), "", 3)
    assert "withdrawn: 1 units are left out, with all their records" in lines
    assert "records: 4 found, 2 for training" in lines


def test_a_message_after_the_withdrawal_reads_no_record_of_the_person(tmp_path: Path) -> None:
    """In a run in progress, too; an update that was sealed before is sent again as it is."""
    path, terms = site_with_ids(tmp_path, disclose='["metrics"]', holdout=0.3), terms_with_test()
    terms = terms.updated(schema_text=WITH_ID)
    first = numbers_in(ask(path, terms))
    withdraw(tmp_path, *GONE)
    assert numbers_in(ask(path, terms)) == first
    assert not ask(path, terms, 2).has_error()
    (tmp_path / "ledger.sqlite.withdrawal-key").rename(tmp_path / "lost")
    assert ask(path, terms, 3).has_error()  # nobody could say whom to leave out
    assert ask(path, terms, 2, wire.EVALUATE).has_error()
    (tmp_path / "lost").rename(tmp_path / "ledger.sqlite.withdrawal-key")
    assert not ask(path, terms, 2, wire.EVALUATE).has_error()


def test_the_declared_number_and_the_plan_do_not_change(tmp_path: Path) -> None:
    """A plan that followed the number of records would tell the server of the withdrawal."""
    path, terms = site_with_ids(tmp_path), terms_of(schema=WITH_ID)
    before = Site(Profile.load(path), terms).paid_plan.plan
    withdraw(tmp_path, *GONE)
    assert Site(Profile.load(path), terms).paid_plan.plan == before


def test_a_ledger_holds_no_id_and_no_digest_that_can_be_tried(tmp_path: Path) -> None:
    import hashlib

    site_with_ids(tmp_path)
    withdraw(tmp_path, b"12345678")
    key = tmp_path / "ledger.sqlite.withdrawal-key"
    assert key.stat().st_mode & 0o777 == 0o600
    with (
        contextlib.closing(Chain(tmp_path / "ledger.sqlite")) as chain,
        chain.transaction() as all_,
    ):
        (entry,) = [entry for entry in all_ if entry.kind == "withdrawn"]
    tried = {hashlib.new(name, b"12345678").hexdigest() for name in ("sha256", "blake2b", "md5")}
    assert entry.body["unit"] not in tried
    content = (tmp_path / "ledger.sqlite").read_bytes()
    assert b"12345678" not in content and key.read_bytes() not in content
    other = tmp_path / "other"
    site_with_ids(other)
    withdraw(other, b"12345678")
    with contextlib.closing(Ledger(other / "ledger.sqlite")) as ledger:
        assert entry.body["unit"] not in ledger.account().withdrawn["patient"]


def test_a_withdrawal_cannot_be_dropped_from_the_ledger(tmp_path: Path) -> None:
    import sqlite3

    path, terms = site_with_ids(tmp_path), terms_of(schema=WITH_ID)
    withdraw(tmp_path, b"7", b"12")
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db, db:
        db.execute("DELETE FROM entries WHERE seq = (SELECT max(seq) FROM entries)")
    assert ask(path, terms).has_error()
    with pytest.raises(LedgerError, match="damaged"):
        Site(Profile.load(path), terms).training_records()


@pytest.mark.parametrize("fault", ["missing", "another", "no key"])
def test_a_lost_key_lets_nobody_in_until_all_are_named_anew(tmp_path: Path, fault: str) -> None:
    path, terms = site_with_ids(tmp_path), terms_of(schema=WITH_ID)
    withdraw(tmp_path, b"7", b"12")
    key = tmp_path / "ledger.sqlite.withdrawal-key"
    key.unlink()
    if fault != "missing":
        key.write_text(os.urandom(32).hex() if fault == "another" else "?")
    for change in (withdrawals.withdraw, withdrawals.undo):
        with pytest.raises(LedgerError, match="missing or is another key"):
            withdraw(tmp_path, b"9", note=change)
    with pytest.raises(LedgerError, match="withdraw --renew"):
        Site(Profile.load(path), terms).training_records()
    before = key.read_bytes() if key.exists() else None
    with pytest.raises(LedgerError, match="needs the ids of all these units"):
        withdraw(tmp_path, b"7", b"7", note=withdrawals.renew)
    assert (key.read_bytes() if key.exists() else None) == before
    assert withdraw(tmp_path, b"7", b"12", note=withdrawals.renew) == 2
    assert len(Site(Profile.load(path), terms).training_records()) == 28


def test_another_column_of_ids_needs_its_own_ids(tmp_path: Path) -> None:
    """Under another name of the schema the export's column is the same one."""
    path = site_with_ids(tmp_path)
    withdraw(tmp_path, b"7", b"12")
    text = path.read_text()
    path.write_text(text.replace('id = "patient"', ""))
    with pytest.raises(LedgerError, match="but without 'data"):
        Site(Profile.load(path), terms_of()).training_records()
    renamed = text.replace('id = "patient"', 'id = "person"')
    own = "\n[data.columns.person]\nname = 'patient'\n[ledger]"
    path.write_text(renamed.replace("\n[ledger]", own))
    terms = terms_of(schema=WITH_ID.replace("patient", "person"))
    assert len(Site(Profile.load(path), terms).training_records()) == 28
    path.write_text(renamed)
    table = (tmp_path / "records.csv").read_text()
    (tmp_path / "records.csv").write_text(table.replace("patient,", "person,"))
    check_table_again(path)
    with pytest.raises(LedgerError, match="2 units withdrew their consent, but only 0 of"):
        Site(Profile.load(path), terms.updated(run_id="run-2")).training_records()
    withdraw(tmp_path, b"7", b"12", column="person")
    for run in ("run-1", "run-2"):
        site = Site(Profile.load(path), terms.updated(run_id=run))
        assert len(site.training_records()) == 28


def test_arrays_without_ids_are_not_read_once_a_person_withdrew(tmp_path: Path) -> None:
    path = site_with_ids(tmp_path)
    withdraw(tmp_path, b"7")
    paths = open_profile(path).ledger
    assert paths is not None
    arrays = DataSource(format="npz", path=tmp_path / "x.npz").without(
        lambda: withdrawals.withdrawn_by(
            withdrawals.account_at(paths), arrays, tmp_path / "ledger.sqlite"
        )
    )
    np.savez(tmp_path / "x.npz", x=np.ones((3, 2)), y=np.array([0, 1, 1]))
    with pytest.raises(LedgerError, match="but without 'data"):
        read_site_data(arrays, Task.classification((2,), 2), "")
    held = Site(Profile.load(path), terms_of())
    npz = held.profile.model_copy(update={"data": arrays})
    with pytest.raises(LedgerError, match="but without 'data"):
        stated = terms_of(schema="", task={"kind": "classification", "shape": "2", "classes": 2})
        Site(npz, stated).training_records()


def test_a_withdrawal_taken_back_lets_the_person_in(tmp_path: Path) -> None:
    """Of records in a prepared file from the next message on, else from the next file on."""
    path, terms = site_with_ids(tmp_path), terms_of(schema=WITH_ID)

    def used(run: str) -> int:
        site = Site(Profile.load(path), terms.updated(run_id=run))
        return len(site.training_records())

    assert used("before") == 30
    assert withdraw(tmp_path, b"7", b"12", b"unknown") == 3
    assert withdraw(tmp_path, b"7") == 0
    assert (used("before"), used("after")) == (28, 28)
    assert withdraw(tmp_path, b"7", b"8", note=withdrawals.undo) == 1
    assert (used("before"), used("after"), used("later")) == (29, 28, 29)
    assert withdraw(tmp_path, b"12", b"unknown", note=withdrawals.undo) == 2
    (tmp_path / "ledger.sqlite.withdrawal-key").unlink()
    assert (used("before"), used("last")) == (30, 30)
    assert withdraw(tmp_path, b"7") == 1  # under the new key of the last preparation
    assert used("last") == 29
    with pytest.raises(LedgerError, match="another key"):
        used("before")
