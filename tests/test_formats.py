"""Files and messages of every format are read; a newer number, or none, is refused by its kind."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flwr.app import RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Proto
from safetensors.numpy import save_file

from client_app.after_run.final_model import load_final_model
from client_app.training.ditto import kept_personal_path, load_personal_model
from hdpfl_flower import formats, server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import (
    AccountingError,
    CheckpointError,
    DataError,
    LedgerError,
    ProfileError,
    Reason,
)
from hdpfl_flower.ledger.account import Request
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.monitoring.journal import finished_rounds, read_journal
from hdpfl_flower.monitoring.rejection import Rejection, rejections_in
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.versions import __version__
from hdpfl_tools.coordinator.monitoring.run_series import tally
from hdpfl_tools.site.commands import main
from hdpfl_tools.site.ledger_checks.invariants import check_entries
from hdpfl_tools.site.ledger_checks.recompute import read_plan, recompute_epsilon
from hdpfl_tools.site.reports.site_series import read_refusals
from server_app.run.checkpoint import read_checkpoint, write_checkpoint
from tests.client_app.messages import model_in, send
from tests.client_app.messages import terms_of as terms_of_message
from tests.fixtures.formats import make

FIXTURES = Path(__file__).parent / "fixtures" / "formats"
STORED = sorted(path for path in FIXTURES.iterdir() if path.name.isdecimal())
CHARGED = make.RUNS.keys() - {"server"}
NEWER = r"format 99 was written by a newer version of hdpfl-flower.*update"
NONE = "no version wrote its 'format'"
FIELDS_OF_PLANS = {
    1: {"format", "epsilon", "delta", "noise_multiplier", "divisor", "steps", "min_clip_norm",
        "max_clip_norm", "last_round", "first_divisor", "models", "sensitivity", "releases"},
}  # fmt: skip
"""A new field needs a new number, and a folder of files of the number before."""


@pytest.fixture(name="files", params=STORED, ids=lambda path: f"format-{path.name}")
def files_of_a_format(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the files of one format; the site's are its owner's alone."""
    shutil.copytree(request.param, tmp_path / "files")
    # A checkout has not the modes that a site demands of its own files.
    site = tmp_path / "files" / "site"
    for path in (site / "profile.toml", *site.glob("*.records/*")):
        path.chmod(0o600)
    for folder in site.glob("*.records"):
        folder.chmod(0o700)
    return tmp_path / "files"


@pytest.fixture(name="ledger")
def ledger_of_a_format(files: Path) -> Iterator[Ledger]:
    opened = Ledger(files / "site" / "ledger.sqlite", files / "site" / "anchor.json")
    yield opened
    opened.close()


def content_in(path: Path) -> RecordDict:
    return recorddict_from_proto(Proto.FromString(path.read_bytes()))


def profile_in(files: Path) -> dict[str, str | int]:
    return {"profile": str(files / "site" / "profile.toml")}


def test_every_number_has_the_files_that_the_script_writes(tmp_path: Path) -> None:
    assert [int(path.name) for path in STORED] == [*range(1, max(
        each.newest for each in formats.FORMATS) + 1)]  # fmt: skip
    make.main(tmp_path / "files")
    of_newest = STORED[-1]
    for path in of_newest.rglob("*"):
        if path.parent.suffix == ".records":
            continue  # named by its content
        assert (tmp_path / "files" / path.relative_to(of_newest)).exists(), path


def test_a_chain_holds_and_plans_cost_their_charges(files: Path, ledger: Ledger) -> None:
    plans = ledger.account().plans
    assert set(plans) == CHARGED
    for run, frozen in plans.items():
        plan, found = frozen.read(), recompute_epsilon(frozen)
        assert found is not None and found.pld <= frozen.epsilon == plan.epsilon
        assert frozen.read_terms() == make.terms_of_run(run)
    chain = Chain(files / "site" / "ledger.sqlite")
    with chain.transaction() as entries:
        kept = {each.name: each.failures for each in check_entries(entries)}
    chain.close()
    assert kept == dict.fromkeys(kept, ())


def test_sealed_replies_are_sent_again_bit_by_bit(files: Path, ledger: Ledger) -> None:
    """Every request that was answered before gets the same bytes; nothing is charged or taken."""
    before, spent = len(ledger.account().releases), ledger.account().spent()
    kinds = {"evaluate": wire.EVALUATE, **dict.fromkeys(make.RUNS.keys() - {"ended"}, wire.TRAIN)}
    for name, kind in kinds.items():
        reply = send(profile_in(files), kind, content_in(files / "wire" / f"{name}.request"))
        sent = recorddict_to_proto(reply.content).SerializeToString(deterministic=True)
        kept = recorddict_to_proto(content_in(files / "wire" / f"{name}.reply"))
        assert sent == kept.SerializeToString(deterministic=True), name
    assert len(ledger.account().releases) == before and ledger.account().spent() == spent


