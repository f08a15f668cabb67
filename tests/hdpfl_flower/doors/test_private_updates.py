"""The mod that makes any ClientApp's updates private: noise, account, replay, silence."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.supercore.task_identity import TaskIdentity
from scipy import stats
from torch import nn

from hdpfl_flower import reply_time as timing
from hdpfl_flower import wire
from hdpfl_flower.doors import charged_updates
from hdpfl_flower.doors import private_updates as door
from hdpfl_flower.doors.private_updates import PrivateUpdates
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.accounting import Steps, calibrate
from hdpfl_flower.privacy.plan import make_plan
from tests.client_app.site.test_reply_time import EPOCH, Clock

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


FILL = 0.25
"""Of the model that a round starts from, so that an answer of zeros is no update of zeros."""


def answering(content: Any) -> Any:
    """Return an app that replies with ``content``, of the model that it gets, as it is."""

    def app(message: Message, context: Context) -> Any:
        before = message.content["arrays"]["w"].numpy()
        made = content(before)
        return Message(made, reply_to=message) if isinstance(made, RecordDict) else made

    return app


def raising(reason: BaseException) -> Any:
    def app(message: Message, context: Context) -> Message:
        raise reason

    return app


def arrays_of(*arrays: Any) -> RecordDict:
    return RecordDict({"out": ArrayRecord({str(i): Array(a) for i, a in enumerate(arrays)})})


def error_reply(message: Message, context: Context) -> Message:
    return Message(Error(1000, "PATIENT-123"), reply_to=message)


def wrecking(message: Message, context: Context) -> Message:
    """Change the message in every way that shows in a reply, then fail."""
    arrays = message.content["arrays"]
    arrays["PATIENT-123"] = arrays.pop("w")
    message.metadata.message_type, message.metadata.ttl = "train.PATIENT-123", 7.0
    message.content["PATIENT-123"] = MetricRecord({"a": 1})
    np.seterr(all="raise")
    raise ValueError


NO_UPDATE = {
    "ValueError": raising(ValueError("PATIENT-123")),
    "MemoryError": raising(MemoryError()),
    "SystemExit": raising(SystemExit(3)),
    "GeneratorExit": raising(GeneratorExit()),
    "our own decision": raising(Declined(Reason.POLICY, "PATIENT-123")),
    "changes the message": wrecking,
    "an error's reply": error_reply,
    "None": answering(lambda _: None),
    "no message": answering(lambda _: "PATIENT-123"),
    "no record": answering(lambda _: RecordDict()),
    "metrics alone": answering(lambda _: RecordDict({"m": MetricRecord({"loss": 1.0})})),
    "an empty record": answering(lambda _: RecordDict({"arrays": ArrayRecord()})),
    "two records": answering(
        lambda w: RecordDict({name: ArrayRecord({"w": Array(w)}) for name in ("a", "b")})
    ),
    "too small": answering(lambda w: arrays_of(w[1:])),
    "too large": answering(lambda w: arrays_of(w, w[:1])),
    "whole numbers": answering(lambda w: arrays_of(w.astype(np.int64))),
    "half precision": answering(lambda w: arrays_of(w.astype(np.float16))),
    "not a number": answering(lambda w: arrays_of(np.full_like(w, np.nan))),
    "one infinity": answering(lambda w: arrays_of(np.where(np.arange(10) == 3, np.inf, w))),
    "beyond float64": answering(lambda w: arrays_of(np.full(w.shape, 1e300))),
    "damaged bytes": answering(
        lambda w: RecordDict(
            {"out": ArrayRecord({"w": Array("float32", w.shape, "numpy.ndarray", b"x")})}
        )
    ),
}
"""Apps that return no model of the right size, or none with finite numbers."""


@pytest.fixture
def _errors_as_they_were() -> Iterator[None]:
    before = np.geterr()
    yield
    np.seterr(**before)


@pytest.mark.usefixtures("_errors_as_they_were")
@pytest.mark.parametrize("what", NO_UPDATE)
def test_an_app_without_an_update_is_answered_by_zeros_and_noise(ledger: Path, what: str) -> None:
    """Of the same form as any reply, sealed, charged, and the same when it is asked again."""
    private = mod(ledger)
    reply = private(request(fill=FILL), context(), NO_UPDATE[what])
    assert not reply.has_error()
    usual = mod(other_ledger(ledger))(request(fill=FILL), context(), App())
    assert form_of(reply) == form_of(usual)
    check_noise(update_of(reply, FILL))
    (release,) = Ledger(ledger).account().releases.values()
    assert release.status == "sent"
    assert Ledger(ledger).account().spent() == (EPSILON, DELTA)
    app = App()
    assert (
        update_of(private(request(fill=FILL), context(), app), FILL) == update_of(reply, FILL)
    ).all()
    assert app.calls == 0
    assert not private(request(2), context(), app).has_error()


def other_ledger(ledger: Path) -> Path:
    path = ledger.with_name("ledger.other.sqlite")
    Ledger.create(path, 1.5 * EPSILON, 1e-4).close()
    return path


def form_of(reply: Message) -> Any:
    """Return all of a reply but its numbers and its time."""
    arrays = {k: (v.dtype, v.shape, v.stype) for k, v in reply.content["arrays"].items()}
    metadata = reply.metadata
    return (
        list(reply.content), arrays, dict(reply.content["metrics"]), metadata.message_type,
        metadata.dst_node_id, metadata.group_id, metadata.reply_to_message_id,
        round(metadata.created_at + metadata.ttl, 2) > request().metadata.created_at + 10_000,
    )  # fmt: skip


def test_one_record_more_does_not_show_in_an_apps_exception(tmp_path: Path) -> None:
    """BatchNorm in batches of 32 raises on a last batch of one record: of 65, and not of 64."""

    def app(records: int) -> Any:
        def train(message: Message, context: Context) -> Message:
            model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
            for rows in torch.split(torch.zeros(records, 3), 32):
                model(rows)
            return App()(message, context)

        return train

    with pytest.raises(ValueError, match="more than 1 value per channel"):
        app(65)(request(), context())
    for records in (64, 65):
        path = tmp_path / f"ledger.{records}.sqlite"
        Ledger.create(path, 0.1, 1e-4).close()
        reply = mod(path, epsilon=0.1)(request(), context(), app(records))
        assert not reply.has_error()


def test_ctrl_c_ends_the_work_in_process(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = raising(KeyboardInterrupt())
    # As a terminal has it, also where the tests run in the background.
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        mod(ledger)(request(), context(), app)
    monkeypatch.setattr(signal, "getsignal", lambda _: lambda *_: None)
    try:
        reply = mod(ledger)(request(2), context(), app)
    except KeyboardInterrupt:
        pytest.fail("an app can leave its request without a reply")
    assert not reply.has_error()


def test_a_model_of_one_number_gets_no_update_of_two(ledger: Path) -> None:
    """NumPy would stretch the one to the size of the other."""
    message = request()
    message.content["arrays"] = ArrayRecord({"w": Array(np.zeros(1, np.float32))})
    app = answering(lambda w: arrays_of(np.concatenate([w, w])))
    assert not mod(ledger)(message, context(), app).has_error()


BITS = 1e-9
"""Chance that a correct noise fails one of the checks of :func:`check_noise`, at most."""


def check_noise(residual: np.ndarray[Any, Any], rounds: int = ROUNDS, wrong: float = 1.2) -> None:
    """Check that what is left of an update is the plan's noise, in any share of its numbers.

    The sum of squares lies within its χ² quantiles; that of noise ``wrong`` times as large, or as
    small, does so with a chance of 1e-3 at most.
    """
    std = 2 * CLIP * calibrate([Steps(1.0, ROUNDS)], EPSILON, DELTA)
    size = len(residual)
    squares = float(np.square(residual.astype(np.float64)).sum()) / std**2
    low, high = stats.chi2.ppf([BITS / 2, 1 - BITS / 2], size)
    assert low < squares < high
    for factor in (wrong, 1 / wrong):
        below, above = stats.chi2.cdf(np.array([low, high]) / factor**2, size)
        assert above - below < 1e-3


MOVED = {
    "nothing": np.zeros(SIZE),
    "next to nothing": np.full(SIZE, 1e-12),
    "half the bound": np.full(SIZE, CLIP / 2 / SIZE**0.5),
    "ten times the bound": np.full(SIZE, 10 * CLIP / SIZE**0.5),
    "beyond all bounds": np.full(SIZE, 1e30),
    "one number": np.eye(1, SIZE)[0],
    "half of the numbers": np.where(np.arange(SIZE) % 2 == 0, CLIP, 0.0),
    "rising": np.linspace(-1.0, 3.0, SIZE),
}
"""What an app's training adds to the model."""


