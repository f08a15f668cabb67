"""Files and messages of every earlier format are read; those of a newer one are refused by name."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Proto

from client_app.commands import main
from client_app.personal.ditto import kept_personal_path, load_personal_model
from client_app.personal.final_model import load_final_model
from client_app.site.refusals import read_refusals
from hdpfl_flower import formats, wire
from hdpfl_flower.config import recorded_terms as records
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import (
    AccountingError,
    CheckpointError,
    DataError,
    LedgerError,
    ProfileError,
    Reason,
    TermsError,
)
from hdpfl_flower.ledger.account import Request
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.invariants import check_entries
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.recompute import read_plan, recompute_epsilon
from hdpfl_flower.monitoring.journal import Journal, finished_rounds, read_journal
from hdpfl_flower.monitoring.rejection import Rejection, rejections_in
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.versions import VERSION
from server_app.monitoring.run_series import tally
from server_app.run.checkpoint import read_checkpoint, write_checkpoint
from tests.client_app.messages import model_in, send
from tests.client_app.messages import terms_of as terms_of_message
from tests.fixtures.formats import make

FIXTURES = Path(__file__).parent / "fixtures" / "formats"
EARLIER = sorted((path for path in FIXTURES.iterdir() if path.name.isdecimal()), key=str)
RUNS = {
    "records", "client", "selections", "gumbel", "personal", "first-batch", "participations",
    "affordable",
}  # fmt: skip
STANDING = 'approval = "standing"\n'
NEWER = r"format 99 was written by a newer version of hdpfl-flower.*update"


@pytest.fixture(name="earlier", params=EARLIER, ids=lambda path: f"format-{path.name}")
def folder_of_an_earlier_format(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the fixtures of one format; the site's files are its owner's alone."""
    shutil.copytree(request.param, tmp_path / "files")
    profile = tmp_path / "files" / "site" / "profile.toml"
    profile.chmod(0o600)
    # Without the key, as earlier profiles are, every run waits for its approval.
    profile.write_text(f'approval = "standing"\n{profile.read_text().replace(STANDING, "")}')
    return tmp_path / "files"


@pytest.fixture(name="ledger")
def ledger_of_an_earlier_format(earlier: Path) -> Iterator[Ledger]:
    opened = Ledger(earlier / "site" / "ledger.sqlite", earlier / "site" / "anchor.json")
    yield opened
    opened.close()


def content_in(path: Path) -> RecordDict:
    return recorddict_from_proto(Proto.FromString(path.read_bytes()))


def test_the_script_writes_files_of_the_newest_format(tmp_path: Path) -> None:
    """Files that nobody can make are missing when the number is raised."""
    make.main(tmp_path / "files")
    for kind in EARLIER[-1].rglob("*"):
        written = tmp_path / "files" / kind.relative_to(EARLIER[-1])
        personal = kind.name.startswith("personal-")
        assert personal or written.exists(), written
    (event,) = finished_rounds(read_journal(tmp_path / "files" / "rejections" / "journal.jsonl"))
    assert set(rejections_in(event).values()) == set(Rejection)
    ledger = Ledger(tmp_path / "files" / "site" / "ledger.sqlite")
    plans = ledger.account().plans
    ledger.close()
    assert set(plans) == RUNS
    assert {json.loads(each.plan)["format"] for each in plans.values()} == {formats.PLAN.newest}


def test_every_format_before_the_newest_has_files() -> None:
    """A checkpoint's apart, which no other version reads."""
    newest = max(each.newest for each in formats.FORMATS if each is not formats.CHECKPOINT)
    assert {int(path.name) for path in EARLIER} >= set(range(newest))


# --- a site's ledger ------------------------------------------------------------------------------


def test_a_ledgers_chain_holds_and_every_plan_costs_what_was_charged(ledger: Ledger) -> None:
    plans = ledger.account().plans
    assert set(plans) == RUNS
    for frozen in plans.values():
        plan, found = frozen.read(), recompute_epsilon(frozen)
        assert found is not None and found.pld <= frozen.epsilon == plan.epsilon
        assert frozen.read_terms().rounds == plan.last_round
    kinds = {key[2] for key in ledger.account().releases}
    assert kinds == {"update", "choice", "metrics", "clipped-update"}
    assert {r.status for r in ledger.account().releases.values()} >= {"sent", "lost"}


