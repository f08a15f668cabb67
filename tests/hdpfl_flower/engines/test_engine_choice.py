"""Which engine a model gets: the fastest that splits it by records, and none that mixes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hdpfl_flower.engines import engine_choice
from hdpfl_flower.engines.engine_choice import _check_outputs, engine_for, keeps_records_apart
from hdpfl_flower.engines.engines import Engine, LinearEngine, VmapEngine
from hdpfl_flower.engines.ghost_clipping import BookkeepingEngine
from hdpfl_flower.engines.opacus_engine import OpacusEngine
from hdpfl_flower.errors import ModelError
from hdpfl_flower.models.losses import total_loss
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Task
from tests.hdpfl_flower.engines.oracle import (
    ENGINES,
    EVERY_ENGINE,
    GROUP_NORM,
    TASKS,
    TOLERANCE,
    Net,
    clipped_sum,
    draw,
    mutant,
    one_thread,  # noqa: F401
    sum_of,
    unproven,
)

TASK = Task.classification((6,), 3)


def last(task: Task, width: int = 6) -> nn.Module:
    return nn.Linear(width, task.outputs)


# Users' networks, named as `module:function`.


def plain(task: Task) -> nn.Module:
    return Net(lambda m, x: m.last(torch.tanh(m.one(x))), one=nn.Linear(6, 6), last=last(task))


def layer_norm(task: Task) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), last(task))


def convolution(task: Task) -> nn.Module:
    return Net(
        lambda m, x: m.last(m.one(x[:, None])[:, 0]), one=nn.Conv1d(1, 1, 1), last=last(task)
    )


def points(task: Task) -> nn.Module:
    return Net(lambda m, x: m.one(x.reshape(-1, 2)).view(len(x), 3, -1).mean(1), one=last(task, 2))


def tied(task: Task) -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), last(task))
    model[2].weight = model[0].weight
    return model


def attention(task: Task) -> nn.Module:
    return Net(
        lambda m, x: m.last(m.one(*[x.view(-1, 2, 3)] * 3)[0].flatten(1)),
        one=nn.MultiheadAttention(3, 1, batch_first=True),
        last=last(task),
    )


def recurrent(task: Task) -> nn.Module:
    return Net(
        lambda m, x: m.last(m.one(x[:, :, None])[0][:, -1]),
        one=nn.LSTM(1, 6, batch_first=True),
        last=last(task),
    )


def filling(task: Task) -> nn.Module:
    """Writes the batch into a tensor, which ``vmap`` cannot."""
    return Net(
        lambda m, x: m.last(m.one(torch.zeros(x.shape, dtype=x.dtype).copy_(x))),
        one=nn.LayerNorm(6),
        last=last(task),
    )


def branching(task: Task) -> nn.Module:
    """One record of huge features takes the others' layer away."""
    return Net(
        lambda m, x: m.last(m.one(x) if float(x.detach().abs().max()) < 1e9 else x),
        one=nn.LayerNorm(6),
        last=last(task),
    )


def gated(task: Task) -> nn.Module:
    return Net(
        lambda m, x: m.last(m.one(x[:, :, None])[0][:, -1]),
        one=nn.GRU(1, 6, batch_first=True),
        last=last(task),
    )


