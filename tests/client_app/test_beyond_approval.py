"""What a site answers without noise: in rounds that were approved, a bounded number of times."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message

from client_app.after_run.final_model import load_final_model
from client_app.after_run.personal_model import personal_model_file
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.ledger.account import Account, Request
from hdpfl_flower.ledger.ledger import Ledger
from tests.client_app.messages import (
    ask,
    make_site,
    model_in,
    model_of,
    send,
    terms_of,
    terms_with_test,
)

OUTSIDE = (-(10**12), -7, -1, 0, 4, 5, 6, 100, 10**9, 10**12)
"""Rounds that a run of three has not."""
KINDS = (wire.TRAIN, wire.EVALUATE, server_wire.query_of("scores"), wire.FINISH)
SERVER = {"noise": "server", "strategy": "fedhdp", "delta": 1e-6}
TUNED = {"after": {"tuning": {"steps": 2, "part": "all"}}}
ASKS_FOR_ALL = {
    "after": {
        "scores": {"share": 0.25},
        "prior": {"share": 0.25},
        "tuning": {"steps": 2, "part": "all"},
    }
}


def code(reply: Message) -> int:
    assert reply.has_error(), reply
    return reply.error.code


def account(folder: Path) -> Account:
    return Ledger(folder / "ledger.sqlite").account()


def open_site(folder: Path, answers: int = 20, **more: Any) -> Path:
    """Return the profile of a site that trusts the server and answers so many tests."""
    words = {"disclose": '["metrics"]', "holdout": 0.5, **more}
    profile = make_site(folder, **words)
    text = profile.read_text().replace("exact-answers = 20", f"exact-answers = {answers}")
    profile.write_text("trust-server = true\n" + text)
    return profile


def at(profile: Path, kind: str, terms: RunTerms, server_round: int, seed: int = 1) -> Message:
    """Send a message with the model of ``seed``, whatever the round."""
    content = server_wire.write_instructions(terms, server_round, model_in(terms, seed))
    return send({"profile": str(profile)}, kind, content)


@pytest.mark.parametrize("noise", [{}, SERVER], ids=["records", "server"])
@pytest.mark.parametrize("kind", KINDS)
def test_unapproved_rounds_are_declined(tmp_path: Path, kind: str, noise: dict[str, Any]) -> None:
    profile = open_site(tmp_path)
    terms = terms_with_test(**noise, **({} if noise else ASKS_FOR_ALL))
    assert ask(profile, terms).has_content()
    before = len(account(tmp_path).releases)
    for server_round in OUTSIDE:
        assert code(ask(profile, terms, server_round, kind)) == wire.DECLINED
    assert len(account(tmp_path).releases) == before
    assert not (tmp_path / "state" / "model.safetensors").exists()


@pytest.mark.parametrize("noise", [{}, SERVER], ids=["records", "server"])
def test_each_approved_round_is_answered_once(tmp_path: Path, noise: dict[str, Any]) -> None:
    profile, terms = open_site(tmp_path), terms_with_test(**noise)
    for server_round in (1, 2, 3):
        assert at(profile, wire.TRAIN, terms, server_round).has_content()
        assert code(at(profile, wire.TRAIN, terms, server_round, 2)) == wire.DECLINED
        assert at(profile, wire.EVALUATE, terms, server_round).has_content()
        assert code(at(profile, wire.EVALUATE, terms, server_round, 2)) == wire.DECLINED
    assert len(account(tmp_path).releases) == 6


@pytest.mark.parametrize("server_round", [-1, 1, 3, 10**9])
def test_a_site_joins_in_round_0_and_no_other(tmp_path: Path, server_round: int) -> None:
    profile, terms = make_site(tmp_path, disclose='["epsilon"]'), terms_of()
    content = server_wire.write_instructions(terms, server_round, ArrayRecord())
    assert code(send({"profile": str(profile)}, wire.JOIN, content)) == wire.DECLINED
    content = server_wire.write_instructions(terms, 0, ArrayRecord())
    assert send({"profile": str(profile)}, wire.JOIN, content).has_content()


def test_a_trusted_server_gets_no_more_updates_than_participations(tmp_path: Path) -> None:
    profile, terms = open_site(tmp_path), terms_of(participations=2, **SERVER)
    assert ask(profile, terms, 1).has_content()
    assert ask(profile, terms, 3).has_content()
    assert code(ask(profile, terms, 2)) == wire.DECLINED


def test_runs_of_a_trusted_server_count_among_the_runs_of_the_policy(tmp_path: Path) -> None:
    profile = open_site(tmp_path, more="[policy]\nruns = 2\n")
    for number in range(2):
        assert ask(profile, terms_of(**SERVER, **{"run-id": f"r{number}"})).has_content()
    assert code(ask(profile, terms_of(**SERVER, **{"run-id": "r2"}))) == wire.DECLINED
    assert code(ask(profile, terms_of(**{"run-id": "r3"}))) == wire.DECLINED
    assert ask(profile, terms_of(**SERVER, **{"run-id": "r1"}), 2).has_content()


# Tests on held-out records.


@pytest.mark.parametrize("evaluation", ["none", "server"])
def test_tests_outside_approved_terms_are_declined(tmp_path: Path, evaluation: str) -> None:
    profile, terms = open_site(tmp_path), terms_of(evaluation=evaluation, **SERVER)
    assert ask(profile, terms).has_content()
    assert code(ask(profile, terms, kind=wire.EVALUATE)) == wire.DECLINED
    assert account(tmp_path).exact_answers == 0


def test_no_test_is_answered_under_terms_that_changed_after_the_charge(tmp_path: Path) -> None:
    profile = open_site(tmp_path)
    assert ask(profile, terms_of()).has_content()
    assert code(ask(profile, terms_with_test(), kind=wire.EVALUATE)) == wire.DECLINED
    assert account(tmp_path).exact_answers == 0


@pytest.mark.parametrize("noise", [{}, SERVER], ids=["records", "server"])
def test_a_test_belongs_to_a_round_that_the_site_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: dict[str, Any]
) -> None:
    profile, terms = open_site(tmp_path), terms_with_test(**noise)
    assert code(ask(profile, terms, 1, wire.EVALUATE)) == wire.DECLINED
    assert ask(profile, terms, 2).has_content()
    for server_round in (1, 3):
        assert code(ask(profile, terms, server_round, wire.EVALUATE)) == wire.DECLINED
    other = terms.updated(run_id="other")
    assert code(ask(profile, other, 2, wire.EVALUATE)) == wire.DECLINED
    with monkeypatch.context() as patch:
        for name in ("trainer.Trainer", "client_level.ClientLevelTrainer"):
            patch.setattr(f"client_app.training.{name}.run", lambda *_: 1 / 0)
        assert code(ask(profile, terms, 3)) == wire.FAILED
    assert code(ask(profile, terms, 3, wire.EVALUATE)) == wire.DECLINED, "it is lost"
    assert ask(profile, terms, 2, wire.EVALUATE).has_content()
    assert account(tmp_path).exact_answers == 1


def test_exact_answers_are_bounded_over_all_runs(tmp_path: Path) -> None:
    """677 of them, of models of the server's choice, told all of 14 records."""
    profile = open_site(tmp_path, answers=4)
    answered = 0
    for run in range(7):
        terms = terms_with_test(**SERVER, rounds=100, **{"run-id": f"run-{run}"})
        for server_round in (1, 2, 3):
            assert at(profile, wire.TRAIN, terms, server_round).has_content()
            for seed in (1, 2, 3):
                reply = at(profile, wire.EVALUATE, terms, server_round, seed)
                answered += reply.has_content()
    assert answered == 4
    assert account(tmp_path).exact_answers == 4
    assert at(
        profile, wire.EVALUATE, terms_with_test(**SERVER, rounds=100, **{"run-id": "run-1"}), 1
    )


