"""Bookkeeping: norms and sums of every form of layer, and the models that must go elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from hdpfl_flower.engines import ghost_clipping as bookkeeping
from hdpfl_flower.engines import opacus_engine
from hdpfl_flower.engines.engines import rehearse
from hdpfl_flower.engines.ghost_clipping import (
    BookkeepingEngine,
    ghost_norms,
    is_bookable,
    layer_of,
)
from hdpfl_flower.models.task import Task
from tests.hdpfl_flower.engines.oracle import (
    CPU,
    ENGINES,
    TOLERANCE,
    Net,
    clipped_sum,
    draw,
    gradients_of,
    mutant,
    one_thread,  # noqa: F401
    sum_of,
    unproven,
)

TASK = Task.classification((3, 8, 8), 4)
VECTORS = Task.classification((6,), 4)


def train_with(model: nn.Module, task: Task) -> BookkeepingEngine:
    engine = BookkeepingEngine(model, task, CPU)
    rehearse(engine, 2)
    return engine


# Layers.

CONVOLUTIONS: dict[str, Callable[[], nn.Conv2d]] = {
    "gradients": lambda: nn.Conv2d(3, 5, 3, padding=1),
    "gradients, strides and padding that differ": lambda: nn.Conv2d(
        3, 5, (2, 3), stride=(2, 1), padding=(0, 2)
    ),
    "gradients, no bias": lambda: nn.Conv2d(3, 5, 5, bias=False),
    "ghost": lambda: nn.Conv2d(3, 64, 7),
    "ghost, strides and padding that differ": lambda: nn.Conv2d(
        3, 64, (5, 8), stride=(4, 3), padding=(0, 2)
    ),
    "ghost, padding on both sides": lambda: nn.Conv2d(3, 64, 8, stride=4, padding=1),
    "ghost, no bias": lambda: nn.Conv2d(3, 64, 7, bias=False),
}


def check_layer(module: nn.Module, layer: bookkeeping.Layer, a: torch.Tensor) -> None:
    """Norms and weighted sums are those of autograd in float64, record by record."""
    exact = module.double()
    output = exact(a.double())
    delta = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    factor = torch.linspace(0, 1, len(a))
    rows = [
        torch.autograd.grad(exact(a[j : j + 1].double()), list(exact.parameters()), d.unsqueeze(0))
        for j, d in enumerate(delta.double())
    ]
    gradients = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])
    module.float()
    norms = layer.squared_norms(a, delta)
    expected = gradients.square().sum(1)
    assert ((norms - expected).abs() <= TOLERANCE * expected).all()
    sums = torch.cat([part.reshape(-1) for part in layer.weighted_sums(a, delta, factor)])
    expected = factor.double() @ gradients
    assert (sums - expected).norm() <= TOLERANCE * expected.norm()


@pytest.mark.parametrize("form", CONVOLUTIONS)
def test_a_convolution_of_any_form(form: str) -> None:
    module = CONVOLUTIONS[form]()
    layer = layer_of(module)
    assert isinstance(layer, bookkeeping.ConvLayer)
    check_layer(module, layer, draw(TASK, 5)[0])
    assert (layer._weight_gradients is None) == form.startswith("ghost")


@pytest.mark.parametrize(
    "bug",
    [
        ("(module.padding[1],) * 2 + (module.padding[0],) * 2", "(module.padding[0],) * 4"),
        ("module.kernel_size, module.stride", "module.kernel_size, module.stride[::-1]"),
        ("return norms + squared_norms(self._bias_gradients)", "return norms"),
    ],
)
def test_a_ghost_norm_of_other_places_is_found(bug: tuple[str, str]) -> None:
    module = CONVOLUTIONS["ghost, strides and padding that differ"]()
    layer = mutant(bookkeeping, bug).ConvLayer(module)
    with pytest.raises((AssertionError, RuntimeError)):
        check_layer(module, layer, draw(TASK, 5)[0])


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_group_norm_of_any_form(groups: int) -> None:
    module = nn.GroupNorm(groups, 6, eps=0.1)
    layer = layer_of(module)
    assert layer is not None
    check_layer(module, layer, torch.randn(5, 6, 4, 4, generator=torch.Generator().manual_seed(0)))
    forgets_eps = mutant(bookkeeping, (", eps=self.module.eps", "")).GroupNormLayer(module)
    with pytest.raises(AssertionError):
        check_layer(module, forgets_eps, draw(Task.classification((6, 4, 4), 3), 5)[0])


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_of_any_form(bias: bool) -> None:
    module = nn.Linear(6, 5, bias=bias)
    layer = layer_of(module)
    assert layer is not None
    check_layer(module, layer, draw(VECTORS, 5)[0])


# Ghost norms.


def ghosts() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Patches and deltas of 20 records each; in some the terms of Σₜ aₜ ⊗ δₜ cancel."""
    generator = torch.Generator().manual_seed(0)
    patches, deltas = (torch.randn(20, n, 16, generator=generator) for n in (300, 40))
    alternating = deltas[:, :, :1] * (1 - 2 * (torch.arange(16) % 2))
    rounding = 1 + 1e-7 * torch.randn(20, 40, 16, generator=generator)
    return {
        "plain": (patches, deltas),
        "huge": (1e7 * patches, 1e7 * deltas),
        "constant image": (patches[:, :, :1].expand(-1, -1, 16), alternating),
        "almost constant image": (patches[:, :, :1] * rounding[:, :1], alternating * rounding),
        "bright constant image": (3e4 * torch.ones(20, 300, 16), alternating * rounding),
        "zero": (0 * patches, deltas),
        **{
            f"{part} of the terms is left": (
                patches[:, :, :1].expand(-1, -1, 16),
                alternating + part * deltas[:, :, :1],
            )
            for part in (0.012, 0.02, 0.05, 0.1)
        },
    }


