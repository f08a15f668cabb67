"""Clipped sums of per-record gradients, by the fastest way a model allows.

Every engine computes the same thing: Σⱼ gⱼ · min(1, C/‖gⱼ‖) over the records of a batch, where gⱼ
is the gradient of record j's own loss. A record whose gradient is not finite contributes zero,
alone. They agree with Opacus' hooks to 1e-5 (``tests/client_app/test_engines.py``).
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from hdpfl_flower.losses import output_gradient, total_loss
from hdpfl_flower.task import Task

_BLOCK = 1024
"""Squares that are added one after another, in eight lanes or more: an error of at most
128 · 2⁻²⁴ of their sum, 4e-6 of the norm."""


class Engine(ABC):
    """A model whose trainable parameters are views of one vector.

    Attributes:
        theta: the parameters, float32, shape ``(d,)``; write to it to set them.
        likes_equal_batches: whether a batch of a new size costs extra.
    """

    likes_equal_batches: ClassVar[bool] = True

    def __init__(self, model: nn.Module, task: Task, device: torch.device) -> None:
        """Move ``model`` to ``device`` and make its parameters views of ``theta``."""
        self.model, self.task = model.to(device).train(), task
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        self.theta = torch.cat([p.detach().reshape(-1) for _, p in named])
        self.parameters: dict[str, torch.Tensor] = {}
        start = 0
        for name, parameter in named:
            view = self.theta[start : start + parameter.numel()].view_as(parameter)
            parameter.data = view
            self.parameters[name] = view
            start += parameter.numel()

    @abstractmethod
    def add_clipped_sum(
        self, total: torch.Tensor, x: torch.Tensor, y: torch.Tensor, count: int, clip_norm: float
    ) -> None:
        """Add the batch's clipped gradient sum to ``total``.

        Args:
            total: float32, shape ``(d,)``; changed in place.
            x: features, shape ``(b, *input_shape)``, b ≥ 1.
            y: targets, shape ``(b,)``.
            count: records that count; the rows after them only fill the batch up.
            clip_norm: C, the bound on each record's l2 norm.

        Guarantees:
            Adding or removing one record changes the result by at most C·(1 + 1e-5) in l2 norm,
            whatever its values (NaN and infinities included).
        """


class LinearEngine(Engine):
    """Closed form for one linear layer: gⱼ = rⱼ ⊗ [xⱼ, 1], so ‖gⱼ‖² = ‖rⱼ‖²·(‖xⱼ‖² + 1).

    r is the gradient of the loss in the layer's outputs (Goodfellow 2015, arXiv:1510.01799).
    """

    likes_equal_batches = False

    def __init__(self, model: nn.Module, task: Task, device: torch.device) -> None:
        """Take a model for which :func:`is_linear` holds."""
        super().__init__(model, task, device)
        self._weight, self._bias = self.parameters.values()

    def add_clipped_sum(
        self, total: torch.Tensor, x: torch.Tensor, y: torch.Tensor, count: int, clip_norm: float
    ) -> None:
        """See :meth:`Engine.add_clipped_sum`."""
        x = x.flatten(1)
        residual = output_gradient(self.task, torch.addmm(self._bias, x, self._weight.t()), y)
        squared_norm = outer_squared_norms(residual, x, bias=True)
        finite, factor = clip_factor(squared_norm, count, clip_norm)
        if not bool(finite.all()):
            residual = torch.where(finite.unsqueeze(1), residual, 0.0)
            x = torch.where(finite.unsqueeze(1), x, 0.0)
        residual = residual * factor.unsqueeze(1)
        size = self._weight.numel()
        total[:size].view_as(self._weight).addmm_(residual.t(), x)
        total[size:] += residual.sum(0)


class VmapEngine(Engine):
    """Per-record gradients by ``torch.func``: any model without state across records."""

    def __init__(self, model: nn.Module, task: Task, device: torch.device) -> None:
        """Prepare the vectorised gradient of one record's loss."""
        super().__init__(model, task, device)

        def loss(
            parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
        ) -> torch.Tensor:
            outputs = functional_call(self.model, parameters, (x.unsqueeze(0),))
            return total_loss(task, outputs, y.unsqueeze(0))

        self._gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    def add_clipped_sum(
        self, total: torch.Tensor, x: torch.Tensor, y: torch.Tensor, count: int, clip_norm: float
    ) -> None:
        """See :meth:`Engine.add_clipped_sum`."""
        gradients = self._gradients(self.parameters, x, y)
        _add_clipped(total, list(gradients.values()), count, clip_norm)


