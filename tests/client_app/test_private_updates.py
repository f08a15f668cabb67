"""The mod that makes any ClientApp's updates private: noise, account, replay, silence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.supercore.task_identity import TaskIdentity
from scipy import stats

from client_app.private_updates import PrivateUpdates
from hdpfl_flower import wire
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.accounting import Steps, calibrate

SIZE, EPSILON, DELTA, ROUNDS, CLIP = 4000, 2.0, 1e-5, 3, 0.5


@pytest.fixture(autouse=True)
def identity() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, 1.5 * EPSILON, 1e-4).close()
    return path


def mod(ledger: Path, **changes: Any) -> PrivateUpdates:
    given = {"epsilon": EPSILON, "delta": DELTA, "rounds": ROUNDS, "clip_norm": CLIP, **changes}
    return PrivateUpdates(ledger, **given)


def request(server_round: Any = 1, kind: str = "train", fill: float = 0.0) -> Message:
    arrays = ArrayRecord({"w": Array(np.full((SIZE // 10, 10), fill, np.float32))})
    config = ConfigRecord({"server-round": server_round})
    return Message(RecordDict({"arrays": arrays, "config": config}), 1, kind)


class App:
    """An app whose training moves every weight, with metrics; counts its calls."""

    def __init__(self, moved: float = 1.0) -> None:
        self.moved, self.calls = moved, 0

    def __call__(self, message: Message, context: Context) -> Message:
        self.calls += 1
        before = message.content["arrays"].to_numpy_ndarrays()[0]
        arrays = ArrayRecord({"w": Array(before + np.float32(self.moved))})
        metrics = MetricRecord({"loss": 0.123, "num-examples": 77})
        return Message(RecordDict({"out": arrays, "m": metrics}), reply_to=message)


def context() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


def update_of(reply: Message, fill: float = 0.0) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = reply.content["arrays"]["w"].numpy().ravel() - fill
    return found


def code_of(reply: Message) -> int:
    """Return the code of a refusal; 0 for an answer."""
    return reply.error.code if reply.has_error() else 0


def test_the_reply_is_the_clipped_update_with_the_noise_of_all_rounds(ledger: Path) -> None:
    reply = mod(ledger)(request(), context(), App())
    z = calibrate([Steps(1.0, ROUNDS)], EPSILON, DELTA)
    # Any change of the records moves a clipped update by up to 2C.
    std, update = 2 * CLIP * z, update_of(reply)
    signal = CLIP / math.sqrt(SIZE)
    assert stats.kstest((update - signal) / std, "norm").pvalue > 1e-6
    for wrong in (0.5, 2.0):
        assert stats.kstest((update - signal) / (wrong * std), "norm").pvalue < 1e-6
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert set(reply.content) == {"arrays", "metrics"}


def test_an_update_beyond_the_bound_is_clipped(ledger: Path) -> None:
    """ε = inf takes no noise, so that the clipping shows."""
    Ledger.create(ledger.with_name("open.sqlite"), math.inf, 1e-4).close()
    private = mod(ledger.with_name("open.sqlite"), epsilon=math.inf)
    for server_round, (moved, norm) in enumerate([(5.0, CLIP), (1e-6, 1e-6 * SIZE**0.5)], 1):
        update = update_of(private(request(server_round), context(), App(moved)))
        assert np.linalg.norm(update) == pytest.approx(norm, rel=1e-4)
        assert np.linalg.norm(update) <= CLIP
    update = update_of(private(request(3), context(), App(math.nan)))
    assert not update.any()


def test_a_round_is_answered_once_and_charged_once(ledger: Path) -> None:
    app = App()
    first = mod(ledger)(request(), context(), app)
    again = mod(ledger)(request(), context(), app)
    assert (update_of(first) == update_of(again)).all()
    assert app.calls == 1
    other = mod(ledger)(request(fill=0.25), context(), app)
    assert other.has_error()
    assert app.calls == 1
    account = Ledger(ledger).account()
    assert account.spent() == (EPSILON, DELTA)


@pytest.mark.parametrize("server_round", [0, -1, ROUNDS + 1, 10**12, True, "1", 1.0])
def test_no_other_round_is_answered(ledger: Path, server_round: Any) -> None:
    app = App()
    assert mod(ledger)(request(server_round), context(), app).has_error()
    assert app.calls == 0
    assert not Ledger(ledger).account().releases


def test_the_budget_of_all_runs_is_kept(ledger: Path) -> None:
    assert not mod(ledger)(request(), context(), App()).has_error()
    TaskIdentity.run_id = 2
    app = App()
    declined = mod(ledger)(request(), context(), app)
    assert (code_of(declined), app.calls) == (wire.DECLINED, 0)
    assert not mod(ledger, epsilon=EPSILON / 4)(request(), context(), app).has_error()


def test_terms_that_change_in_mid_run_are_declined(ledger: Path) -> None:
    assert not mod(ledger)(request(), context(), App()).has_error()
    for changes in ({"clip_norm": 5.0}, {"rounds": ROUNDS + 2}):
        assert code_of(mod(ledger, **changes)(request(2), context(), App())) == wire.DECLINED


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_measurements_are_declined(ledger: Path, kind: str) -> None:
    app = App()
    assert code_of(mod(ledger)(request(kind=kind), context(), app)) == wire.DECLINED
    assert app.calls == 0


def failing(message: Message, context: Context) -> Message:
    raise ValueError("PATIENT-123")


def broken(message: Message, context: Context) -> Message:
    return Message(RecordDict({"arrays": ArrayRecord([np.zeros(1, np.float32)])}), reply_to=message)


@pytest.mark.parametrize("app", [failing, broken])
def test_a_failure_is_a_constant_and_loses_the_round(ledger: Path, app: Any) -> None:
    reply = mod(ledger)(request(), context(), app)
    assert (reply.error.code, reply.error.reason) == (wire.FAILED, wire.REASONS[wire.FAILED])
    assert mod(ledger)(request(), context(), App()).has_error()
    (release,) = Ledger(ledger).account().releases.values()
    assert release.status == "lost"


def test_without_a_ledger_nothing_leaves(tmp_path: Path) -> None:
    app = App()
    assert code_of(mod(tmp_path / "none.sqlite")(request(), context(), app)) == wire.FAILED
    assert app.calls == 0


def test_a_model_that_is_not_of_floats_is_refused(ledger: Path) -> None:
    arrays = ArrayRecord({"steps": Array(np.zeros(3, np.int64))})
    message = Message(
        RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})}), 1, "train"
    )
    assert code_of(mod(ledger)(message, context(), App())) == wire.FAILED


@pytest.fixture(autouse=True)
def _no_files(tmp_path: Path) -> Iterator[None]:
    """Nothing but the ledger and what lies beside it is written."""
    yield
    assert all(path.name.split(".")[0] in ("ledger", "open") for path in tmp_path.iterdir())
