"""Record-level training of any ClientApp: noise, account, replay, silence, own loss."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from scipy import stats
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from hdpfl_flower import wire
from hdpfl_flower.doors.charged_updates import ChargedUpdates, moved
from hdpfl_flower.doors.private_records import PrivateRecords
from hdpfl_flower.doors.private_updates import PrivateUpdates
from hdpfl_flower.errors import Declined, LedgerError, ModelError, TermsError, WireError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.accounting import Steps, calibrate, epsilon_of, event_of

N, BATCH, STEPS, ROUNDS, EPSILON, DELTA = 200, 40, 3, 4, 2.0, 1e-5
INPUTS, CLASSES = 30, 4


class Net(nn.Module):
    """A model with a buffer, whose layers a server may send in any order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(INPUTS, 20)
        self.register_buffer("scale", torch.ones(1))
        self.last = nn.Linear(20, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x * self.scale)))


ROOT = Path(__file__).parents[3]
SIZE = sum(parameter.numel() for parameter in Net().parameters())


@pytest.fixture(autouse=True)
def identity() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def records(_: Context) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, INPUTS, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def nothing(_: Context) -> TensorDataset:
    return TensorDataset(torch.zeros(0, INPUTS), torch.zeros(0))


def failing(_: Context) -> TensorDataset:
    raise ValueError("patient 17 has no label")


def private(
    path: Path, dataset: Callable[[Context], Dataset[Any]] = records, **changes: Any
) -> PrivateRecords:
    terms: dict[str, Any] = {
        "epsilon": EPSILON, "delta": DELTA, "rounds": ROUNDS, "records": N, "batch_size": BATCH,
        "steps": STEPS, "learning_rate": 0.5,
    }  # fmt: skip
    handler = PrivateRecords(path / "ledger.sqlite", Net, dataset, **{**terms, **changes})
    if not (path / "ledger.sqlite").exists():
        handler.create_ledger(path / "ledger.sqlite", runs=2)
    return handler


def request(server_round: int = 1, kind: str = "train", arrays: Any = None) -> Message:
    arrays = ArrayRecord(Net().state_dict()) if arrays is None else arrays
    config = ConfigRecord({"server-round": server_round})
    return Message(RecordDict({"arrays": arrays, "config": config}), 1, kind)


def misstated() -> ArrayRecord:
    """Return the model, with a bias whose data have fewer numbers than its shape."""
    state = Net().state_dict()
    array = Array(state["last.bias"][:1].numpy())
    array.shape = state["last.bias"].shape
    return ArrayRecord({**ArrayRecord(state), "last.bias": array})


def answer(handler: PrivateRecords, message: Message) -> Message:
    app = ClientApp()
    app.train()(handler)
    app.evaluate()(handler)
    return app(message, Context(1, 1, {}, RecordDict(), {}))


def update_of(reply: Message) -> np.ndarray:
    state, moved = Net().state_dict(), reply.content["arrays"].to_torch_state_dict()
    assert [*moved] == [*state]
    assert torch.equal(moved["scale"], state["scale"])
    return torch.cat([(moved[k] - state[k]).ravel() for k in state if k != "scale"]).numpy()


def noise_std(rounds: int = ROUNDS) -> float:
    """Return the deviation of a round's noise: η/b·z·√k for C = 1."""
    z = calibrate([Steps(BATCH / N, STEPS * rounds)], EPSILON, DELTA)
    return 0.5 / BATCH * z * math.sqrt(STEPS)


def is_standard(values: np.ndarray) -> bool:
    """Return whether values are standard normal, by shape and scale; false alarms: 3 in 10⁶."""
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(values))
    return stats.kstest(values, "norm").pvalue > 1e-6 and low < float(values @ values) < high


def test_an_update_has_the_noise_of_all_rounds(tmp_path: Path) -> None:
    """Without a record the update is only noise."""
    reply = answer(private(tmp_path, nothing), request())
    scaled = update_of(reply) / noise_std()
    assert is_standard(scaled)
    for wrong in (noise_std(1) / noise_std(), 0.8, 1.25):
        assert not is_standard(scaled / wrong)
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert set(reply.content) == {"arrays", "metrics"}