def check_ghost(norms: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], case: str) -> None:
    """The norm is that of the sum, or where terms cancel more than hundredfold, more."""
    patches, deltas = ghosts()[case]
    exact = torch.einsum("bnt,bmt->bnm", patches.double(), deltas.double()).norm(dim=(1, 2))
    added = torch.einsum("bnt,bmt->bnm", patches, deltas).double().norm(dim=(1, 2))  # in float32
    lengths = (patches.double().norm(dim=1) * deltas.double().norm(dim=1)).sum(1)
    norm = norms(patches, deltas).double().sqrt()
    assert (norm * (1 + TOLERANCE) >= torch.maximum(exact, added)).all()
    assert (norm <= torch.maximum(exact, lengths / 100) * (1 + TOLERANCE)).all()


@pytest.mark.parametrize("case", ghosts())
def test_a_ghost_norm_is_never_too_small(case: str) -> None:
    check_ghost(ghost_norms, case)


@pytest.mark.parametrize(
    "bug",
    [
        ("patches, flat = patches.double(), flat.double()", "pass"),
        ("torch.maximum((inputs * deltas).sum((1, 2)), floor)", "(inputs * deltas).sum((1, 2))"),
    ],
)
def test_a_ghost_norm_of_float32_or_without_its_floor_is_found(bug: tuple[str, str]) -> None:
    careless = mutant(bookkeeping, bug).ghost_norms
    check_ghost(careless, "plain")
    with pytest.raises(AssertionError):
        for case in ghosts():
            check_ghost(careless, case)


# Models that bookkeeping must not take.


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4))
    model[0].weight.requires_grad_(False)
    return model


def shared() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4))
    model[0].weight = model[1].weight
    return model


def loose_parameter() -> nn.Module:
    model = Net(lambda m, x: m.last(x) * m.scale, last=nn.Linear(6, 4))
    model.scale = nn.Parameter(torch.ones(1))
    return model


@pytest.mark.parametrize(
    "model",
    [
        frozen(),
        shared(),
        loose_parameter(),
        nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)),
        nn.Sequential(nn.Conv2d(3, 3, 3, groups=3)),
        nn.Sequential(nn.Conv2d(3, 3, 3, dilation=2)),
        nn.Sequential(nn.Conv2d(3, 3, 3, padding="same")),
        nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular")),
        nn.Sequential(nn.Conv1d(3, 3, 3)),
        nn.Sequential(nn.ConvTranspose2d(3, 3, 3)),
        nn.MultiheadAttention(4, 2),
    ],
    ids=str,
)
def test_parameters_that_it_does_not_know_are_not_taken(model: nn.Module) -> None:
    assert not is_bookable(model)


