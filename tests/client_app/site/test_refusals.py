"""Refusals are counted beside the ledger: by reason, for ever, with nothing of what was asked."""

from __future__ import annotations

import pickle
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from client_app.site import refusals
from client_app.site.refusals import REASONS, count_refusal, refusals_path, word_of
from hdpfl_flower import server_wire, wire
from hdpfl_flower.errors import Declined, HDPFLError, LedgerError, Reason
from hdpfl_tools.site.reports.site_series import read_refusals
from hdpfl_tools.tables.frozen_table import delete_table
from tests.client_app.messages import ask, make_site, model_of, send, terms_of

LEDGER = "ledger.sqlite"


def counted(folder: Path) -> dict[tuple[str, str], int]:
    return {pair: n for pair, n in read_refusals(folder / LEDGER).counts.items() if n}


def test_every_refusal_is_counted_under_its_reason(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    assert read_refusals(tmp_path / LEDGER).last == 0
    assert set(read_refusals(tmp_path / LEDGER).counts) == {
        (answer, word) for answer, words in REASONS.items() for word in words
    }
    assert not ask(profile, terms_of(rounds=2)).has_error()
    assert counted(tmp_path) == {}
    for terms, server_round in (
        (terms_of(rounds=5000, **{"run-id": "long"}), 1),
        (terms_of(rounds=2), 7),
        (terms_of(rounds=2), 7),
    ):
        assert ask(profile, terms, server_round).error.code == wire.DECLINED
    (tmp_path / "records.csv").unlink()
    delete_table(tmp_path / LEDGER)
    unprepared = terms_of(rounds=2, **{"run-id": "another"})
    assert ask(profile, unprepared).error.code == wire.FAILED
    content = server_wire.write_instructions(terms_of(), 1, model_of(terms_of()))
    del content["instructions"]
    assert send({"profile": str(profile)}, wire.TRAIN, content).error.code == wire.FAILED
    found = {("declined", "policy"): 1, ("declined", "terms"): 2, ("failed", "data"): 1,
             ("failed", "wire"): 1}  # fmt: skip
    assert counted(tmp_path) == found
    assert read_refusals(tmp_path / LEDGER).last > 1.7e9
    assert stat.S_IMODE(refusals_path(tmp_path / LEDGER).stat().st_mode) == 0o600


def test_what_is_kept_is_a_word_of_the_list_and_nothing_of_the_request(tmp_path: Path) -> None:
    class OddError(HDPFLError):
        pass

    for reason in (
        Declined(Reason.OTHER, "PATIENT-123: no"),
        OddError("PATIENT-123"),
        KeyError("PATIENT-123"),
    ):
        assert word_of(reason) == "other"
    assert word_of(Declined(Reason.BUDGET, "policy: PATIENT-123")) == "budget"
    profile = make_site(tmp_path)
    assert ask(profile, terms_of(rounds=5000, **{"run-id": "PATIENT-123"})).has_error()
    assert counted(tmp_path) == {("declined", "policy"): 1}
    assert b"PATIENT" not in refusals_path(tmp_path / LEDGER).read_bytes()


def test_a_million_refusals_take_no_more_room_than_one(tmp_path: Path) -> None:
    path = refusals_path(tmp_path / LEDGER)
    for _ in range(50):
        count_refusal(path, "declined", "policy")
    size = path.stat().st_size
    with sqlite3.connect(path) as db:
        db.execute("UPDATE refusals SET count = 1000000")
    count_refusal(path, "declined", "policy")
    assert counted(tmp_path) == {("declined", "policy"): 1_000_001}
    assert path.stat().st_size == size


def test_processes_count_together(tmp_path: Path) -> None:
    path = refusals_path(tmp_path / LEDGER)
    threads = [
        Thread(target=lambda: [count_refusal(path, "failed", "data") for _ in range(10)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted(tmp_path) == {("failed", "data"): 40}


def damage(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)


def make_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("spoil", [damage, make_folder])
def test_a_lost_count_costs_no_reply(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    profile = make_site(tmp_path)
    spoil(refusals_path(tmp_path / LEDGER))
    assert ask(profile, terms_of(rounds=5000)).error.code == wire.DECLINED
    assert not ask(profile, terms_of(rounds=2)).has_error()
    with pytest.raises(LedgerError, match="remove the file"):
        read_refusals(tmp_path / LEDGER)


def test_errors_of_counting_stay_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        pytest.fail("PATIENT-123")  # no Exception either: it passes any narrower net

    profile = make_site(tmp_path)
    monkeypatch.setattr(refusals, "count_refusal", broken)
    assert ask(profile, terms_of(rounds=5000)).error.code == wire.DECLINED


def test_a_simulated_site_counts_nothing(tmp_path: Path) -> None:
    profile = make_site(tmp_path, more="[simulation]\nseed = 1")
    node = {"profile": str(profile), "partition-id": 0, "num-partitions": 2}
    content = server_wire.write_instructions(terms_of(rounds=5000), 1, model_of(terms_of()))
    assert send(node, wire.TRAIN, content).error.code == wire.DECLINED
    assert not refusals_path(tmp_path / LEDGER).exists()


def test_a_refusal_survives_pickling_with_its_reason_and_its_text() -> None:
    """Ray returns what an actor raises as a pickle."""
    for reason in Reason:
        found = pickle.loads(pickle.dumps(Declined(reason, "why")))
        assert (found.reason, str(found)) == (reason, str(Declined(reason, "why")))
    assert str(Declined(Reason.BUDGET, "used up")) == "budget: used up"
    assert str(Declined(Reason.OTHER, "no profile")) == "no profile"


def test_reasons_are_stored_and_so_are_never_renamed() -> None:
    stored = {"budget", "policy", "profile", "replay", "terms", "other"}
    assert stored <= {reason.value for reason in Reason}
