"""The parts of the engines, each by its own closed form on a few numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from hdpfl_flower.engines import engines
from hdpfl_flower.engines.engines import (
    Engine,
    LinearEngine,
    VmapEngine,
    clip_factor,
    is_linear,
    outer_squared_norms,
    rehearse,
    squared_norms,
)
from hdpfl_flower.engines.opacus_engine import OpacusEngine
from hdpfl_flower.models import row_batches as rows
from hdpfl_flower.models.task import Task
from tests.hdpfl_flower.engines.oracle import CPU, Net, one_thread  # noqa: F401

BINARY, NUMBER = Task.classification((3,), 2), Task.regression((3,))


class Noting(Engine):
    """An engine that notes what it is asked for."""

    def __init__(self, model: nn.Module | None = None, task: Task = NUMBER) -> None:
        super().__init__(model or nn.Linear(3, 1), task, CPU)
        self.added: list[tuple[list[float], list[float], int, float]] = []
        self.tried: list[Any] = []

    def _add(
        self, total: torch.Tensor, x: torch.Tensor, y: torch.Tensor, count: int, clip_norm: float
    ) -> None:
        assert total is self.total
        assert x.data_ptr() % 64 == y.data_ptr() % 64 == 0
        self.added.append((x[:, 0].tolist(), y.tolist(), count, clip_norm))

    def _parts(self, x: torch.Tensor, y: torch.Tensor) -> Sequence[torch.Tensor]:
        dropped = [m.p for m in self.model.modules() if isinstance(m, nn.Dropout)]
        self.tried.append((self.theta.clone(), x, y, dropped))
        return [x, y]

    total: torch.Tensor


def prove(engine: Engine, granule: int, *sizes: int) -> list[tuple[int, int]]:
    """Let the rows of ``engine`` be proven at these sizes; return what it asks the proof for."""
    asked: list[tuple[int, int]] = []

    def answer(wanted: int, largest: int) -> int:
        asked.append((wanted, largest))
        return granule

    engine.proof.granule = answer  # type: ignore[method-assign]
    engine.proof.holds = lambda given, size: given == granule and size in sizes  # type: ignore[method-assign]
    return asked


# Batches.


@pytest.mark.parametrize(
    ("given", "count", "sizes", "expected"),
    [
        (8, 8, (4, 8), [(range(8), 8)]),
        (8, 8, (4,), [(range(4), 4), (range(4, 8), 4)]),
        (12, 12, (4, 8), [(range(4), 4), (range(4, 8), 4), (range(8, 12), 4)]),
        (11, 11, (4,), [(range(4), 4), (range(4, 8), 4), ((8, 9, 10, 0), 3)]),
        (11, 11, (4, 12), [((*range(11), 0), 11)]),
        (10, 2, (4, 12), [((*range(10), 0, 0), 2)]),
        (12, 9, (4,), [(range(4), 4), (range(4, 8), 4), (range(8, 12), 1)]),
        (12, 8, (4,), [(range(4), 4), (range(4, 8), 4)]),
        (12, 5, (4,), [(range(4), 4), (range(4, 8), 1)]),
        (12, 2, (4,), [(range(4), 2)]),
        (9, 9, (4, 12), [((*range(9), 0, 0, 0), 9)]),
        (1, 1, (4,), [((0, 0, 0, 0), 1)]),
        (3, 0, (4,), []),
    ],
)
def test_a_batch_is_filled_with_its_first_row_and_cut_into_proven_ones(
    given: int, count: int, sizes: tuple[int, ...], expected: list[tuple[Sequence[int], int]]
) -> None:
    """Rows after the count are in no batch of their own: their number would be negative there."""
    engine = Noting()
    engine.total = torch.zeros(4)
    prove(engine, 4, *sizes)
    x = torch.arange(given * 3.0).view(given, 3) / 3
    engine.add_clipped_sum(engine.total, x, torch.arange(given), count, 0.5)
    assert engine.added == [([*map(float, some)], [*some], many, 0.5) for some, many in expected]


def test_an_engine_asks_for_the_rows_that_were_settled() -> None:
    engine = Noting()
    engine.total, asked = torch.zeros(4), prove(engine, 4, 4)
    engine.add_clipped_sum(engine.total, torch.zeros(4, 3), torch.zeros(4), 4, 1.0)
    assert engine.settle(16, 64) == 4
    engine.add_clipped_sum(engine.total, torch.zeros(4, 3), torch.zeros(4), 4, 1.0)
    assert asked == [(4, 256), (16, 64), (16, 64)]


@pytest.mark.parametrize("operations", [2**31, 2**31 + 1])
def test_costly_records_are_computed_one_by_one(operations: int) -> None:
    """Without a trial of rows, which one row needs not; the rehearsal takes one of them, too."""
    engine = Noting()
    engine.total, engine.operations = torch.zeros(4), operations
    asked, alone = prove(engine, 4, 4, 8), operations > 2**31
    engine.settle(16, 64)
    assert asked == [(1, 1) if alone else (16, 64)]
    counts: list[int] = []
    engine.add_clipped_sum = lambda *given, raising: counts.append(given[3])  # type: ignore[method-assign]
    rehearse(engine, 8)
    assert counts == ([1, 1] if alone else [8, 2])


def test_unsettled_rows_take_256_mb_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """2²⁶ float32; but four rows at least, and no more than 256."""

    def wanted(width: int) -> tuple[int, int]:
        return Noting(nn.Linear(width, 1))._wanted

    assert wanted(2**19 - 1) == (4, 128)
    assert wanted(2**19) == (4, 127)
    monkeypatch.setattr(engines, "_NUMBERS", 2**10)
    assert [wanted(width) for width in (3, 127, 255, 256)] == [(4, 256), (4, 8), (4, 4), (4, 4)]


@pytest.mark.parametrize("offset", [*range(0, 34), 48, 64])
def test_rows_are_placed_at_multiples_of_64_bytes(offset: int) -> None:
    whole = torch.arange(200.0)
    assert whole.data_ptr() % 64 == 0
    some = whole[offset : offset + 12].view(4, 3)
    placed = engines._placed(some)
    assert placed.data_ptr() % 64 == 0
    assert torch.equal(placed, some)
    assert (placed.data_ptr() == some.data_ptr()) == (offset % 16 == 0), "copied in vain"
    assert engines._placed(whole.view(-1, 2)[::2, :1]).is_contiguous()


# Trials.


def test_a_trial_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[object] = []
    monkeypatch.setattr(engines, "pool", lambda *given: pools.append(given) or rows.pool(*given))
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 1), nn.Dropout(0.25))
    engine = Noting(model)
    start, some = engine.theta.clone(), torch.tensor([5, 1, 77])
    drawn = rows.draws(start)
    for kind in (rows.WILD, rows.TYPICAL):
        x, y = engine._trial(kind, some)
        assert [m.p for m in model if isinstance(m, nn.Dropout)] == [0.5, 0.25]
        assert torch.equal(engine.theta, start)
        theta, *seen, dropped = engine.tried.pop()
        assert torch.equal(theta, drawn[kind])
        assert seen[0] is x
        assert seen[1] is y
        assert dropped == [0.0, 0.0]
        features, targets = rows.pool(model, NUMBER)
        assert torch.equal(x, features[some])
        assert torch.equal(y, targets[some])
    assert pools == [(model, NUMBER)], "the pool is made once"


def test_a_trial_that_fails_leaves_no_trace_either(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 1))
    engine = Noting(model)
    start = engine.theta.clone()

    def fail(*_: object) -> Sequence[torch.Tensor]:
        raise RuntimeError("no memory")

    monkeypatch.setattr(engine, "_parts", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        engine._trial(rows.TYPICAL, torch.tensor([0]))
    assert torch.equal(engine.theta, start)
    assert model[1].p == 0.5


# Engines.


def half_frozen() -> nn.Module:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].weight.requires_grad_(False)
    return model


def one_by_one(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Each record's gradient in float64: half the squared error, by autograd alone."""
    model = model.double()
    found = []
    for one, target in zip(x.double(), y.double(), strict=True):
        loss = (model(one[None])[0, 0] - target).square() / 2
        trained = [p for p in model.parameters() if p.requires_grad]
        found.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, trained)]))
    return torch.stack(found)