def test_without_a_number_in_the_profile_no_answer_is_exact(tmp_path: Path) -> None:
    profile, terms = open_site(tmp_path), terms_with_test(**SERVER)
    profile.write_text(profile.read_text().replace("exact-answers = 20\n", ""))
    assert ask(profile, terms).has_content()
    assert code(ask(profile, terms, kind=wire.EVALUATE)) == wire.DECLINED


def test_a_lost_answer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms = open_site(tmp_path, answers=1), terms_with_test(**SERVER)
    for server_round in (1, 2):
        assert ask(profile, terms, server_round).has_content()
    with monkeypatch.context() as patch:
        patch.setattr("client_app.releases.metrics.evaluate", lambda *_: 1 / 0)
        assert code(ask(profile, terms, 1, wire.EVALUATE)) == wire.FAILED
    assert code(ask(profile, terms, 2, wire.EVALUATE)) == wire.DECLINED
    assert account(tmp_path).releases["run-1", 1, "metrics"].status == "lost"


def test_a_test_that_cannot_be_done_is_not_counted(tmp_path: Path) -> None:
    profile, terms = open_site(tmp_path), terms_with_test(**SERVER)
    assert ask(profile, terms).has_content()
    content = server_wire.write_instructions(terms, 1, model_of(terms_of(model="mlp:3")))
    assert code(send({"profile": str(profile)}, wire.EVALUATE, content)) == wire.FAILED
    records = tmp_path / "ledger.sqlite.records"
    records.rename(tmp_path / "away")
    assert code(ask(profile, terms, kind=wire.EVALUATE)) == wire.FAILED
    (tmp_path / "away").rename(records)
    assert account(tmp_path).exact_answers == 0
    assert ask(profile, terms, kind=wire.EVALUATE).has_content()