@pytest.mark.parametrize("what", MOVED)
def test_the_noise_depends_on_no_update(ledger: Path, what: str) -> None:
    """Not on its length, on where it moves, on its signs, nor on rounds before; of all numbers."""
    moved = MOVED[what]
    clipped = moved * min(1.0, CLIP / max(float(np.linalg.norm(moved)), 1e-300))
    app = answering(lambda w: arrays_of(w + moved.reshape(w.shape)))
    private = mod(ledger)
    residuals = [
        update_of(private(request(number, fill=0.0), context(), app)) - clipped
        for number in range(1, ROUNDS + 1)
    ]
    std = 2 * CLIP * calibrate([Steps(1.0, ROUNDS)], EPSILON, DELTA)
    direction = clipped / max(float(np.linalg.norm(clipped)), 1e-300)
    for residual in residuals:
        check_noise(residual)
        check_noise(residual[np.abs(clipped) >= np.median(np.abs(clipped))])
        check_noise(residual[::2])
        check_noise(residual[1::2])
        assert stats.kstest(residual / std, "norm").pvalue > BITS
        # One normal number, as in any direction.
        assert abs(float(residual @ direction)) / std < stats.norm.isf(BITS / 2)
    # Of independent noises the cosine times √d is nearly normal.
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        cosine = stats.pearsonr(residuals[one], residuals[other]).statistic
        assert abs(cosine) * SIZE**0.5 < stats.norm.isf(BITS / 2)