def test_rounds_have_noise_of_their_own(tmp_path: Path) -> None:
    handler = private(tmp_path, nothing)
    first, second = (update_of(answer(handler, request(number))) for number in (1, 2))
    bound = stats.norm.isf(1e-7) / math.sqrt(SIZE)
    assert abs(stats.pearsonr(first, second).statistic) < bound


def test_a_model_learns_and_a_round_is_answered_once(tmp_path: Path) -> None:
    """Rounds of one's own loss and optimizer; a replay has the same bytes, a fifth round none."""
    handler = private(
        tmp_path, epsilon=20.0, steps=20, loss=nn.CrossEntropyLoss(label_smoothing=0.1),
        optimizer=lambda parameters, _: torch.optim.Adam(parameters, lr=0.03),
        schedule=lambda adam: torch.optim.lr_scheduler.ExponentialLR(adam, 0.99),
    )  # fmt: skip
    x, y = records(None).tensors  # type: ignore[arg-type]
    net = Net()
    for number in range(1, ROUNDS + 1):
        message = request(number, arrays=ArrayRecord(net.state_dict()))
        reply = answer(handler, message)
        again = answer(handler, message)
        assert reply.content["arrays"] == again.content["arrays"]
        net.load_state_dict(reply.content["arrays"].to_torch_state_dict())
    assert float((net(x).argmax(1) == y).float().mean()) > 0.8
    assert answer(handler, request(ROUNDS + 1)).error.code == wire.DECLINED
    account = Ledger(tmp_path / "ledger.sqlite").account()
    assert len(account.plans) == 1
    assert {release.status for release in account.releases.values()} == {"sent"}


def test_an_own_loss_has_the_gradients_of_the_same_loss_of_ours(tmp_path: Path) -> None:
    """Under no noise, and full batches, in which no random number enters."""
    updates = []
    for name, loss in (("a", "cross-entropy"), ("b", nn.CrossEntropyLoss())):
        (tmp_path / name).mkdir()
        handler = private(
            tmp_path / name, epsilon=math.inf, batch_size=N, loss=loss, clip_norm=0.5,
        )  # fmt: skip
        updates.append(update_of(answer(handler, request())))
    np.testing.assert_allclose(updates[0], updates[1], rtol=1e-4, atol=1e-6)
    assert np.linalg.norm(updates[0]) <= STEPS * 0.5 * 0.5 + 1e-6