def test_a_site_goes_on_with_its_runs_and_charges_new_ones(files: Path, ledger: Ledger) -> None:
    terms, spent = make.terms_of_run("personal"), ledger.account().spent()
    second = server_wire.write_instructions(terms, 2, model_in(terms, 2))
    assert send(profile_in(files), wire.TRAIN, second).has_content()
    assert ("personal", 2, "update") in ledger.account().releases
    assert ledger.account().spent() == spent
    new = terms_of_message(**{"run-id": "new"})
    content = server_wire.write_instructions(new, 1, model_in(new, 1))
    assert send(profile_in(files), wire.TRAIN, content).has_content()
    charged = ledger.account().plans["new"]
    assert ledger.account().spent()[0] == pytest.approx(spent[0] + charged.epsilon)


def test_report_models_and_replies_are_read(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = str(profile_in(files)["profile"])
    monkeypatch.setattr(sys, "argv", ["hdpfl-site", "report", "--profile", profile])
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr()
    assert not end.value.code, shown.err
    assert all(run in shown.out for run in make.RUNS)
    state = files / "site" / "state"
    model = load_final_model(state)
    assert (model.terms.run_id, sum(a.size for a in model.arrays.values())) == ("ended", 3)
    path = kept_personal_path(state, make.terms_of_run("personal"))
    assert load_personal_model(path, 3) is not None
    assert set(server_wire.read_site(content_in(files / "wire" / "join.reply"))) == {"epsilon"}
    assert server_wire.read_update(content_in(files / "wire" / "records.reply"), 3).shape == (3,)
    assert server_wire.read_choice(content_in(files / "wire" / "gumbel.reply"), 2) in (0, 1)


def test_journal_and_checkpoint_of_a_run_are_read(files: Path) -> None:
    """A run is resumed by the version that wrote its checkpoint, and by no other."""
    rounds = finished_rounds(read_journal(files / "run" / "journal.jsonl"))
    assert [rejections_in(event) for event in rounds] == [
        {"2": Rejection.DECLINED}, {"1": Rejection.DECLINED, "7": Rejection.GUARD},
    ]  # fmt: skip
    path = files / "run" / "checkpoint.safetensors"
    head = re.search(rb'\\"format\\": (\d+), \\"version\\": \\"([0-9.]+)\\"', path.read_bytes())
    assert head is not None
    if (int(head[1]), head[2].decode()) == (formats.CHECKPOINT.newest, __version__):
        found = read_checkpoint(path)
        assert (found.server_round, found.config.terms.run_id) == (2, "r")
    else:
        with pytest.raises(CheckpointError, match="resume with the version that wrote it"):
            read_checkpoint(path)


# --- newer numbers, and none ----------------------------------------------------------------------


@pytest.mark.parametrize(("number", "words"), [(99, NEWER), (0, NONE)])
def test_a_ledger_of_another_number_is_refused(files: Path, number: int, words: str) -> None:
    path = files / "site" / "ledger.sqlite"
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {number}")
    db.close()
    with pytest.raises(LedgerError, match=f"ledger: {words}"):
        Ledger(path)


@pytest.mark.parametrize(
    ("number", "words"), [(99, NEWER), (None, NONE), (0, NONE), ("1", NONE), (True, NONE)]
)
def test_another_plan_number_is_refused(ledger: Ledger, number: object, words: str) -> None:
    frozen = next(iter(ledger.account().plans.values()))
    content = json.loads(frozen.plan) | {"format": number, "unknown": 1}
    other = dataclasses.replace(frozen, plan=json.dumps(content))
    reads: tuple[Callable[[], object], ...] = (
        other.read, other.read_terms, lambda: read_plan(other), lambda: recompute_epsilon(other),
    )  # fmt: skip
    for read in reads:
        with pytest.raises(LedgerError, match=f"plan in a ledger: {words}"):
            read()


def test_a_newer_plan_is_never_trained_by(files: Path) -> None:
    """A field that this version does not know may ask for more noise."""
    site, terms = files / "site", terms_of_message(**{"run-id": "newer"})
    ledger = Ledger(site / "ledger.sqlite", site / "anchor.json")
    frozen = ledger.frozen_plan("records")
    text = json.dumps({**json.loads(frozen.plan), "format": 99})
    newer = dataclasses.replace(frozen, plan=text, terms=terms.to_json())
    with ledger.reserve(Request("newer", 1, "update", "d"), newer):
        pass
    ledger.close()
    content = server_wire.write_instructions(terms, 2, model_in(terms, 2))
    reply = send(profile_in(files), wire.TRAIN, content)
    assert reply.has_error() and reply.error.code == wire.FAILED
    assert read_refusals(site / "ledger.sqlite").counts["failed", "ledger"] == 1


def test_a_plan_has_the_fields_of_its_format_and_no_other(ledger: Ledger) -> None:
    for frozen in ledger.account().plans.values():
        content = json.loads(frozen.plan)
        assert set(content) == FIELDS_OF_PLANS[content["format"]]
        assert set(content["steps"][0]) == {"sampling_prob", "count", "noise_factor"}
        for more in ({"more-noise": 2.0}, {"steps": [{**content["steps"][0], "x": 1}]}):
            with pytest.raises(AccountingError, match="is no plan"):
                Plan.from_json(json.dumps({**content, **more}))
    assert json.loads(frozen.read().to_json())["format"] == formats.PLAN.newest


def test_a_journal_of_another_number_is_refused_and_not_shown(files: Path) -> None:
    path = files / "run" / "journal.jsonl"
    events = read_journal(path)
    whole = {r.series.noun: r.value for r in tally("r", events).readings()}
    for number, words in ((99, NEWER), (None, NONE)):
        events[0]["format"] = number
        path.write_text("\n".join(map(json.dumps, events)))
        with pytest.raises(DataError, match=f"journal: {words}"):
            read_journal(path)
        found = {r.series.noun: r.value for r in tally("r", events).readings()}
        assert whole["run_unreadable"] == 0 and found["run_unreadable"] == len(events)


def test_a_newer_checkpoint_is_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.server_app.run.resuming import interrupted

    path = interrupted(files) / "checkpoint.safetensors"
    found = read_checkpoint(path)
    with monkeypatch.context() as patch:
        patch.setattr(formats, "CHECKPOINT", dataclasses.replace(formats.CHECKPOINT, newest=99))
        write_checkpoint(path, found)
    with pytest.raises(CheckpointError, match=f"checkpoint: {NEWER}"):
        read_checkpoint(path)


def test_a_newer_profile_is_refused_before_its_unknown_keys_are(files: Path) -> None:
    path = files / "site" / "profile.toml"
    assert Profile.load(path).format == 1  # it may say none
    text = path.read_text()
    path.write_text(f"format = 99\nunknown-key = 3\n{text}")
    with pytest.raises(ProfileError, match=f"profile: {NEWER}"):
        Profile.load(path)
    for wrong in ("0", "true", '"1"'):
        path.write_text(f"format = {wrong}\n{text}")
        with pytest.raises(ProfileError, match="format"):
            Profile.load(path)


def test_a_message_of_another_number_is_declined_before_its_unknown_keys_are(files: Path) -> None:
    content = content_in(files / "wire" / "records.request")
    head = content["instructions"]
    head["format"], head["unknown"] = 99, 1
    with pytest.raises(wire.WireError, match=f"message from the server: {NEWER}"):
        wire.read_instructions(content)
    assert send(profile_in(files), wire.TRAIN, content).error.code == wire.FAILED
    del head["unknown"]
    for wrong in (-1, 0, 1.0, "1", [1]):
        head["format"] = wrong
        with pytest.raises(wire.WireError, match=f"message from the server: {NONE}"):
            wire.read_instructions(content)
    del head["format"]
    with pytest.raises(wire.WireError, match=f"message from the server: {NONE}"):
        wire.read_instructions(content)


def test_a_final_model_of_another_number_is_refused(files: Path) -> None:
    path = files / "site" / "state" / "model.safetensors"
    model = load_final_model(path.parent)
    said = {"terms": model.terms.to_json()}
    for number, words in (
        ({"format": "99"}, f"final model: {NEWER}"), ({"format": "0"}, f"final model: {NONE}"),
        ({"format": "x"}, "damaged"), ({}, "damaged"),
    ):  # fmt: skip
        save_file(model.arrays, path, said | number)
        with pytest.raises(DataError, match=words):
            load_final_model(path.parent)


# --- the law --------------------------------------------------------------------------------------


def test_stored_codes_are_never_renamed() -> None:
    assert {"budget", "policy", "profile", "replay", "terms", "other"} <= set(Reason)
    assert set(Rejection) >= {
        "declined", "failed", "late", "undelivered", "guard", "malformed", "pending", "refused",
        "not-asked",
    }  # fmt: skip


def test_the_page_states_every_format() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "formats.md").read_text()
    rows = dict(re.findall(r"^\| ([a-z ]+) \| [^|]+ \| (\d+) \|", page, re.MULTILINE))
    assert rows == {each.kind: str(each.newest) for each in formats.FORMATS}