CHOICE: dict[str, type[Engine] | None] = {
    "plain": BookkeepingEngine,
    "layer_norm": VmapEngine,
    "convolution": VmapEngine,
    "points": VmapEngine,
    "tied": VmapEngine,
    "attention": VmapEngine,
    "recurrent": VmapEngine,
    "filling": OpacusEngine,
    "branching": None,
    "gated": None,
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap of an LSTM
@pytest.mark.parametrize("name", CHOICE)
def test_a_users_own_module_gets_the_fastest_engine_that_can_split_it(name: str) -> None:
    expected = CHOICE[name]
    if expected is None:
        with pytest.raises(ModelError, match="record by record"):
            engine_for(f"{__name__}:{name}", TASK, "auto", "cpu")
        return
    engine = engine_for(f"{__name__}:{name}", TASK, "auto", "cpu")
    assert type(engine) is expected
    x, y = draw(TASK, 5)
    gradients = one_by_one(build_model(f"{__name__}:{name}", TASK, 0), x, y)
    clip_norm = float(gradients.norm(dim=1).median())
    error = sum_of(engine, x, y, clip_norm) - clipped_sum(gradients, clip_norm)
    assert error.norm() <= TOLERANCE * 5 * clip_norm


def one_by_one(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return gradients in float64 from batches of one: some forms here Opacus' hooks get wrong."""
    model.double()
    parameters = list(model.parameters())
    rows = [
        torch.autograd.grad(
            total_loss(TASK, model(x[j : j + 1].double()), y[j : j + 1]), parameters
        )
        for j in range(len(x))
    ]
    return torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("logreg", LinearEngine),
        ("mlp:32", BookkeepingEngine),
        ("cnn", BookkeepingEngine),
        (GROUP_NORM, BookkeepingEngine),
        ("resnet18", BookkeepingEngine),
    ],
)
def test_our_own_models_get_a_fast_engine(spec: str, expected: type[Engine]) -> None:
    assert type(engine_for(spec, TASKS["classes"], "auto", "cpu")) is expected


@pytest.mark.parametrize(("spec", "name"), EVERY_ENGINE)
def test_a_site_may_name_the_engine(spec: str, name: str) -> None:
    assert type(engine_for(spec, TASKS["classes"], name, "cpu")) is ENGINES[name]


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("mlp:32", "linear"),
        (f"{__name__}:layer_norm", "bookkeeping"),
        (f"{__name__}:points", "bookkeeping"),
        (f"{__name__}:points", "opacus"),
        (f"{__name__}:branching", "vmap"),
        (f"{__name__}:recurrent", "opacus"),  # Opacus raises a TypeError
        (f"{__name__}:attention", "opacus"),
        ("mlp:32", "jax"),
    ],
)
def test_a_named_engine_unfit_for_the_model_is_refused_by_name(spec: str, name: str) -> None:
    with pytest.raises(ModelError, match=f"engine '{name}' cannot train model '{spec}' .*'auto'"):
        engine_for(spec, TASK, name, "cpu")


def test_an_engine_is_made_once() -> None:
    made = [engine_for("mlp:32", TASK, "auto", "cpu") for _ in range(2)]
    assert made[0] is made[1]
    assert made[0] is not engine_for("mlp:16", TASK, "auto", "cpu")


# Models that mix records.


def batch_norm(task: Task) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), last(task))


def running_statistics(task: Task) -> nn.Module:
    return nn.Sequential(nn.InstanceNorm1d(6, track_running_stats=True), last(task))


@pytest.mark.parametrize("name", ["batch_norm", "running_statistics"])
@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_batch_statistics_are_refused(name: str, engine: str) -> None:
    with pytest.raises(ModelError, match="mixes the records of a batch"):
        engine_for(f"{__name__}:{name}", TASK, engine, "cpu")


def centred(task: Task) -> nn.Module:
    return Net(lambda m, x: m.last(m.one(x - x.mean(0))), one=nn.Linear(6, 6), last=last(task))


def centred_within(task: Task) -> nn.Module:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        hidden = m.one(x)
        return m.last(torch.tanh(hidden - hidden.mean(0)))  # type: ignore[no-any-return]

    return Net(forward, one=nn.Linear(6, 6), last=last(task))


def scaled(task: Task) -> nn.Module:
    return Net(lambda m, x: m.last(m.one(x) * x.amax(0)), one=nn.Linear(6, 6), last=last(task))


def normed(task: Task) -> nn.Module:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        return m.last(functional.batch_norm(m.one(x), None, None, training=True))  # type: ignore[no-any-return]

    return Net(forward, one=nn.Linear(6, 6), last=last(task))


def cumulative(task: Task) -> nn.Module:
    """As a recurrent layer does that takes records for time steps: only later ones change."""
    return Net(lambda m, x: m.last(m.one(x).cumsum(0)), one=nn.Linear(6, 6), last=last(task))


def cumulative_from_the_end(task: Task) -> nn.Module:
    """Only earlier records change."""
    return Net(
        lambda m, x: m.last(m.one(x).flip(0).cumsum(0).flip(0)),
        one=nn.Linear(6, 6),
        last=last(task),
    )