def test_an_own_loss_of_numbers(tmp_path: Path) -> None:
    def numbers(_: Context) -> TensorDataset:
        x = torch.randn(N, INPUTS, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x[:, 0])

    def loss(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.huber_loss(outputs[:, 0], target)

    handler = private(tmp_path, numbers, epsilon=math.inf, loss=loss, targets="numbers")
    assert update_of(answer(handler, request())).any()


def test_an_optimizer_gets_the_noisy_mean(tmp_path: Path) -> None:
    """SGD of torch's moves as ours: the noise has its scale by the same divisor."""
    handler = private(
        tmp_path, nothing, optimizer=lambda parameters, _: torch.optim.SGD(parameters, lr=0.5)
    )
    scaled = update_of(answer(handler, request())) / noise_std()
    assert is_standard(scaled) and not is_standard(scaled / 0.8)


def test_a_data_set_that_fails_shows_in_no_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reply = answer(private(tmp_path, failing), request())
    assert not reply.has_error()
    assert is_standard(update_of(reply) / noise_std())
    assert "the data set cannot be read: ValueError; the update is only noise" in caplog.text
    assert "patient" not in caplog.text
    account = Ledger(tmp_path / "ledger.sqlite").account()
    assert [release.status for release in account.releases.values()] == ["sent"]


def test_arrays_by_position_have_the_same_places(tmp_path: Path) -> None:
    """A server that sends a list of arrays names them 0, 1, …"""
    arrays = ArrayRecord(Net().state_dict()).to_numpy_ndarrays()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    by_name, by_place = (
        answer(private(tmp_path / folder, epsilon=math.inf, batch_size=N), request(arrays=sent))
        for folder, sent in (("a", None), ("b", ArrayRecord(arrays)))
    )
    moved = by_place.content["arrays"].to_numpy_ndarrays()
    for one, other in zip(by_name.content["arrays"].to_numpy_ndarrays(), moved, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (lambda: request(kind="evaluate"), wire.DECLINED, "set fraction_evaluate=0.0"),
        (lambda: request(0), wire.DECLINED, "beyond the rounds that 'rounds' pays for"),
        (lambda: request(arrays=ArrayRecord([np.zeros(3, np.float32)])), wire.FAILED,
         "its arrays differ from those of the model"),
        (lambda: request(arrays=misstated()), wire.FAILED, "another shape than the array states"),
    ],
    ids=["evaluation", "round 0", "another model", "data of another shape"],
)  # fmt: skip
def test_other_messages_get_a_code_and_cost_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, message: Any, code: int, words: str
) -> None:
    assert answer(private(tmp_path), message()).error.code == code
    assert words in caplog.text
    assert not Ledger(tmp_path / "ledger.sqlite").account().plans


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"optimizer": lambda p, _: torch.optim.LBFGS(p)}, ModelError, "without a closure"),
        ({"optimizer": lambda p, r: torch.optim.SGD(p, lr=[0.1, 0.1, -1.0, 0.1][r - 1])},
         ModelError, "of round 3 raises ValueError after 0 steps"),
        ({"optimizer": lambda p, _: torch.optim.SGD(p, lr=0.1),
          "schedule": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, total_steps=2)},
         ModelError, "of round 1 raises ValueError after 2 steps"),
        ({"optimizer": lambda p, _: torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)},
         ModelError, "do not move the model"),
        ({"schedule": lambda o: None}, TermsError, "'schedule' needs an 'optimizer'"),
        ({"loss": nn.CrossEntropyLoss(), "targets": "texts"}, TermsError, "'targets' must be"),
        ({"loss": "hinge"}, TermsError, "'loss' must be one of"),
        ({"shape": (7,)}, ModelError, "fails on a batch of zeros"),
        ({"loss": nn.BCEWithLogitsLoss(), "targets": "numbers"}, ModelError,
         "'loss' raises ValueError; torch.func calls it with outputs of shape"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, ModelError,
         r"'loss' returns a value of shape \(1,\)"),
        ({"loss": lambda outputs, _: outputs.sum().item() * outputs.sum()}, ModelError,
         "'loss' raises RuntimeError"),
    ],
    ids=["a closure", "a later round", "a short schedule", "other parameters", "no optimizer",
         "texts", "an unknown loss", "another shape", "shapes of the loss", "no scalar", "an item"],
)  # fmt: skip
def test_a_mistake_is_named_before_any_message(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        private(tmp_path, **changes)


def test_a_layer_that_mixes_records_is_refused(tmp_path: Path) -> None:
    def mixing() -> nn.Module:
        return nn.Sequential(nn.Linear(INPUTS, 4), nn.BatchNorm1d(4))

    with pytest.raises(ModelError, match="BatchNorm"):
        PrivateRecords(
            tmp_path / "l", mixing, records, epsilon=1.0, delta=DELTA, rounds=1, records=N,
            batch_size=BATCH, steps=1,
        )  # fmt: skip


class Tied(nn.Module):
    """Two names of one parameter."""

    def __init__(self, *, shared: bool = True) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(INPUTS, INPUTS, bias=False), nn.Linear(INPUTS, INPUTS)
        self.b.weight = self.a.weight if shared else nn.Parameter(self.a.weight.data)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


def own(path: Path, model: Callable[[], nn.Module], **changes: Any) -> PrivateRecords:
    handler = PrivateRecords(
        path / "ledger.sqlite", model, records, epsilon=1.0, delta=DELTA, rounds=1, records=N,
        batch_size=BATCH, steps=1, **changes,
    )  # fmt: skip
    handler.create_ledger(path / "ledger.sqlite", runs=2)
    return handler


def test_every_name_of_a_tied_parameter_moves(tmp_path: Path) -> None:
    state = Tied().state_dict()
    reply = answer(own(tmp_path, Tied), request(arrays=ArrayRecord(state)))
    moved = reply.content["arrays"].to_torch_state_dict()
    assert [*moved] == [*state]
    assert torch.equal(moved["a.weight"], moved["b.weight"])
    assert all((moved[name] != state[name]).any() for name in state)


def test_parameters_that_share_memory_alone_are_refused(tmp_path: Path) -> None:
    """The training would untie them."""
    with pytest.raises(ModelError, match=r"'a.weight' and 'b.weight' of the model share memory"):
        own(tmp_path, lambda: Tied(shared=False))


def test_one_output_has_no_classes_for_an_own_loss(tmp_path: Path) -> None:
    """A loss of both in one shape is one of numbers."""

    def loss(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], target)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(INPUTS, 1))

    with pytest.raises(TermsError, match="set targets='numbers'"):
        own(tmp_path, model, loss=loss)
    message = request(arrays=ArrayRecord(model().state_dict()))
    assert not answer(own(tmp_path, model, loss=loss, targets="numbers"), message).has_error()