def test_a_ledgers_entries_keep_every_promise(earlier: Path) -> None:
    chain = Chain(earlier / "site" / "ledger.sqlite")
    with chain.transaction() as entries:
        found = {each.name: each.failures for each in check_entries(entries)}
    chain.close()
    assert found == dict.fromkeys(found, ()) and len(found) == 7


def test_plans_mean_what_they_meant(ledger: Ledger) -> None:
    plans = {run: frozen.read() for run, frozen in ledger.account().plans.items()}
    assert {run: plan.sensitivity for run, plan in plans.items()} == {
        run: 2.0 if run == "client" else 1.0 for run in RUNS
    }
    assert {run: plan.models for run, plan in plans.items() if plan.models != 1} == {"personal": 2}
    assert {run for run, plan in plans.items() if plan.choices} == {"selections", "gumbel"}
    assert type(plans["selections"].choices) is not type(plans["gumbel"].choices)
    assert plans["first-batch"].steps[0].sampling_prob == 1.0
    assert plans["participations"].rounds == 2 and plans["participations"].last_round == 3
    assert plans["affordable"].noise_multiplier == 8.0 and plans["affordable"].epsilon < 1


def test_sealed_replies_are_sent_again_bit_by_bit(earlier: Path, ledger: Ledger) -> None:
    """Every request that was answered before gets the same bytes; nothing is charged or taken."""
    before, spent = len(ledger.account().releases), ledger.account().spent()
    profile = {"profile": str(earlier / "site" / "profile.toml")}
    replayed = 0
    for path in sorted((earlier / "wire").glob("*-[12].request")):
        reply = send(profile, wire.TRAIN, content_in(path))
        assert reply.has_content(), path.name
        sent = recorddict_to_proto(reply.content).SerializeToString(deterministic=True)
        kept = recorddict_to_proto(content_in(path.with_suffix(".reply")))
        assert sent == kept.SerializeToString(deterministic=True), path.name
        replayed += 1
    reply = send(profile, wire.EVALUATE, content_in(earlier / "wire" / "evaluate.request"))
    assert reply.content == content_in(earlier / "wire" / "evaluate.reply")
    assert replayed == len(RUNS) + 3
    assert len(ledger.account().releases) == before and ledger.account().spent() == spent


def test_a_site_goes_on_with_its_runs_and_charges_new_ones(earlier: Path, ledger: Ledger) -> None:
    profile = {"profile": str(earlier / "site" / "profile.toml")}
    frozen = ledger.frozen_plan("personal")
    assert frozen is not None
    spent = ledger.account().spent()
    model = model_in(frozen.read_terms(), 3)
    third = wire.write_instructions(frozen.read_terms(), 3, model)
    assert send(profile, wire.TRAIN, third).has_content()
    assert ("personal", 3, "update") in ledger.account().releases
    assert ledger.account().spent() == spent
    new = terms_of_message(**{"run-id": "new"})
    assert send(profile, wire.TRAIN, wire.write_instructions(new, 1, model)).has_content()
    charged = ledger.account().plans["new"]
    assert json.loads(charged.plan)["format"] == formats.PLAN.newest
    assert ledger.account().spent()[0] == pytest.approx(spent[0] + charged.epsilon)