def _reserves(path: Path, number: int, start: Any, found: Any) -> None:
    """Reserve one of two answers that are left, in a process of its own."""
    ledger = Ledger(path)
    start.wait()
    try:
        ledger.reserve(Request("r", number, "metrics", "d", exact=1), None, max_exact=2)
        found.put(1)
    except Declined as reason:
        found.put(0 if reason.reason is Reason.BUDGET else 99)


def test_processes_at_once_take_no_more_answers_than_are_left(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, 1.0, 1e-5).close()
    spawn = multiprocessing.get_context("fork")
    for attempt in range(3):
        start, found = spawn.Barrier(6), spawn.Queue()
        workers = [
            spawn.Process(target=_reserves, args=(path, 6 * attempt + n, start, found))
            for n in range(6)
        ]
        for worker in workers:
            worker.start()
        taken = sum(found.get(timeout=60) for _ in workers)
        for worker in workers:
            worker.join()
        assert taken == (2 if attempt == 0 else 0)
    assert account(tmp_path).exact_answers == 2


def test_the_bound_is_checked_by_what_another_process_wrote(tmp_path: Path) -> None:
    """A ledger that was open before the answer sees it in the transaction that reserves."""
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, 1.0, 1e-5).close()
    one, other = Ledger(path), Ledger(path)
    one.reserve(Request("r", 1, "metrics", "d", exact=1), None, max_exact=1)
    with pytest.raises(Declined, match="exact-answers"):
        other.reserve(Request("r", 2, "metrics", "d", exact=1), None, max_exact=1)


# The end of a run.