def centred_in_training(task: Task) -> nn.Module:
    """In the mode that tests, records are apart."""

    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        return m.last(m.one(x - x.sum(0) if m.training else x))  # type: ignore[no-any-return]

    return Net(forward, one=nn.Linear(6, 6), last=last(task))


def cumulative_in_training(task: Task) -> nn.Module:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        hidden = m.drop(m.one(x))
        return m.last(hidden.flip(0).cumsum(0).flip(0) if m.training else hidden)  # type: ignore[no-any-return]

    return Net(forward, one=nn.Linear(6, 6), drop=nn.Dropout(0.1), last=last(task))


def remembering(task: Task) -> nn.Module:
    """Keeps something of the records of every batch for the next one."""

    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        m.memory = getattr(m, "memory", torch.zeros(6)) + x.detach()[0]
        return m.last(m.one(x + m.memory))  # type: ignore[no-any-return]

    return Net(forward, one=nn.Linear(6, 6), last=last(task))


MIXING = [
    "centred",
    "centred_within",
    "scaled",
    "normed",
    "cumulative",
    "cumulative_from_the_end",
    "centred_in_training",
    "cumulative_in_training",
]


def largest_move(engine: Engine) -> float:
    """Return by how much one record moves the clipped sum, in clip norms; without dropout.

    Its masks follow the place, from a generator that every release seeds anew.
    """
    for module in engine.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    x, y = draw(TASK, 6)
    x[0] *= 1e3
    return float((sum_of(engine, x, y, 1e-2) - sum_of(engine, x[1:], y[1:], 1e-2)).norm() / 1e-2)


@pytest.mark.parametrize("name", MIXING)
def test_a_forward_that_mixes_records_gets_them_one_by_one_or_not_at_all(name: str) -> None:
    """The mutants that do not look let one record move the sum by several clip norms."""
    spec = f"{__name__}:{name}"
    assert not keeps_records_apart(build_model(spec, TASK, 0), TASK)
    for engine in ("bookkeeping", "opacus"):
        with pytest.raises(ModelError, match="record by record"):
            engine_for(spec, TASK, engine, "cpu")
        careless = mutant(engine_choice, ("    model.train()\n", "    return True\n"))
        with unproven():
            assert largest_move(careless.engine_for(spec, TASK, engine, "cpu")) > 1.5
    if name == "normed":  # of one record there are no batch statistics
        with pytest.raises(ModelError, match="record by record"):
            engine_for(spec, TASK, "auto", "cpu")
    else:
        assert largest_move(engine_for(spec, TASK, "auto", "cpu")) <= 1 + TOLERANCE


@pytest.mark.parametrize("engine", ["bookkeeping", "opacus"])
@pytest.mark.parametrize(
    "name", ["centred_in_training", "cumulative_in_training", "cumulative_from_the_end"]
)
def test_a_forward_that_mixes_in_training_alone_is_refused(name: str, engine: str) -> None:
    """In the mode that tests it passed, and one record moved the sum by 11 C."""
    with pytest.raises(ModelError, match="record by record"):
        engine_for(f"{__name__}:{name}", TASK, engine, "cpu")


@pytest.mark.parametrize("engine", ["bookkeeping", "opacus"])
def test_a_forward_that_remembers_is_refused(engine: str) -> None:
    with pytest.raises(ModelError, match="record by record"):
        engine_for(f"{__name__}:remembering", TASK, engine, "cpu")


def dropped(task: Task) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), last(task))


def test_dropout_mixes_no_records() -> None:
    model = dropped(TASK)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert keeps_records_apart(model, TASK)
    assert type(engine_for(f"{__name__}:dropped", TASK, "auto", "cpu")) is BookkeepingEngine
    assert torch.equal(torch.get_rng_state(), before)


# Models of the wrong form.


def too_wide(task: Task) -> nn.Module:
    return nn.Linear(6, task.outputs + 1)


def too_narrow(_: Task) -> nn.Module:
    return nn.Linear(5, 3)


