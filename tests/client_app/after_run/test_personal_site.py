"""A deployed site in runs with parts: crashes, replays, damage, and servers that break rules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app.after_run.personal_model import personal_model_file, read_personal_model
from client_app.site.personal_state import kept_state_path, load_state
from client_app.site.site import Site
from client_app.work import own_round
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import Declined
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import Reservation
from hdpfl_flower.models.networks import Arrays, arrays_of, build_model
from hdpfl_flower.models.parts import parts_of, select
from hdpfl_tools.simulation.sites import Place, SimulatedSite
from tests.client_app.dying import dying, killed
from tests.client_app.messages import CLIENT_NOISE, make_site, send, terms_of

HEAD = {"model": "mlp:3", "work": {"kind": "alternate"}, "local-steps": 2, "learning-rate": 0.5}
TUNED = {**HEAD, "after": {"tuning": {"steps": 3}}}
Node = dict[str, Any]


def own_terms(**more: Any) -> RunTerms:
    return terms_of(**{**HEAD, **more})


def whole_of(terms: RunTerms, seed: int = 1) -> Arrays:
    return arrays_of(build_model(terms.model, task_for(terms), seed))


def ask(
    profile: Path,
    terms: RunTerms,
    server_round: int = 1,
    kind: str = wire.TRAIN,
    *,
    seed: int = 1,
    whole: bool = False,
) -> Message:
    """Send what the server is to send: the shared part of a model, or wrongly all of it."""
    arrays = whole_of(terms, seed)
    if not whole:
        arrays = select(arrays, terms.model, task_for(terms), terms.work.sent_part)
    content = server_wire.write_instructions(terms, server_round, server_wire.write_model(arrays))
    return send({"profile": str(profile)}, kind, content)


def finish(profile: Path, terms: RunTerms, seed: int = 1) -> Message:
    return ask(profile, terms, terms.rounds, wire.FINISH, seed=seed)


def account_of(folder: Path) -> Account:
    with contextlib.closing(Ledger(folder / "ledger.sqlite")) as ledger:
        return ledger.account()


def releases(folder: Path) -> dict[tuple[int, str], str]:
    found = account_of(folder).releases.items()
    return {(key[1], key[2]): release.status for key, release in found}


def state_path(folder: Path, terms: RunTerms) -> Path:
    return kept_state_path(folder / "state", terms)


def payload(reply: Message) -> bytes:
    assert reply.has_content(), reply.error
    (record,) = reply.content.array_records.values()
    (array,) = record.values()
    return array.data


def declined(reply: Message) -> bool:
    return reply.has_error() and reply.error.code == wire.DECLINED


# A process that dies.


def test_death_before_the_seal_sends_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms = make_site(tmp_path), own_terms()
    with dying(monkeypatch, Reservation, "seal"):
        ask(profile, terms)
    assert not state_path(tmp_path, terms).exists()
    assert declined(ask(profile, terms)), "its noise may have been seen"
    assert releases(tmp_path) == {(1, "update"): "lost"}
    assert ask(profile, terms, 2).has_content()
    state = load_state(state_path(tmp_path, terms))
    assert (state.server_round, state.rounds, state.first_round) == (2, 1, 2)


def test_death_before_the_state_sends_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms = make_site(tmp_path), own_terms()
    with dying(monkeypatch, "client_app.work.base.OwnRound.save"):
        ask(profile, terms)
    assert releases(tmp_path) == {(1, "update"): "sent"}
    first = payload(ask(profile, terms))
    assert payload(ask(profile, terms)) == first
    # What stays of that round is lost: no second noise is drawn for it.
    assert not state_path(tmp_path, terms).exists()
    assert releases(tmp_path) == {(1, "update"): "sent"}
    assert ask(profile, terms, 2).has_content()
    assert load_state(state_path(tmp_path, terms)).rounds == 1


def test_death_over_the_state_keeps_it_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms = make_site(tmp_path), own_terms()
    assert ask(profile, terms).has_content()
    path = state_path(tmp_path, terms)
    before = path.read_bytes()
    with dying(monkeypatch, "hdpfl_flower.system.files.os.replace"):
        ask(profile, terms, 2)
    assert path.read_bytes() == before
    assert releases(tmp_path)[2, "update"] == "sent"


def test_death_after_the_state_sends_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms = make_site(tmp_path), own_terms()
    with dying(monkeypatch, wire, "write_update"):
        ask(profile, terms)
    before = state_path(tmp_path, terms).read_bytes()
    payload(ask(profile, terms))
    assert state_path(tmp_path, terms).read_bytes() == before
    assert releases(tmp_path) == {(1, "update"): "sent"}


def test_the_state_is_stored_after_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms, seen = make_site(tmp_path), own_terms(), []
    seal = Reservation.seal

    def watched(taken: Reservation, content: bytes) -> bytes:
        seen.append(state_path(tmp_path, terms).exists())
        return seal(taken, content)

    monkeypatch.setattr(Reservation, "seal", watched)
    ask(profile, terms)
    assert seen == [False]
    assert state_path(tmp_path, terms).exists()


def test_death_after_tuning_repeats_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms = make_site(tmp_path), own_terms(**TUNED)
    assert ask(profile, terms).has_content()
    path = personal_model_file(tmp_path / "state", terms.run_id)
    with dying(monkeypatch, "client_app.after_run.personal_model.save_personal_model"):
        finish(profile, terms)
    assert releases(tmp_path)[3, "tuning"] == "sealed"
    assert not path.exists()
    monkeypatch.setattr("client_app.releases.tuning.train", killed)  # nothing is tuned anew
    assert finish(profile, terms).has_content()
    assert path.exists()


def test_death_over_tuning_tunes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms = make_site(tmp_path), own_terms(**TUNED)
    assert ask(profile, terms).has_content()
    with dying(monkeypatch, "client_app.releases.tuning.train"):
        finish(profile, terms)
    assert declined(finish(profile, terms))
    assert releases(tmp_path)[3, "tuning"] == "lost"
    assert not personal_model_file(tmp_path / "state", terms.run_id).exists()


# A message that is sent again.


@pytest.mark.parametrize("training", ["joint", "alternate", "frozen", "offset"])
def test_a_repeated_message_gets_the_same_bytes(tmp_path: Path, training: str) -> None:
    profile, terms = make_site(tmp_path), own_terms(work={"kind": training})
    first = payload(ask(profile, terms))
    path = state_path(tmp_path, terms)
    before, changed = path.read_bytes(), path.stat().st_mtime_ns
    for _ in range(2):
        assert payload(ask(profile, terms)) == first
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, changed)
    assert payload(ask(profile, terms, 2)) != first
    assert path.read_bytes() != before
    later = path.read_bytes()
    assert payload(ask(profile, terms)) == first, "the first round once more, after the second"
    assert path.read_bytes() == later
    assert load_state(path).rounds == 2


# What a site refuses before it reserves a release.


def test_no_state_folder_is_declined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = make_site(tmp_path)
    profile.write_text(profile.read_text().replace('[state]\npath = "state"\n', ""))
    reply = ask(profile, own_terms())
    assert declined(reply)
    assert "state.path" in caplog.text
    assert reply.error.reason is None or "state" not in reply.error.reason
    assert releases(tmp_path) == {}


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "other bytes": lambda _: b"nothing of the kind" * 40,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_state_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    profile, terms = make_site(tmp_path), own_terms(**TUNED)
    ask(profile, terms)
    path = state_path(tmp_path, terms)
    content = path.read_bytes()
    path.write_bytes(DAMAGE[kind](content))
    before = path.read_bytes()
    assert ask(profile, terms, 2).has_error()
    assert f"the personal part {path} is damaged; restore it, or remove it" in caplog.text
    assert path.read_bytes() == before, "its owner may have a copy"
    assert releases(tmp_path) == {(1, "update"): "sent"}
    assert finish(profile, terms).has_error()
    assert releases(tmp_path) == {(1, "update"): "sent"}, "nor a tuning"
    path.write_bytes(content)
    assert ask(profile, terms, 2).has_content()


def test_another_models_state_is_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile, terms, wider = make_site(tmp_path), own_terms(), own_terms(**{"model": "mlp:5"})
    ask(profile, wider.updated(run_id="run-2"))
    other = state_path(tmp_path, wider.updated(run_id="run-2"))
    other.rename(state_path(tmp_path, terms))
    assert ask(profile, terms).has_error()
    assert "does not fit the run's model; remove it" in caplog.text
    assert (1, "update") in releases(tmp_path)  # run-2's, and no other
    assert {key[0] for key in account_of(tmp_path).releases} == {"run-2"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"work": {"kind": "joint", "mask": "published"}}, "published"),
        ({"noise": "client"}, "only simulated sites"),
        ({"noise": "server", "strategy": "fedhdp", "delta": 1e-6}, "only simulated sites"),
        ({"noise": "client", "work": {"kind": "offset"}}, "simulat"),
    ],
)
def test_what_only_simulations_may_ask_for_is_declined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: dict[str, Any], words: str
) -> None:
    profile = make_site(tmp_path, more=CLIENT_NOISE)
    profile.write_text("trust-server = true\n" + profile.read_text())
    assert declined(ask(profile, own_terms(**more)))
    assert words in caplog.text
    assert releases(tmp_path) == {}
    assert not (tmp_path / "state").exists()


# A hostile server.


def test_the_whole_model_where_the_body_is_due_is_refused(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), own_terms(**TUNED)
    assert ask(profile, terms, whole=True).has_error()
    assert releases(tmp_path) == {}
    assert ask(profile, terms).has_content()
    before = state_path(tmp_path, terms).read_bytes()
    assert ask(profile, terms, 2, whole=True).has_error()
    assert ask(profile, terms, terms.rounds, wire.FINISH, whole=True).has_error()
    assert releases(tmp_path) == {(1, "update"): "sent"}
    assert state_path(tmp_path, terms).read_bytes() == before
    assert not personal_model_file(tmp_path / "state", terms.run_id).exists()


def test_tuning_happens_once_however_often_the_run_is_ended(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), own_terms(**TUNED)
    assert ask(profile, terms).has_content()
    assert finish(profile, terms).has_content(), "early: two rounds are left"
    path = personal_model_file(tmp_path / "state", terms.run_id)
    tuned = read_personal_model(path)
    assert tuned is not None
    assert tuned.kind == "private"
    assert releases(tmp_path) == {(1, "update"): "sent", (3, "tuning"): "sealed"}
    spent = spent_by(tmp_path)
    assert finish(profile, terms).has_content()
    again = read_personal_model(path)
    assert again is not None
    for name, array in tuned.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array, "nothing is tuned anew")
    content = path.read_bytes()
    assert declined(finish(profile, terms, seed=2)), "another model is no second tuning"
    assert path.read_bytes() == content
    assert declined(ask(profile, terms, 2)), "an ended run releases no more"
    assert declined(finish(profile, terms, seed=3))
    assert path.read_bytes() == content
    assert spent_by(tmp_path) == spent
    assert list(releases(tmp_path)) == [(1, "update"), (3, "tuning")]


def spent_by(folder: Path) -> float:
    return account_of(folder).spent()[0]


def test_a_run_that_the_site_took_no_part_in_is_not_tuned(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    assert finish(profile, own_terms(**TUNED)).has_error()
    assert releases(tmp_path) == {}
    assert (
        not list((tmp_path / "state").glob("own-model-*")) if (tmp_path / "state").exists() else 1
    )


def test_rounds_in_another_order_are_one_release_each(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), own_terms()
    assert ask(profile, terms, 3).has_content()
    path = state_path(tmp_path, terms)
    after = path.read_bytes()
    for server_round in (1, 2):
        assert ask(profile, terms, server_round).has_content()
        assert path.read_bytes() == after, "the state is that of the latest round"
    assert set(releases(tmp_path).values()) == {"sent"}
    for server_round in (0, 4, -1):
        assert ask(profile, terms, server_round).has_error()
    assert len(releases(tmp_path)) == 3


@pytest.mark.parametrize(
    "more",
    [
        {"work": {"kind": "joint"}},
        {"work": {"kind": "alternate", "stays": "body"}},
        {"work": {"kind": "plain"}},
        {"work": {"kind": "alternate", "own-steps": 1}},
        {"work": {"kind": "alternate", "mask": "random"}},
        {"work": {"kind": "alternate", "mask": "charged-top-k"}},
        {"after": {"tuning": {"steps": 5}}},
        {"after": {"tuning": {"steps": 3, "part": "all"}}},
        {"after": {"tuning": {"steps": 3}, "prior": {"share": 0.25}}},
        {"after": {"tuning": {"steps": 3}, "shrink": {"scale": 0.05}}},
    ],
)
def test_terms_of_parts_stay_within_a_run(tmp_path: Path, more: dict[str, Any]) -> None:
    profile, terms = make_site(tmp_path), own_terms(**TUNED)
    assert ask(profile, terms).has_content()
    before = state_path(tmp_path, terms).read_bytes()
    assert ask(profile, own_terms(**{**TUNED, **more}), 2).has_error()
    assert finish(profile, own_terms(**{**TUNED, **more})).has_error()
    assert releases(tmp_path) == {(1, "update"): "sent"}
    assert state_path(tmp_path, terms).read_bytes() == before


@pytest.mark.parametrize("training", ["joint", "alternate", "frozen", "offset"])
def test_no_reply_holds_a_number_of_the_personal_vector(tmp_path: Path, training: str) -> None:
    disclose = '["metrics", "personal-metrics", "batch-size", "declared-records", "epsilon"]'
    profile = make_site(tmp_path, disclose=disclose, holdout=0.3)
    rate = {"rate": 0.5} if training == "offset" else {}
    terms = own_terms(**{**TUNED, "work": {"kind": training, **rate}})
    terms = terms.updated(evaluation="sites")
    replies, kept = [], []
    for server_round in (1, 2, 3):
        replies.append(ask(profile, terms, server_round))
        kept.append(load_state(state_path(tmp_path, terms)).part)
        replies.append(ask(profile, terms, server_round, wire.EVALUATE))
    replies += [ask(profile, terms, 0, wire.JOIN), finish(profile, terms)]
    assert all(reply.has_content() for reply in replies)
    tuned = read_personal_model(personal_model_file(tmp_path / "state", terms.run_id))
    assert tuned is not None
    parts = parts_of(terms.model, task_for(terms))
    flat = np.concatenate([array.ravel() for array in tuned.arrays.values()])
    # An offset is 0 in the body, and a frozen body is the server's own.
    hidden = np.concatenate([*(part for part in kept if part is not None), flat[parts.head]])
    hidden = hidden[hidden != 0]
    assert len(hidden) > len(flat[parts.head])
    sent = b"".join(_bytes_of(reply) for reply in replies)
    for number in hidden:
        for text in (number.tobytes(), repr(float(number)).encode()):
            assert text not in sent
    (update,) = (reply for reply in replies[:1])
    size = parts.size if training == "offset" else parts.body.stop - parts.body.start
    assert len(server_wire.read_update(update.content, size)) == size


def _bytes_of(reply: Message) -> bytes:
    found = [array.data for r in reply.content.array_records.values() for array in r.values()]
    numbers = [
        np.asarray(value, kind).tobytes()
        for records in (reply.content.metric_records, reply.content.config_records)
        for record in records.values()
        for value in record.values()
        if isinstance(value, int | float)
        for kind in (np.float32, np.float64)
    ]
    return b"".join([*found, *numbers, repr(reply.content).encode()])


@pytest.mark.parametrize(
    "more", [{"work": {"kind": "alternate", "mask": "published"}}, {"noise": "client"}]
)
def test_the_round_refuses_simulated_parts(tmp_path: Path, more: dict[str, Any]) -> None:
    """Behind the policy's own check: no other way leads to such a round at a real site."""
    profile = Profile.load(make_site(tmp_path, more=CLIENT_NOISE))
    site = Site(profile, own_terms(**more))
    with pytest.raises(Declined, match=r"clean weights|trained without noise"):
        own_round(site, 1, 9)
    simulated = own_round(SimulatedSite(site.profile, site.terms, place=Place(0, 1)), 1, 9)
    assert simulated is not None
    assert simulated.state.rounds == 0