class Interrupted(Dataset[Any]):
    """Data set with an item that raises as Ctrl-C does."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, row: int) -> Any:
        raise KeyboardInterrupt


def interrupting(_: Any) -> Any:
    raise KeyboardInterrupt


class InterruptedLoss(nn.CrossEntropyLoss):
    """Loss that raises as Ctrl-C does, once it has been tried out."""

    ready = False

    def forward(self, outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return interrupting(self) if self.ready else super().forward(outputs, target)


@pytest.mark.parametrize("place", ["data set", "item", "loss"])
def test_ctrl_c_is_the_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """In a process of its own; at a SuperNode a record may decide whether the app raises it."""
    dataset = {"data set": interrupting, "item": lambda _: Interrupted()}.get(place, records)
    loss = InterruptedLoss()
    handler = private(tmp_path, dataset, loss=loss, batch_size=N)
    if place == "loss":
        answer(handler, request())  # a first round also tries out made-up rows
        loss.ready = True
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        answer(handler, request(2))
    monkeypatch.setattr(signal, "getsignal", lambda _: lambda *_: None)
    try:
        reply = answer(handler, request(3))
    except KeyboardInterrupt:
        pytest.fail("a record can leave its request without a reply")
    assert not reply.has_error()
    # One item takes no others with it.
    assert ("the data set cannot be read" in caplog.text) == (place == "data set")


@pytest.mark.slow
def test_the_client_of_the_page_answers_in_a_clean_folder(tmp_path: Path) -> None:
    """Beside files of a user that have the names of our packages."""
    page = (ROOT / "docs" / "how-to" / "library.md").read_text()
    (block,) = re.findall(r'```python title="private_client_app\.py"\n(.*?)```', page, re.S)
    for name in ("client_app.py", "server_app.py", "strategies.py"):
        (tmp_path / name).write_text("raise RuntimeError")
    client = """