def test_the_report_of_a_site_is_printed(
    earlier: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = earlier / "site" / "profile.toml"
    monkeypatch.setattr(sys, "argv", ["hdpfl-site", "report", "--profile", str(profile)])
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr()
    assert not end.value.code, shown.err
    assert all(run in shown.out for run in RUNS)


def test_models_and_refusals_beside_the_ledger_are_read(earlier: Path, ledger: Ledger) -> None:
    state = earlier / "site" / "state"
    model = load_final_model(state)
    assert (model.terms.run_id, sum(a.size for a in model.arrays.values())) == ("records", 3)
    frozen = ledger.frozen_plan("personal")
    assert frozen is not None
    personal = load_personal_model(kept_personal_path(state, frozen.read_terms()), 3)
    assert personal is not None
    counts = read_refusals(earlier / "site" / "ledger.sqlite").counts
    assert counts["declined", "policy"] == 1


def test_other_messages_are_read(earlier: Path) -> None:
    folder = earlier / "wire"
    assert wire.read_instructions(content_in(folder / "join.request")).server_round == 0
    assert set(wire.read_site(content_in(folder / "join.reply"))) == {"epsilon"}
    assert wire.read_update(content_in(folder / "records-2.reply"), 3).shape == (3,)
    choice = content_in(folder / "gumbel-1.reply")
    assert wire.read_choice(choice, 2) in (0, 1)
    assert set(wire.read_metrics(content_in(folder / "evaluate.reply"))) == {"accuracy", "loss"}
    finish = wire.read_instructions(content_in(folder / "finish.request"))
    assert finish.terms.run_id == "records"


# --- a run's folder -------------------------------------------------------------------------------


def test_journals_are_read(earlier: Path) -> None:
    rounds = finished_rounds(read_journal(earlier / "run" / "journal.jsonl"))
    assert [event["round"] for event in rounds] == [1, 2]
    assert [rejections_in(event) for event in rounds] == [
        {"2": Rejection.DECLINED}, {"1": Rejection.DECLINED, "7": Rejection.GUARD},
    ]  # fmt: skip


def test_every_rejection_in_a_journal_has_its_code(earlier: Path) -> None:
    (event,) = finished_rounds(read_journal(earlier / "rejections" / "journal.jsonl"))
    found = rejections_in(event)
    other = {
        "gone": Rejection.LATE, "not-loaded": Rejection.UNDELIVERED,
        "crashed": Rejection.UNDELIVERED, "norm": Rejection.MALFORMED,
    }  # fmt: skip
    assert found == {site: other.get(site) or Rejection(site) for site in event["rejected"]}
    later = {Rejection.PENDING, Rejection.REFUSED}  # from format 3 on
    assert set(found.values()) >= set(Rejection) - {Rejection.NOT_ASKED} - later


def test_a_checkpoint_is_read_or_refused_by_name(earlier: Path) -> None:
    """A run is resumed by the version that wrote its checkpoint, and by no other."""
    path = earlier / "run" / "checkpoint.safetensors"
    head = re.search(rb'\\"format\\": (\d+), \\"version\\": \\"([0-9.]+)\\"', path.read_bytes())
    assert head is not None
    if (int(head[1]), head[2].decode()) == (formats.CHECKPOINT.newest, VERSION):
        found = read_checkpoint(path)
        assert (found.server_round, found.config.terms.run_id) == (2, "r")
    else:
        with pytest.raises(CheckpointError, match="resume with the version that wrote it"):
            read_checkpoint(path)


# --- newer ones -----------------------------------------------------------------------------------


def test_a_newer_ledger_is_refused(earlier: Path) -> None:
    path = earlier / "site" / "ledger.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(LedgerError, match=f"ledger: {NEWER}"):
        Ledger(path)


def test_a_newer_plan_is_refused_and_no_report_passes_over_it(ledger: Ledger) -> None:
    frozen = next(iter(ledger.account().plans.values()))
    text = json.dumps({**json.loads(frozen.plan), "format": 99, "unknown": 1})
    newer = dataclasses.replace(frozen, plan=text)
    for read in (
        newer.read,
        newer.read_terms,
        lambda: read_plan(newer),
        lambda: recompute_epsilon(newer),
    ):
        with pytest.raises(LedgerError, match=f"plan in a ledger: {NEWER}"):
            read()


def test_a_newer_plan_is_never_trained_by(earlier: Path) -> None:
    """A field that this version does not know may ask for more noise."""
    site, terms = earlier / "site", terms_of_message(**{"run-id": "newer"})
    ledger = Ledger(site / "ledger.sqlite", site / "anchor.json")
    frozen = ledger.frozen_plan("records")
    assert frozen is not None
    text = json.dumps({**json.loads(frozen.plan), "format": 99})
    newer = dataclasses.replace(frozen, plan=text, terms=terms.to_json())
    with ledger.reserve(Request("newer", 1, "update", "d"), newer):
        pass
    ledger.close()
    content = wire.write_instructions(terms, 2, model_in(terms, 2))
    reply = send({"profile": str(site / "profile.toml")}, wire.TRAIN, content)
    assert reply.has_error() and reply.error.code == wire.FAILED
    assert read_refusals(site / "ledger.sqlite").counts["failed", "ledger"] == 1


@pytest.mark.parametrize("broken", [
    "", "[]", "{}", "3", '{"format": "1"}', '{"format": true}', '{"steps": 3}',
])  # fmt: skip
def test_a_text_that_is_no_plan_is_refused(broken: str) -> None:
    with pytest.raises((AccountingError, LedgerError)):
        Plan.from_json(broken)


def test_a_field_that_no_format_has_is_refused(ledger: Ledger) -> None:
    for frozen in ledger.account().plans.values():
        content = json.loads(frozen.plan)
        with pytest.raises(AccountingError, match="is no plan"):
            Plan.from_json(json.dumps({**content, "more-noise": 2.0}))
        with pytest.raises(AccountingError, match="is no plan"):
            Plan.from_json(json.dumps({**content, "steps": [{**content["steps"][0], "x": 1}]}))


def test_a_newer_journal_is_refused_and_not_shown(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("run-started", terms=RunTerms().as_config())
    journal.close()
    later = Journal(tmp_path / "journal.jsonl")
    later.write("run-finished", status="completed")
    later.write("run-finished", status="completed")
    later.close()
    events = read_journal(tmp_path / "journal.jsonl")
    newest = formats.JOURNAL.newest
    assert [event.get("format") for event in events] == [newest, newest, None]
    events[1]["format"] = 99
    found = {r.series.noun: r.value for r in tally("r", events).readings()}
    assert found["run_unreadable"] == 2 and found["run_active"] == 1
    (tmp_path / "journal.jsonl").write_text("\n".join(map(json.dumps, events)))
    with pytest.raises(DataError, match=f"journal: {NEWER}"):
        read_journal(tmp_path / "journal.jsonl")


def test_a_newer_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.server_app.run.resuming import interrupted

    path = interrupted(tmp_path) / "checkpoint.safetensors"
    found = read_checkpoint(path)
    with monkeypatch.context() as patch:
        patch.setattr(formats, "CHECKPOINT", dataclasses.replace(formats.CHECKPOINT, newest=99))
        write_checkpoint(path, found)
    with pytest.raises(CheckpointError, match=f"checkpoint: {NEWER}"):
        read_checkpoint(path)


def test_a_newer_profile_is_refused_before_its_unknown_keys_are(earlier: Path) -> None:
    path = earlier / "site" / "profile.toml"
    assert Profile.load(path).format == 1
    text = path.read_text()
    path.write_text(f"format = 99\nunknown-key = 3\n{text}")
    with pytest.raises(ProfileError, match=f"profile: {NEWER}"):
        Profile.load(path)
    for wrong in ("0", "true", '"1"'):
        path.write_text(f"format = {wrong}\n{text}")
        with pytest.raises(ProfileError, match="format"):
            Profile.load(path)


def test_a_newer_message_is_refused_before_its_unknown_keys_are() -> None:
    terms = terms_of_message()
    content = wire.write_instructions(terms, 1, model_in(terms, 1))
    head = content["instructions"]
    assert head["format"] == formats.INSTRUCTIONS.newest
    head["format"], head["unknown"] = 99, 1
    with pytest.raises(wire.WireError, match=f"message from the server: {NEWER}"):
        wire.read_instructions(content)
    for wrong in (-1, 1.0, "1", [1]):
        head["format"] = wrong
        with pytest.raises(wire.WireError, match="'format'"):
            wire.read_instructions(content)


def test_a_newer_final_model_is_refused(earlier: Path) -> None:
    from safetensors.numpy import save_file

    path = earlier / "site" / "state" / "model.safetensors"
    model = load_final_model(path.parent)
    for number, words in (("99", f"final model: {NEWER}"), ("x", "damaged")):
        save_file(model.arrays, path, {"format": number, "terms": model.terms.to_json()})
        with pytest.raises(DataError, match=words):
            load_final_model(path.parent)


# --- the law --------------------------------------------------------------------------------------


FIELDS_OF_PLANS = {
    1: {"format", "epsilon", "delta", "noise_multiplier", "divisor", "steps", "min_clip_norm",
        "max_clip_norm", "last_round", "first_divisor", "models", "choices", "sensitivity"},
    2: {"format", "epsilon", "delta", "noise_multiplier", "divisor", "steps", "min_clip_norm",
        "max_clip_norm", "last_round", "first_divisor", "models", "choices", "sensitivity",
        "tuning", "counts"},
    3: {"format", "epsilon", "delta", "noise_multiplier", "divisor", "steps", "min_clip_norm",
        "max_clip_norm", "last_round", "first_divisor", "models", "choices", "sensitivity",
        "tuning", "counts", "scores"},
}  # fmt: skip
"""Whoever adds a field adds a number, and a folder of files of the number before."""


def test_a_plan_has_the_fields_of_its_format(ledger: Ledger) -> None:
    plan = ledger.account().plans["gumbel"].read()
    content: dict[str, Any] = json.loads(plan.to_json())
    assert set(content) == FIELDS_OF_PLANS[content["format"]]
    assert content["format"] == formats.PLAN.newest
    assert set(content["steps"][0]) == {"sampling_prob", "count"}
    assert set(content["choices"]) == {"epsilon", "count"}
    assert Plan.from_json(plan.to_json()) == plan


def test_fields_that_a_plan_of_format_0_may_lack_mean_what_they_meant(ledger: Ledger) -> None:
    frozen = ledger.account().plans["records"]
    content = json.loads(frozen.plan)
    later = ("last_round", "first_divisor", "models", "choices", "sensitivity")
    least = Plan.from_json(json.dumps({k: v for k, v in content.items() if k not in later}))
    assert least == dataclasses.replace(frozen.read(), last_round=0)


def test_a_retired_key_is_ignored_in_records_of_format_0_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terms = terms_of_message()
    known = records._KEYS_OF_FORMAT_0
    monkeypatch.setattr(records, "_KEYS_OF_FORMAT_0", known | {"retired"})
    text = json.dumps({**json.loads(terms.to_json()), "retired": "/srv/runs"})
    assert records.recorded_terms(text, 0) == terms
    with pytest.raises(TermsError, match="retired"):
        records.recorded_terms(text, 1)
    content = wire.write_instructions(terms, 1, model_in(terms, 1))
    content["instructions"]["terms"] = text
    with pytest.raises(TermsError, match="retired"):
        wire.read_instructions(content)
    del content["instructions"]["format"]
    assert wire.read_instructions(content).terms == terms
    for unknown in ('{"never": 1}', "{}]", "[]"):
        with pytest.raises(TermsError):
            records.recorded_terms(unknown, 0)


def test_a_site_answers_an_earlier_server_whose_terms_hold_a_retired_key(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_KEYS_OF_FORMAT_0", records._KEYS_OF_FORMAT_0 | {"retired"})
    terms = terms_of_message(**{"run-id": "new"})
    content = wire.write_instructions(terms, 1, model_in(terms, 1))
    head = content["instructions"]
    head["terms"] = json.dumps({**json.loads(terms.to_json()), "retired": "/srv/runs"})
    profile = {"profile": str(earlier / "site" / "profile.toml")}
    assert send(profile, wire.TRAIN, content).has_error()
    del head["format"]
    assert send(profile, wire.TRAIN, content).has_content()
    assert b"/srv/runs" not in (earlier / "site" / "ledger.sqlite").read_bytes()


def test_stored_codes_are_never_renamed() -> None:
    assert {"budget", "policy", "profile", "replay", "terms", "other"} <= set(Reason)
    codes = {"declined", "failed", "late", "undelivered", "guard", "malformed", "not-asked"}
    assert codes <= set(Rejection)


def test_the_page_states_every_format() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "formats.md").read_text()
    rows = dict(re.findall(r"^\| ([a-z ]+) \| [^|]+ \| (\d+) \|", page, re.MULTILINE))
    assert rows == {each.kind: str(each.newest) for each in formats.FORMATS}