def used_in_place(m: Net, x: torch.Tensor) -> torch.Tensor:
    hidden = m.one(x) + 0
    outputs = m.last(hidden)
    hidden.mul_(2)  # autograd does not mind, since it never needs the input of a frozen layer
    return outputs  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda m, x: m.last(m.one(torch.relu(m.one(x)))), "more than once"),
        (lambda m, x: m.last(x), "not used"),
        (used_in_place, "in place"),
        (lambda m, x: m.last(m.one(x.repeat(2, 1))[: len(x)]), "one row a record"),
        (lambda m, x: m.last(m.one(x.repeat(2, 1))).view(len(x), 2, 4).mean(1), "one row a record"),
        (lambda m, x: m.last(m.one(x.unsqueeze(1).expand(-1, 3, -1)).mean(1)), None),
        (lambda m, x: m.last(m.one(x.unsqueeze(1).expand(-1, 6, -1)).mean(1)), None),
    ],
)
def test_uses_that_a_forward_hides_end_at_the_rehearsal(
    forward: Callable[[Net, torch.Tensor], torch.Tensor], reason: str | None
) -> None:
    model = Net(forward, one=nn.Linear(6, 6), last=nn.Linear(6, 4))
    assert is_bookable(model)
    with pytest.raises(RuntimeError, match=reason):
        train_with(model, VECTORS)


@pytest.mark.parametrize("engine", ["bookkeeping", "opacus"])
def test_a_record_of_several_rows_would_pass_with_several_bounds(engine: str) -> None:
    """The mutants without that check: a network on points clips each point, not the record."""

    def pointwise(m: Net, x: torch.Tensor) -> torch.Tensor:
        rows = m.last(torch.tanh(m.one(x.view(-1, 6))))
        return rows.view(len(x), -1, 4).mean(1)  # type: ignore[no-any-return]

    task = Task.classification((5, 6), 4)
    model = Net(pointwise, one=nn.Linear(6, 6), last=nn.Linear(6, 4))
    if engine == "bookkeeping":
        bug = "if not len(inputs[0]) == len(output) == self._count:", "if False:"
        engine_class = mutant(bookkeeping, bug).BookkeepingEngine
    else:
        bug = "any(len(gradient) != len(x) for gradient in gradients)", "False"
        engine_class = mutant(opacus_engine, bug).OpacusEngine
    with pytest.raises(RuntimeError, match="one row a record"):
        rehearse(ENGINES[engine](copy.deepcopy(model), task, CPU), 2)
    made, (x, y) = engine_class(model, task, CPU), draw(task, 6)
    with unproven():
        moved = sum_of(made, x, y, 0.01) - sum_of(made, x[1:], y[1:], 0.01)
    assert moved.norm() > 2 * 0.01


def test_the_mutant_that_keeps_a_changed_input_gives_another_sum() -> None:
    model = Net(used_in_place, one=nn.Linear(6, 6), last=nn.Linear(6, 4))
    x, y = draw(VECTORS, 5)
    expected = gradients_of(
        Net(lambda m, x: m.last(m.one(x)), one=model.one, last=model.last), VECTORS, x, y
    )
    careless = mutant(bookkeeping, ("a._version != version", "False"))
    engine = careless.BookkeepingEngine(model, VECTORS, CPU)
    error = sum_of(engine, x, y, 0.1) - clipped_sum(expected, 0.1)
    assert error.norm() > 100 * TOLERANCE


def test_a_relu_in_place_after_a_layer_that_is_not_the_first() -> None:
    model = nn.Sequential(
        nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.ReLU(inplace=True), nn.Linear(5, 4)
    )
    x, y = draw(VECTORS, 5)
    expected = clipped_sum(gradients_of(model, VECTORS, x, y), 0.5)
    error = sum_of(train_with(model, VECTORS), x, y, 0.5) - expected
    assert error.norm() <= TOLERANCE * expected.norm()