private.create_ledger("/tmp/ledgers/records.sqlite", runs=10)
from flwr.app import *
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
content = {"a": ArrayRecord(model().state_dict()), "c": ConfigRecord({"server-round": 1})}
reply = app(Message(RecordDict(content), 1, "train"), Context(1, 1, {}, RecordDict(), {}))
assert not reply.has_error() and len(reply.content["a"]) == 4
"""
    code = (block + client).replace("/tmp/ledgers", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# --- the ledger -----------------------------------------------------------------------------------


def client(kind: str, path: Path) -> ChargedUpdates:
    if kind == "records":
        return private(path)
    return PrivateUpdates(path / "ledger.sqlite", epsilon=EPSILON, delta=DELTA, rounds=ROUNDS)


@pytest.mark.parametrize("runs", [1, 2, 5, 20])
@pytest.mark.parametrize("kind", ["records", "updates"])
def test_a_ledger_admits_the_runs_that_it_was_made_for(
    tmp_path: Path, kind: str, runs: int
) -> None:
    """Whole runs, at less than their sum from two on; the next is declined by name."""
    handler = client(kind, tmp_path)
    (tmp_path / "ledger.sqlite").unlink(missing_ok=True)
    epsilon, delta = handler.create_ledger(tmp_path / "ledger.sqlite", runs)
    assert epsilon <= runs * EPSILON and (epsilon < runs * EPSILON) == (runs > 1)
    assert delta == pytest.approx(runs * DELTA)
    with contextlib.closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        for number in range(runs + 1):
            terms = handler._terms.updated(run_id=str(number))
            _, charged = handler._plan(ledger, terms)
            priced = charged.at(ledger.account().order) if ledger.account().order else charged
            if number == runs:
                with pytest.raises(Declined, match="does not fit into the remaining budget: the"):
                    ledger.account().check_fits(priced, (math.inf, math.inf))
                return
            ledger.account().check_fits(priced, (math.inf, math.inf))
            with ledger._current():
                ledger._append("plan", priced.entry(str(number)))


def test_the_promise_of_a_ledger_covers_all_its_runs_together(tmp_path: Path) -> None:
    """Five runs' steps as one mechanism cost no more than the promise, by the PLD."""
    handler = private(tmp_path)
    (tmp_path / "ledger.sqlite").unlink()
    epsilon, delta = handler.create_ledger(tmp_path / "ledger.sqlite", 5)
    z = calibrate([Steps(BATCH / N, STEPS * ROUNDS)], EPSILON, DELTA)
    together = epsilon_of(event_of([Steps(BATCH / N, 5 * STEPS * ROUNDS)], z), delta)
    assert together <= epsilon
    assert together > epsilon / 3


def test_a_promise_of_many_runs_is_one(tmp_path: Path) -> None:
    """Of an ε that is not negative, and a δ below 1."""
    few = PrivateUpdates(tmp_path / "l", epsilon=0.01, delta=0.01, rounds=1)
    try:
        epsilon, delta = few.create_ledger(tmp_path / "few.sqlite", 60)
    except LedgerError:
        pytest.fail("sixty runs of δ = 0.01 have a promise")
    assert epsilon >= 0 and delta == pytest.approx(0.6)
    many = PrivateUpdates(tmp_path / "l", epsilon=1.0, delta=0.25, rounds=1)
    with pytest.raises(LedgerError, match="fewer runs, or a smaller delta"):
        many.create_ledger(tmp_path / "many.sqlite", 4)
    assert not (tmp_path / "many.sqlite").exists()


def test_a_missing_ledger_names_the_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handler = private(tmp_path)
    (tmp_path / "ledger.sqlite").unlink()
    assert answer(handler, request()).error.code == wire.FAILED
    assert "PrivateRecords(…).create_ledger(path, runs=10)" in caplog.text
    with pytest.raises(LedgerError, match="at least one run"):
        handler.create_ledger(tmp_path / "ledger.sqlite", 0)


def test_a_spent_sum_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A ledger made by hand, whose δ admits one run alone."""
    Ledger.create(tmp_path / "ledger.sqlite", 3 * EPSILON, DELTA).close()
    handler = private(tmp_path)
    answer(handler, request())
    TaskIdentity.run_id = 2
    assert answer(handler, request()).error.code == wire.DECLINED
    assert "the sum of δ of the charged runs and this one is above the cap" in caplog.text
    assert "the sum of ε" not in caplog.text


@pytest.mark.parametrize("size", [5, 7])
def test_an_update_of_another_size_moves_no_model(size: int) -> None:
    arrays = ArrayRecord({"w": Array(np.zeros((2, 3), np.float32))})
    after = moved(arrays, np.ones(6, np.float32), frozenset(arrays))
    assert after["w"].numpy().tolist() == [[1.0] * 3] * 2
    with pytest.raises(WireError, match="different sizes"):
        moved(arrays, np.ones(size, np.float32), frozenset(arrays))