class OpacusEngine(Engine):
    """Per-record gradients by Opacus' hooks, for layers that ``torch.func`` cannot batch."""

    def __init__(self, model: nn.Module, task: Task, device: torch.device) -> None:
        """Wrap ``model``; its parameters stay views of ``theta``."""
        from opacus import GradSampleModule

        super().__init__(model, task, device)
        self._hooked = GradSampleModule(self.model, batch_first=True, loss_reduction="sum")

    def add_clipped_sum(
        self, total: torch.Tensor, x: torch.Tensor, y: torch.Tensor, count: int, clip_norm: float
    ) -> None:
        """See :meth:`Engine.add_clipped_sum`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of hooks on the first layer
            torch.autograd.backward(total_loss(self.task, self._hooked(x), y))
        trained: list[Any] = [p for p in self.model.parameters() if p.requires_grad]
        gradients = [parameter.grad_sample for parameter in trained]
        for parameter in trained:
            parameter.grad = parameter.grad_sample = None
        if any(len(gradient) != len(x) for gradient in gradients):
            raise RuntimeError("a layer does not see one row a record")
        _add_clipped(total, gradients, count, clip_norm)


def _add_clipped(
    total: torch.Tensor, gradients: list[torch.Tensor], count: int, clip_norm: float
) -> None:
    """Add Σⱼ of the clipped per-record gradients, each given as ``(b, *shape)``."""
    flat = [gradient.flatten(1) for gradient in gradients]
    squared_norm = torch.stack([squared_norms(g) for g in flat]).sum(0)
    finite, factor = clip_factor(squared_norm, count, clip_norm)
    if not bool(finite.all()):  # a factor of 0 would not do: 0 · NaN = NaN
        flat = [torch.where(finite.unsqueeze(1), g, 0.0) for g in flat]
    start = 0
    for g in flat:
        total[start : start + g.shape[1]].addmv_(g.t(), factor)
        start += g.shape[1]


def clip_factor(
    squared_norm: torch.Tensor, count: int, clip_norm: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which gradients are finite, and min(1, C/‖gⱼ‖); each of shape ``(b,)``.

    The factor is 0 for records that are not finite, and for all after the first ``count``.
    """
    finite = torch.isfinite(squared_norm)
    factor = torch.where(finite, (clip_norm * squared_norm.rsqrt()).clamp(max=1.0), 0.0)
    factor[count:] = 0
    return finite, factor


def squared_norms(rows: torch.Tensor) -> torch.Tensor:
    """Return the squared l2 norm of each row, shape ``(b,)``.

    In blocks, and blocks of blocks: torch adds a whole row one after another, and of 10⁷ equal
    squares float32 loses 4e-3, so that a record's gradient passes with more than the bound.
    """
    while rows.shape[1] > _BLOCK:
        whole = rows.shape[1] // _BLOCK * _BLOCK
        blocks = torch.linalg.vector_norm(rows[:, :whole].view(len(rows), -1, _BLOCK), dim=2)
        rest = torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True)
        rows = torch.cat([blocks, rest], dim=1)
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.square()


def outer_squared_norms(delta: torch.Tensor, a: torch.Tensor, bias: bool) -> torch.Tensor:
    """Return ‖δⱼ ⊗ [aⱼ, 1]‖² of each record (without the 1 where there is no bias), rounded up.

    float32 loses squares below 1e-38, which count when they meet a huge one: hence + 1e-34.
    """
    deltas, inputs = squared_norms(delta).add_(1e-34), squared_norms(a)
    return torch.addcmul(deltas, deltas, inputs) if bias else deltas * inputs.add_(1e-34)


def is_linear(model: nn.Module) -> bool:
    """Tell whether ``model`` flattens its input and applies one linear layer with a bias."""
    leaves = [m for m in model.modules() if not list(m.children())]
    *before, last = leaves
    return (
        type(model) is nn.Sequential
        and type(last) is nn.Linear
        and last.bias is not None
        and all(p.requires_grad for p in last.parameters())
        and all(type(m) in (nn.Flatten, nn.Identity) for m in before)
    )


def rehearse(engine: Engine, batch: int) -> None:
    """Run one batch of zeros: whatever fails for want of memory fails before data is touched."""
    x = torch.zeros((batch, *engine.task.input_shape), device=engine.theta.device)
    kind = torch.float32 if engine.task.loss == "squared" else torch.int64
    y = torch.zeros(batch, dtype=kind, device=engine.theta.device)
    engine.add_clipped_sum(torch.zeros_like(engine.theta), x, y, batch, math.inf)
