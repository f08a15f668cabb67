"""The guard and the order of things at a site: decode → plan → reserve → train → seal → encode."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from client_app import app as app_module
from client_app.site.site import Site, open_site
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.ledger.account import Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.reply_time import node_profile
from hdpfl_tools.site.reports.site_series import read_refusals
from tests.client_app.messages import (
    UNKNOWN,
    ask,
    config_of,
    make_site,
    model_of,
    send,
    terms_of,
    terms_with_test,
)

SECRETS = ("1.2345678", "2.4691356", "PATIENT-123", "2345678")


def code(reply: Message) -> int:
    """Return a refusal's code; its reason is the constant that belongs to it, and nothing else."""
    assert reply.has_error()
    assert reply.error.reason == {120: "declined", 121: "failed"}[reply.error.code]
    return reply.error.code


def payload(reply: Message) -> bytes:
    assert reply.has_content(), reply.error
    return reply.content["update"]["update"].data  # type: ignore[no-any-return,index,union-attr,call-overload]


def statuses(folder: Path) -> dict[tuple[int, str], str]:
    account = Ledger(folder / "ledger.sqlite").account()
    return {(key[1], key[2]): release.status for key, release in account.releases.items()}


def test_a_round_is_charged_sealed_and_sent(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    reply = ask(profile, terms_of())
    update = server_wire.read_update(reply.content, 3)
    assert np.all(np.isfinite(update))
    assert np.any(update != 0)
    assert statuses(tmp_path) == {(1, "update"): "sent"}
    assert Ledger(tmp_path / "ledger.sqlite").account().spent() == (1.2345678, 1e-6)


def test_a_reply_has_the_same_form_whatever_the_site_is(tmp_path: Path) -> None:
    """No field but the noisy numbers depends on ε, N, b or the data."""

    def form(reply: Message) -> Any:
        return {
            key: {name: (a.dtype, a.shape, a.stype, len(a.data)) for name, a in record.items()}  # type: ignore[union-attr]
            for key, record in reply.content.items()
        }

    one = ask(make_site(tmp_path / "one"), terms_of())
    other_profile = make_site(tmp_path / "other", rows=5)
    text = (
        other_profile.read_text()
        .replace("1.2345678", "0.5")
        .replace("batch-size = 7", "batch-size = 3")
    )
    other_profile.write_text(text)
    other = ask(other_profile, terms_of())
    assert form(one) == form(other)
    assert payload(one) != payload(other)


def test_the_same_request_gets_the_same_bytes_and_no_new_noise(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    assert payload(ask(profile, terms_of())) == payload(ask(profile, terms_of()))
    assert len(Ledger(tmp_path / "ledger.sqlite").account().releases) == 1


def test_two_sites_never_send_the_same_noise(tmp_path: Path) -> None:
    one, other = (ask(make_site(tmp_path / name), terms_of()) for name in ("one", "other"))
    assert payload(one) != payload(other)


def test_another_model_for_a_round_that_was_answered_is_declined(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), terms_of()
    ask(profile, terms)
    arrays = {name: array.numpy() + 1 for name, array in model_of(terms).items()}
    content = server_wire.write_instructions(terms, 1, server_wire.write_model(arrays))
    assert code(send({"profile": str(profile)}, wire.TRAIN, content)) == wire.DECLINED


def test_rounds_beyond_the_plan_and_terms_that_change_are_declined(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    ask(profile, terms_of())
    assert code(ask(profile, terms_of(), server_round=4)) == wire.DECLINED
    assert code(ask(profile, terms_of(), server_round=0)) == wire.DECLINED
    assert code(ask(profile, terms_of(rounds=2), server_round=2)) == wire.DECLINED
    assert code(ask(profile, terms_of(**{"learning-rate": 9.0}), server_round=2)) == wire.DECLINED
    assert ask(profile, terms_of(**{"clip-norm": 0.5}), server_round=2).has_content()


def test_the_lifetime_budget_pays_for_two_runs_and_not_for_three(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    for run in ("a", "b"):
        assert ask(profile, terms_of(**{"run-id": run})).has_content()
    assert code(ask(profile, terms_of(**{"run-id": "c"}))) == wire.DECLINED
    assert ask(profile, terms_of(**{"run-id": "a"}), server_round=2).has_content()


def test_a_deployed_node_without_a_profile_refuses() -> None:
    terms = terms_of(dataset="digits", schema="")
    content = server_wire.write_instructions(terms, 1, model_of(terms))
    for config in ({}, {"partition-id": 0, "num-partitions": 4}, {"profile": "/nowhere.toml"}):
        assert send(config, wire.TRAIN, content).has_error()


def test_terms_cannot_make_a_deployed_node_a_simulation(tmp_path: Path) -> None:
    """Whatever the server says, only the node's own side may bring seeded noise about."""
    profile = make_site(tmp_path)
    content = server_wire.write_instructions(
        terms_of(dataset="digits"), 1, model_of(terms_of(dataset="digits"))
    )
    assert send({"partition-id": 0, "num-partitions": 2}, wire.TRAIN, content).has_error()
    context = _context({"profile": str(profile)})
    site = open_site(context, terms_of(), node_profile(context.node_config))
    assert not site.simulated
    assert site.streams(1, "update").noise.bytes(8) != site.streams(1, "update").noise.bytes(8)


def _context(node_config: dict[str, Any]) -> Any:
    """Return the context of a deployed node, whose run config says what a simulation would draw."""
    from flwr.app import Context

    return Context(1, 5, node_config, RecordDict(), config_of(seed=5).drawn())


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.unlink(),
        lambda p: p.chmod(0o644),
        lambda p: p.write_text("nonsense PATIENT-123"),
        lambda p: p.write_text(p.read_text().replace("epsilon = 1", "epsilon = -1")),
        lambda p: (p.parent / "ledger.sqlite").unlink(),
        lambda p: (p.parent / "ledger.sqlite").write_bytes(b"PATIENT-123" * 500),
        lambda p: (p.parent / "records.csv").unlink(),
        lambda p: (p.parent / "records.csv").write_text("age,dose,PATIENT-123\n1,2,no\n"),
    ],
)
def test_a_broken_site_says_nothing_but_a_constant(
    tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    profile = make_site(tmp_path)
    damage(profile)
    with caplog.at_level(logging.DEBUG):
        reply = ask(profile, terms_of())
    assert code(reply) in (wire.DECLINED, wire.FAILED)
    assert caplog.records, "the site's own log says why"
    assert not any(secret in caplog.text for secret in SECRETS)


def instructions(**more: Any) -> RecordDict:
    """Return the content of a message with these instructions, as any server may write it."""
    written = ConfigRecord({"format": 1, "round": 1, **more})
    return RecordDict({"instructions": written, "model": ArrayRecord()})


def asking(arrays: ArrayRecord | None = None, /, **changes: Any) -> RecordDict:
    """Return the content of a message of round 1 with a model, or the one of the terms."""
    arrays = model_of(terms_of()) if arrays is None else arrays
    return server_wire.write_instructions(terms_of(**changes), 1, arrays)


def model_with(change: Callable[[Any], Any]) -> ArrayRecord:
    arrays = model_of(terms_of()).items()
    return ArrayRecord({name: Array(change(array.numpy())) for name, array in arrays})


HOSTILE: dict[str, Callable[[], RecordDict]] = {
    "nothing": RecordDict,
    "no terms": instructions,
    "terms of nonsense": lambda: instructions(terms="{" * 100_000),
    "an unknown term": lambda: instructions(terms='{"x": 1}'),
    "no model": lambda: asking(ArrayRecord()),
    "a NaN model": lambda: asking(model_with(lambda array: array * np.float32("nan"))),
    "a larger model": lambda: asking(model_with(lambda _: np.zeros(99, np.float32))),
    "code as a model": lambda: asking(model="os:getcwd"),
    "a schema that lies": lambda: asking(ArrayRecord(), schema="x = 1"),
    "absurd work": lambda: asking(**{"local-steps": 10**9}),
}


@pytest.mark.parametrize("kind", [wire.TRAIN, wire.EVALUATE, wire.FINISH])
@pytest.mark.parametrize("case", HOSTILE)
def test_any_message_gets_a_constant_and_is_free(tmp_path: Path, case: str, kind: str) -> None:
    profile = make_site(tmp_path)
    reply = send({"profile": str(profile)}, kind, HOSTILE[case]())
    assert code(reply) in (wire.DECLINED, wire.FAILED)
    assert Ledger(tmp_path / "ledger.sqlite").account().spent() == (0.0, 0.0)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_unhandled_types_count(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Flower's ClientApp raises then, and sends its text, past the guard, at once."""
    profile = make_site(tmp_path)
    try:
        reply = ask(profile, terms_of(), kind=kind)
    except ValueError:
        pytest.fail("Flower's own exception passed the guard")
    assert code(reply) == wire.FAILED
    assert statuses(tmp_path) == {}
    counts = read_refusals(tmp_path / "ledger.sqlite").counts
    assert {key: count for key, count in counts.items() if count} == {("failed", "wire"): 1}
    assert "no handler is known for its type" in caplog.text


@pytest.mark.parametrize("kind", [wire.TRAIN, *UNKNOWN[:2]])
def test_an_error_in_place_of_instructions_gets_the_constant(tmp_path: Path, kind: str) -> None:
    profile = make_site(tmp_path)
    asked = ask(profile, terms_of(), kind=kind)
    error = Message(Error(7, "PATIENT-123"), reply_to=asked)
    assert code(app_module.app(error, _context({"profile": str(profile)}))) == wire.FAILED


def test_flower_takes_the_app_for_one_of_its_own() -> None:
    """Its loader refuses any object of another class."""
    from flwr.clientapp import ClientApp

    assert isinstance(app_module.app, ClientApp)


@pytest.mark.parametrize(
    "error", [ValueError, MemoryError, SystemExit, RecursionError, GeneratorExit]
)
def test_no_exception_and_no_text_passes_the_guard(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bug(*_: object, **__: object) -> Any:
        raise error("PATIENT-123 has ε = 1.2345678")

    monkeypatch.setattr("client_app.training.trainer.train", bug)
    try:
        reply = ask(make_site(tmp_path), terms_of())
    except error:
        pytest.fail("an exception passed the guard")
    assert code(reply) == wire.FAILED
    assert not any(secret in caplog.text for secret in SECRETS)
    assert statuses(tmp_path) == {(1, "update"): "lost"}


def test_nothing_passes_where_a_reply_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object) -> Any:
        raise SystemExit("PATIENT-123 has ε = 1.2345678")

    monkeypatch.setattr("client_app.app.wait_until_due", bug)
    try:
        reply = ask(make_site(tmp_path), terms_of())
    except SystemExit:
        pytest.fail("an exception passed the guard")
    assert code(reply) == wire.FAILED
    assert not any(secret in caplog.text for secret in SECRETS)
    monkeypatch.undo()
    assert ask(make_site(tmp_path), terms_of()).has_content()  # the sealed release is not lost


def test_the_mutant_tells_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower sends an exception's text verbatim: the test above guards something real."""

    def bug(site: Site, _: wire.Instructions) -> RecordDict:
        raise ValueError("PATIENT-123")

    unguarded = lambda message, context: bug(None, message)  # type: ignore[arg-type]  # noqa: E731
    with pytest.raises(ValueError, match="PATIENT-123"):
        unguarded(None, None)
    reply = app_module.guarded(bug)(
        _message(tmp_path), _context({"profile": str(make_site(tmp_path))})
    )
    assert code(reply) == wire.FAILED


def _message(tmp_path: Path) -> Message:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    return Message(
        server_wire.write_instructions(terms_of(), 1, model_of(terms_of())), 5, wire.TRAIN
    )


def test_metrics_leave_only_where_the_profile_discloses_them(tmp_path: Path) -> None:
    silent = make_site(tmp_path / "silent", holdout=0.5)
    open_site = make_site(tmp_path / "open", holdout=0.5, disclose='["metrics"]')
    for profile in (silent, open_site):
        assert ask(profile, terms_with_test()).has_content()
    assert code(ask(silent, terms_with_test(), kind=wire.EVALUATE)) == wire.DECLINED
    assert statuses(tmp_path / "silent") == {(1, "update"): "sent"}
    metrics = server_wire.read_metrics(
        ask(open_site, terms_with_test(), kind=wire.EVALUATE).content
    )
    assert set(metrics) == {"accuracy", "loss"}
    assert statuses(tmp_path / "open") == {(1, "update"): "sent", (1, "metrics"): "sent"}


@pytest.mark.parametrize(
    ("disclose", "facts"),
    [
        ("[]", {}),
        ('["declared-records"]', {"declared-records": 61}),
        ('["epsilon", "metrics"]', {"epsilon": 1.2345678}),
    ],
)
def test_a_site_discloses_its_list(tmp_path: Path, disclose: str, facts: dict[str, float]) -> None:
    reply = ask(make_site(tmp_path, disclose=disclose), terms_of(), kind=wire.JOIN)
    assert server_wire.read_site(reply.content) == facts


def test_a_site_discloses_the_noise_of_its_plan(tmp_path: Path) -> None:
    path, terms = make_site(tmp_path, disclose='["noise-std"]'), terms_of()
    facts = server_wire.read_site(ask(path, terms, kind=wire.JOIN).content)
    plan = make_plan(Profile.load(path), terms)
    assert facts == {
        "noise-std": pytest.approx(plan.update_noise_std(1, terms.clip_norm, terms.learning_rate))
    }
    assert statuses(tmp_path) == {}, "a setting: nothing to charge"


def test_the_final_model_stays_at_the_site(tmp_path: Path) -> None:
    from client_app.after_run.final_model import load_final_model

    profile, terms = make_site(tmp_path), terms_of()
    ask(profile, terms)
    reply = ask(profile, terms, kind=wire.FINISH)
    assert server_wire.read_site(reply.content) == {}
    kept = load_final_model(tmp_path / "state")
    assert kept.terms == terms
    for name, array in model_of(terms).items():
        np.testing.assert_array_equal(kept.arrays[name], array.numpy())
    assert statuses(tmp_path) == {(1, "update"): "sent"}


def kept_run(folder: Path) -> str:
    """Return the run whose final model a site keeps; empty: none."""
    from client_app.after_run.final_model import load_final_model

    there = (folder / "state" / "model.safetensors").exists()
    return load_final_model(folder / "state").terms.run_id if there else ""


def test_a_run_that_the_site_took_no_part_in_leaves_no_model(tmp_path: Path) -> None:
    profile, mine = make_site(tmp_path), terms_of()
    other = terms_of(**{"run-id": "other"})
    assert code(ask(profile, mine, kind=wire.FINISH)) == wire.DECLINED
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with ledger.reserve(Request("other", 1, "metrics", "d"), None):
        pass  # metrics are no part in a run
    assert code(ask(profile, other, kind=wire.FINISH)) == wire.DECLINED
    assert kept_run(tmp_path) == ""
    ask(profile, mine)
    assert ask(profile, mine, kind=wire.FINISH).has_content()
    assert code(ask(profile, other, kind=wire.FINISH)) == wire.DECLINED
    changed = terms_of(**{"learning-rate": 0.2})
    assert code(ask(profile, changed, kind=wire.FINISH)) == wire.DECLINED, "terms that changed"
    assert kept_run(tmp_path) == "run-1"


def test_an_older_run_leaves_no_model_in_a_later_ones_place(tmp_path: Path) -> None:
    first, second = (terms_of(**{"run-id": name}) for name in ("first", "second"))
    profile = make_site(tmp_path)
    for terms in (first, second):
        ask(profile, terms)
        assert ask(profile, terms, kind=wire.FINISH).has_content()
    assert code(ask(profile, first, 2, kind=wire.FINISH)) == wire.DECLINED
    assert kept_run(tmp_path) == "second"
    assert ask(profile, second, 2, kind=wire.FINISH).has_content(), "the same one may, again"
    (tmp_path / "state" / "model.safetensors").write_bytes(b"torn")
    assert ask(profile, first, 2, kind=wire.FINISH).has_content(), "nothing worth keeping is there"
    assert kept_run(tmp_path) == "first"


def test_a_run_for_a_trusted_server_leaves_its_model(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    profile.write_text("trust-server = true\n" + profile.read_text())
    terms = terms_of(noise="server", strategy="fedhdp", delta=1e-6)
    assert code(ask(profile, terms, kind=wire.FINISH)) == wire.DECLINED
    ask(profile, terms)
    assert ask(profile, terms, kind=wire.FINISH).has_content()
    assert kept_run(tmp_path) == "run-1"


def test_an_unkept_final_model_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = make_site(tmp_path)
    ask(profile, terms_of())
    (tmp_path / "state").write_text("a file in the folder's place")
    assert code(ask(profile, terms_of(), kind=wire.FINISH)) == wire.FAILED
    words = f"failed: state: {tmp_path / 'state'} cannot be written: File exists; the final model"
    assert words in caplog.text


def test_broken_work_is_logged_next_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else tells of a process that was killed: it had no time to."""
    profile, terms = make_site(tmp_path), terms_of(rounds=4)
    ask(profile, terms)
    Ledger(tmp_path / "ledger.sqlite").reserve(Request(terms.run_id, 2, "update", "d"), None).free()
    assert "broke off" not in caplog.text
    for server_round in (3, 4):
        ask(profile, terms, server_round)
    assert caplog.text.count("the work on round 2 broke off") == 1
    assert statuses(tmp_path)[2, "update"] == "reserved"


def test_ctrl_c_passes_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("client_app.training.trainer.train", stop)
    with pytest.raises(KeyboardInterrupt):
        ask(make_site(tmp_path), terms_of())
    assert statuses(tmp_path) == {(1, "update"): "lost"}


def test_data_that_cannot_be_read_cost_nothing(tmp_path: Path) -> None:
    """Whatever can be refused is refused before the plan is charged."""
    profile = make_site(tmp_path)
    (tmp_path / "records.csv").unlink()
    assert code(ask(profile, terms_of())) == wire.FAILED
    assert Ledger(tmp_path / "ledger.sqlite").account().spent() == (0.0, 0.0)
    make_site(tmp_path)
    assert ask(profile, terms_of()).has_content()


def test_simulated_sites_test_where_the_terms_say(tmp_path: Path) -> None:
    from hdpfl_tools.simulation.in_process.in_process_run import run_in_process

    config = {"evaluation": "sites", "rounds": 2, "runs-dir": str(tmp_path), "epsilons": "4"}
    result = run_in_process(config_of(dataset="digits", schema="", **config), 3)
    pooled, worst = {"accuracy", "loss"}, {"site-accuracy-worst", "site-loss-worst"}
    assert set(result.rounds[-1]["metrics"]) == pooled | worst | {"site-accuracy", "site-loss"}