@pytest.mark.parametrize(
    "more",
    [{}, SERVER, {"after": {"prior": {"share": 0.25}}}, TUNED],
    ids=["", "server", "prior", "tuned"],
)
def test_the_end_of_an_ended_run_changes_nothing(tmp_path: Path, more: dict[str, Any]) -> None:
    profile, terms = open_site(tmp_path), terms_of(**more)
    assert ask(profile, terms).has_content()
    assert at(profile, wire.FINISH, terms, 1, seed=3).has_content()
    own = personal_model_file(tmp_path / "state", terms.run_id)
    before = {path: path.read_bytes() for path in (tmp_path / "state").iterdir()}
    assert own.exists() == ("after" in more)
    releases = {key: each.status for key, each in account(tmp_path).releases.items()}
    for server_round, seed in ((1, 2), (2, 2), (3, 1)):
        assert code(at(profile, wire.FINISH, terms, server_round, seed)) == wire.DECLINED
    assert {path: path.read_bytes() for path in (tmp_path / "state").iterdir()} == before
    assert {key: each.status for key, each in account(tmp_path).releases.items()} == releases
    assert at(profile, wire.FINISH, terms, 1, seed=3).has_content(), "a run that was resumed"


def test_the_same_model_under_other_terms_is_another_end(tmp_path: Path) -> None:
    """A trusted server's run has no plan that would keep its terms."""
    profile, terms = open_site(tmp_path), terms_of(**SERVER)
    assert ask(profile, terms).has_content()
    assert at(profile, wire.FINISH, terms, 3).has_content()
    assert code(at(profile, wire.FINISH, terms.updated(rounds=4), 3)) == wire.DECLINED
    assert load_final_model(tmp_path / "state").terms == terms


def test_two_ends_keep_the_first_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second message arrives while the first one writes."""
    from client_app.after_run import final_model

    profile, terms = open_site(tmp_path), terms_of(**SERVER)
    assert ask(profile, terms).has_content()
    held, real = [], final_model.replace_file
    monkeypatch.setattr(final_model, "_PATIENCE", 0.1)

    def meanwhile(path: Path, content: bytes) -> None:
        monkeypatch.setattr(final_model, "replace_file", real)
        held.append(at(profile, wire.FINISH, terms, 3, seed=2).has_content())
        real(path, content)

    monkeypatch.setattr(final_model, "replace_file", meanwhile)
    assert at(profile, wire.FINISH, terms, 3, seed=3).has_content()
    assert held == [False]


# A flood.


@pytest.mark.parametrize(
    ("more", "entries"),
    # The cap; of the run its records, plan and end; three entries a release, of those not sent two.
    [(ASKS_FOR_ALL, 4 + 3 * (3 + 2 + 1) + 2 * 2), (SERVER, 3 + 3 * (3 + 2))],
    ids=["records", "server"],
)
def test_a_flood_adds_no_entry(tmp_path: Path, more: dict[str, Any], entries: int) -> None:
    """Whatever is repeated, declined or broken: the chain and its files stay as they are."""
    profile, terms = open_site(tmp_path, answers=2), terms_with_test(**more)
    flood = [(k, n, s) for k in (*KINDS, wire.JOIN) for n in (*OUTSIDE, 1, 2, 3) for s in (1, 2)]
    for kind, server_round, seed in flood:
        at(profile, kind, terms, server_round, seed)
    ledger = tmp_path / "ledger.sqlite"

    def stored() -> tuple[int, int, list[str]]:
        from hdpfl_flower.ledger.hash_chain import Chain

        with Chain(ledger).transaction() as chain:
            count = len(chain)
        files = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
        return count, ledger.stat().st_size, files

    before = stored()
    assert before[0] == entries
    for _ in range(2):
        for kind, server_round, seed in flood:
            at(profile, kind, terms, server_round, seed)
    assert stored() == before


def test_a_breaking_record_adds_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms = open_site(tmp_path), terms_with_test(**SERVER)
    monkeypatch.setattr("client_app.training.client_level.ClientLevelTrainer.run", lambda *_: 1 / 0)
    for _ in range(4):
        for kind in (wire.TRAIN, wire.EVALUATE):
            ask(profile, terms, kind=kind)
    assert {key[2]: each.status for key, each in account(tmp_path).releases.items()} == {
        "clipped-update": "lost"
    }