def test_the_noise_along_an_update_is_that_of_any_direction(ledger: Path) -> None:
    """One number a release: of 400, without a ledger, which takes most of a release's time."""
    private = mod(ledger)
    plan, update = make_plan(private._profile, private._terms), np.array([CLIP / 2, 0.0])
    along = [door._noisy(update, plan, 1, CLIP)[0] - CLIP / 2 for _ in range(400)]
    check_noise(np.array(along), wrong=1.5)


def test_clients_and_runs_have_noise_of_their_own(ledger: Path) -> None:
    first = update_of(mod(ledger)(request(), context(), App(0.0)))
    elsewhere = update_of(mod(other_ledger(ledger))(request(), context(), App(0.0)))
    TaskIdentity.run_id = 2
    later = update_of(mod(ledger, epsilon=EPSILON / 2)(request(), context(), App(0.0)))
    for other in (elsewhere, later):
        assert abs(stats.pearsonr(first, other).statistic) * SIZE**0.5 < stats.norm.isf(BITS / 2)


@pytest.mark.parametrize("after", [30.0, 0.0])
def test_replies_leave_on_time(ledger: Path, monkeypatch: pytest.MonkeyPatch, after: float) -> None:
    """Answers, replays, declines and failures; the app's work takes some time of it."""
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(charged_updates, "time", clock)
    private = mod(ledger, reply_after=after)

    def working(message: Message, context: Context) -> Message:
        clock.now += 12.0
        return App()(message, context)

    def failing(message: Message, context: Context) -> Message:
        clock.now += 7.0
        raise ValueError

    asked = [(request(), working), (request(), working), (request(2), failing),
             (request(kind="evaluate"), working), (request("x"), working)]  # fmt: skip
    spent = []
    for message, app in asked:
        start = clock.now
        reply = private(message, context(), app)
        spent.append(clock.now - start)
        if after:
            assert reply.metadata.created_at == EPOCH + start + after
    assert spent == ([after] * 5 if after else [12.0, 0, 7.0, 0, 0])


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


def test_a_ledger_that_was_set_back_releases_nothing(tmp_path: Path) -> None:
    """A copy of an older ledger contradicts its anchor."""
    path, anchor = tmp_path / "open.sqlite", tmp_path / "open.anchor"
    private = PrivateUpdates(path, epsilon=EPSILON, delta=DELTA, rounds=ROUNDS, anchor=anchor)
    private.create_ledger(path, 1, anchor)
    before = path.read_bytes()
    assert not private(request(), context(), App()).has_error()
    path.write_bytes(before)
    assert code_of(private(request(2), context(), App())) == wire.FAILED


def test_few_clients_are_said_to_be_too_few(tmp_path: Path) -> None:
    """The mean of n updates of length C has noise of the length 2Cz·√(d/n)."""
    handler = PrivateUpdates(tmp_path / "l", epsilon=8.0, delta=DELTA, rounds=1)
    z = calibrate([Steps(1.0, 1)], 8.0, DELTA)
    needed = handler.clients_needed(1000)
    assert needed == math.ceil(4 * z * z * 1000)
    rng = np.random.default_rng(0)
    noise = 2 * z * rng.standard_normal((needed, 1000)).mean(0)
    assert np.linalg.norm(noise) == pytest.approx(1, rel=0.15)
    assert handler.clients_needed(1000, signal_to_noise=2) == pytest.approx(4 * needed, abs=4)