@pytest.mark.parametrize("made", [VmapEngine, OpacusEngine])
def test_a_parameter_that_is_not_trained_is_in_no_gradient(made: type[Engine]) -> None:
    engine = made(half_frozen(), NUMBER, CPU)
    assert engine.theta.shape == (4 + 4 + 1,)
    x, y = torch.randn(8, 3), torch.randn(8)
    gradients = one_by_one(half_frozen(), x, y)
    clip_norm = float(gradients.norm(dim=1).median())
    factors = (clip_norm / gradients.norm(dim=1)).clamp(max=1)
    assert 0 < (factors < 1).sum() < 8
    for _ in range(2):  # nothing is left of the sum before
        total = torch.zeros_like(engine.theta)
        engine.add_clipped_sum(total, x, y, 8, clip_norm)
        assert (total - factors @ gradients).norm() <= 1e-6 * clip_norm * 8
        assert all(p.grad is None for p in engine.model.parameters())
        assert all(getattr(p, "grad_sample", None) is None for p in engine.model.parameters())


@pytest.mark.parametrize("made", [LinearEngine, VmapEngine, OpacusEngine])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 2, 2)])
def test_a_rows_parts_are_as_computed(made: type[Engine], shape: tuple[int, ...]) -> None:
    """Of (w·x + b − y)²/2 the residual is r = w·x + b − y, the squared norm r²·(‖x‖² + 1)."""
    task = Task.regression(shape)
    engine = made(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1)), task, CPU)
    x, y = torch.randn(5, *shape), torch.randn(5)
    flat = x.flatten(1)
    outputs = flat @ engine.theta[:-1] + engine.theta[-1]
    residual = outputs - y
    parts = [part.detach() for part in engine._parts(x, y)]
    gradient = [] if made is LinearEngine else [residual[:, None] * flat]
    expected = [outputs[:, None], *gradient, residual[:, None],
                (residual.square() * (flat.square().sum(1) + 1))[:, None]]  # fmt: skip
    assert [part.shape for part in parts] == [part.shape for part in expected]
    for part, right in zip(parts, expected, strict=True):
        torch.testing.assert_close(part, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("last", [nn.Linear(2, 1), nn.Linear(6, 1)])
def test_a_layer_that_does_not_see_one_row_a_record_is_refused(last: nn.Linear) -> None:
    """Both layers, or one of two: its gradients are not the records'."""

    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = m.last(m.first(x.view(-1, 2)).view(-1, last.in_features))
        return outputs.view(len(x), -1).sum(1, keepdim=True)

    model = Net(forward, first=nn.Linear(2, 2), last=last)
    engine = OpacusEngine(model, Task.regression((6,)), CPU)
    with pytest.raises(RuntimeError, match="one row a record"):
        engine._parts(torch.randn(4, 6), torch.randn(4))


# Norms and factors.


def test_the_factor_is_c_over_the_norm_and_1_at_most() -> None:
    squares = torch.tensor([0.0, 1e-40, 0.25, 1.0, 4.0, 1e30, math.inf, math.nan, 9.0, 0.0])
    finite, factor = clip_factor(squares, 9, 0.5)
    assert finite.tolist() == [True] * 6 + [False] * 2 + [True] * 2
    expected = [1.0, 1.0, 1.0, 0.5, 0.25, 5e-16, 0.0, 0.0, 0.5 / 3, 0.0]
    assert factor.tolist() == pytest.approx(expected, rel=1e-6)
    assert factor[:3].tolist() == [1.0] * 3
    assert clip_factor(squares, 10, 0.5)[1][9] == 1
    assert not clip_factor(squares, 0, 0.5)[1].any()
    assert clip_factor(squares, 10, 3.0)[1].tolist()[3:5] == [1.0, 1.0]
    assert clip_factor(squares, 2, math.inf)[1].tolist() == [1.0, 1.0] + [0.0] * 8


def test_at_most_1024_squares_are_added_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the error of a norm is computed from; and all squares are added, once."""
    norm, widths = torch.linalg.vector_norm, []

    def note(x: torch.Tensor, dim: int, **more: Any) -> torch.Tensor:
        widths.append(x.shape[dim])
        return norm(x, dim=dim, **more)

    monkeypatch.setattr(torch.linalg, "vector_norm", note)
    for size in (0, 1, 1023, 1024, 1025, 2047, 2048, 2049, 10_000, 2**20, 2**20 + 5):
        found = squared_norms(torch.full((3, size), 2.0))
        assert found.shape == (3,)
        torch.testing.assert_close(found, torch.full((3,), 4.0 * size), rtol=1e-5, atol=0)
        one = torch.zeros(2, size)
        if size:
            one[0, 0], one[1, -1] = 3, 5
            assert squared_norms(one).tolist() == pytest.approx([9, 25])
    assert max(widths) == 1024


def test_tiny_squares_beside_huge_ones_are_rounded_up_by_1e_34() -> None:
    """(‖δ‖² + 1e-34)·(‖a‖² + 1), or without a bias (‖δ‖² + 1e-34)·(‖a‖² + 1e-34)."""
    none, a = torch.zeros(2, 4), torch.tensor([[1.5e17, 0, 0, 2e17], [1.0, 2.0, 2.0, 4.0]])
    found = outer_squared_norms(none, a, bias=True)
    assert found.tolist() == pytest.approx([6.25, 26e-34], rel=1e-5)
    found = outer_squared_norms(none, a, bias=False)
    assert found.tolist() == pytest.approx([6.25, 25e-34], rel=1e-5)
    delta = torch.tensor([[3e16, 0, 0, 0], [3.0, 4.0, 0.0, 0.0]])
    assert outer_squared_norms(delta, none, bias=False).tolist() == pytest.approx(
        [9e-2, 25e-34], rel=1e-5
    )
    assert outer_squared_norms(delta, none, bias=True).tolist() == pytest.approx([9e32, 25])
    assert outer_squared_norms(delta[1:], a[1:], bias=True).tolist() == pytest.approx([650])
    assert outer_squared_norms(delta[1:], a[1:], bias=False).tolist() == pytest.approx([625])


# Which models, and which batch is rehearsed.


class Own(nn.Linear):
    """A layer whose forward may be anything."""


def frozen(which: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 1))
    getattr(model[0], which).requires_grad_(False)
    return model


def test_a_linear_model_is_one_linear_layer_after_flattening() -> None:
    for layers in (
        [],
        [nn.Flatten()],
        [nn.Identity(), nn.Flatten()],
        [nn.Sequential(nn.Flatten())],
    ):
        assert is_linear(nn.Sequential(*layers, nn.Linear(3, 1)))
    one = nn.Linear(3, 1)
    for other in (
        one,
        Net(lambda m, x: m.one(x).square(), one=one),
        nn.Sequential(one, nn.Flatten()),
        nn.Sequential(nn.Flatten()),
        nn.Sequential(Own(3, 1)),
        nn.Sequential(nn.Linear(3, 1, bias=False)),
        nn.Sequential(nn.ReLU(), one),
        nn.Sequential(nn.Flatten(), nn.ReLU(), one),
        nn.Sequential(nn.Flatten(), nn.Linear(3, 3), one),
        frozen("weight"),
        frozen("bias"),
    ):
        assert not is_linear(other)


@pytest.mark.parametrize(("task", "kind"), [(NUMBER, torch.float32), (BINARY, torch.int64)])
def test_a_rehearsal_is_a_batch_of_zeros_and_two_rows_of_ones(
    task: Task, kind: torch.dtype
) -> None:
    engine, asked = Noting(task=task), []
    engine.add_clipped_sum = lambda *given, raising: asked.append(given)  # type: ignore[method-assign]
    rehearse(engine, 7)
    (total, x, y, count, clip_norm), (_, ones, *_, few, _) = asked
    assert ones.all() and (len(ones), few) == (2, 2)
    for given, shape, dtype in ((total, (4,), torch.float32), (x, (7, 3), torch.float32),
                                (y, (7,), kind)):  # fmt: skip
        assert (given.shape, given.dtype) == (shape, dtype)
        assert not given.any()
    assert (count, clip_norm) == (7, math.inf)