@pytest.mark.parametrize(
    ("name", "reason"), [("too_wide", r"return \(b, 3\)"), ("too_narrow", r"\(records, 6\)")]
)
def test_a_model_of_another_shape_is_told_which_one(name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        engine_for(f"{__name__}:{name}", TASK, "auto", "cpu")


# Models that sites would pay for in vain.


def coarse(task: Task) -> nn.Module:
    class Coarse(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    return Coarse(6, task.outputs)


def coarse_within(task: Task) -> nn.Module:
    return nn.Sequential(coarse(Task.classification((6,), 6)), Rounded(6, task.outputs))


class Rounded(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.float())


def lazy(task: Task) -> nn.Module:
    return nn.LazyLinear(task.outputs)


def drawn(task: Task) -> nn.Module:
    """A frozen layer from NumPy's generator: another one at each site."""
    layer = nn.Linear(6, 6).requires_grad_(False)
    layer.weight.copy_(torch.from_numpy(np.random.default_rng().random((6, 6), np.float32)))
    return nn.Sequential(layer, nn.Linear(6, task.outputs))


def seeded(task: Task) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, task.outputs))


def dead(task: Task) -> nn.Module:
    class Dead(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).detach()

    return Dead(6, task.outputs)


def scaled_by_its_batch(task: Task) -> nn.Module:
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward((x - x.mean(0)) / x.std(0))

    return Scaled(6, task.outputs)


def shared_softmax(task: Task) -> nn.Module:
    return nn.Sequential(nn.Linear(6, task.outputs), nn.Softmax(dim=0))


def moving(task: Task) -> nn.Module:
    """A running mean, assigned anew in each forward pass."""

    class Moving(nn.Linear):
        mean: torch.Tensor

        def __init__(self) -> None:
            super().__init__(6, task.outputs)
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return super().forward(x - self.mean)

    return Moving()


def unsplittable(task: Task) -> nn.Module:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.GRU(1, 4, batch_first=True), nn.Linear(4, task.outputs)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.out(self.cell(x.unsqueeze(2))[0][:, -1])
            return outputs

    return Gated()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("coarse", r"returns torch\.bfloat16; return float32"),
        ("coarse_within", "computes in 16 bits, .*; leave out autocast"),
        ("lazy", r"'weight' has no shape yet \(a lazy layer\)"),
        ("drawn", r"'0\.weight' is not trained, and has other numbers each time"),
        ("dead", "no output depends on a trained parameter"),
        ("shared_softmax", r"mixes the records of a batch.*softmax\(dim=0\)"),
        ("moving", "'mean' changes in a forward pass of training"),
        ("scaled_by_its_batch", "record by record; replace .* range over a batch by constants"),
        ("unsplittable", r"record by record; replace .* Its layers: Gated, GRU, Linear"),
    ],
)
def test_an_unlearning_model_is_refused_with_cause_and_remedy(name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        engine_for(f"{__name__}:{name}", TASK, "auto", "cpu")


def test_frozen_layers_of_torchs_generator_are_the_same_at_every_site() -> None:
    assert engine_for(f"{__name__}:seeded", TASK, "auto", "cpu")


@pytest.mark.parametrize("engine", ["auto", "vmap"])
@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_a_device_that_is_missing_is_named_and_no_engine_blamed(engine: str, device: str) -> None:
    with pytest.raises(ModelError, match=r"^'training\.device' is not on this machine"):
        engine_for("logreg", TASK, engine, device)


def test_a_lack_of_memory_is_no_model_that_cannot_be_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Engine, "attempt", full)
    with pytest.raises(torch.OutOfMemoryError):
        engine_for.__wrapped__("logreg", TASK, "auto", "cpu")


def test_a_record_costs_its_products_and_convolutions() -> None:
    images = Task.classification((1, 28, 28), 10)
    assert engine_for("mlp:32", images, "auto", "cpu").operations == 2 * 32 * (784 + 10)
    assert _check_outputs(
        nn.Sequential(nn.Conv2d(1, 4, 5), nn.Flatten(), nn.Linear(4 * 24 * 24, 10)), "", images
    ) == 2 * (4 * 24 * 24 * 25 + 4 * 24 * 24 * 10)
