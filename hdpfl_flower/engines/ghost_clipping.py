"""Ghost clipping: clipped sums without a gradient per record.

Reference: Bu et al., Differentially Private Optimization on Large Model at Small Cost (ICML 2023,
arXiv:2210.00038): the per-record norms come from each layer's input a and output gradient δ (the
"ghost norm" where that is smaller than the gradient itself), and the same a and δ, weighted by the
clip factors, yield the clipped sum: no second backward pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from hdpfl_flower.engines.engines import (
    Engine,
    all_known,
    clip_factor,
    outer_squared_norms,
    squared_norms,
)
from hdpfl_flower.errors import ModelError
from hdpfl_flower.models.losses import output_gradient
from hdpfl_flower.models.task import Task

_MAX_CANCELLATION = 1e4
"""A ghost norm² is never taken below (Σₜ‖aₜ‖‖δₜ‖)² over this: a hundredfold cancellation of the
terms leaves float32 sums with errors of 1e-5 of their norm, a greater one with worse."""


class Layer(ABC):
    """A layer with parameters, between norms and clipped sum of a batch."""

    def __init__(self, module: Any) -> None:
        """Take the module that the layer stands for."""
        self.module = module

    def kept(self) -> list[torch.Tensor]:
        """Return :meth:`squared_norms`' stored factors of the batch, a row each."""
        return []

    @abstractmethod
    def squared_norms(self, a: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Return each record's squared gradient norm in this layer, shape ``(b,)``.

        Args:
            a: the layer's input, shape ``(b, …)``.
            delta: the gradient of each record's loss in the layer's output, shape ``(b, …)``.
        """

    @abstractmethod
    def weighted_sums(
        self, a: torch.Tensor, delta: torch.Tensor, factor: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return Σⱼ factorⱼ · gⱼ for each parameter, in the module's order."""


class LinearLayer(Layer):
    """A linear layer on vectors: gⱼ = δⱼ ⊗ [aⱼ, 1]."""

    def squared_norms(self, a: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Return ‖δⱼ‖²·(‖aⱼ‖² + 1): a rank-one gradient."""
        return outer_squared_norms(delta, a, self.module.bias is not None)

    def weighted_sums(
        self, a: torch.Tensor, delta: torch.Tensor, factor: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return one product: (factor · δ)ᵀ a."""
        weighted = delta * factor.unsqueeze(1)
        sums = [weighted.t() @ a]
        return sums if self.module.bias is None else [*sums, weighted.sum(0)]


class ConvLayer(Layer):
    """Two-dimensional convolution: small gradients per record, else ghost norms."""

    def kept(self) -> list[torch.Tensor]:
        """Return the gradients per record, where :meth:`squared_norms` needed them."""
        both = self._weight_gradients, self._bias_gradients
        return [gradients for gradients in both if gradients is not None]

    def squared_norms(self, a: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Return ghost norms, or norms of the gradients themselves where these are smaller."""
        module, flat = self.module, delta.flatten(2)
        self._weight_gradients, self._bias_gradients = None, None
        # The ghost norm takes (places)² products a record, the gradient itself one number a weight.
        if 16 * flat.shape[2] ** 2 < module.weight.numel():  # where the ghost is the cheaper one
            norms = ghost_norms(self._patches(a), flat)
        else:
            self._weight_gradients = self._gradient_of_each(a, delta)
            norms = squared_norms(self._weight_gradients)
        if module.bias is None:
            return norms
        self._bias_gradients = flat.sum(2)
        return norms + squared_norms(self._bias_gradients)

    def weighted_sums(
        self, a: torch.Tensor, delta: torch.Tensor, factor: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return one backward pass with weighted δ, or a product with the stored gradients."""
        if self._weight_gradients is None:
            sums = [self._weight_gradient(a, delta * factor.view(-1, 1, 1, 1), groups=1)]
        else:
            sums = [factor @ self._weight_gradients.to(factor.dtype)]
        if self._bias_gradients is None:
            return sums
        return [*sums, factor @ self._bias_gradients.to(factor.dtype)]

    def _gradient_of_each(self, a: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Return every record's weight gradient, shape ``(b, out · in · k · k)``."""
        if a.device.type != "cpu":  # where grouped convolutions take longer than products
            return (delta.flatten(2) @ self._patches(a).mT).flatten(1)
        # Records become groups of one convolution: group j sees record j's channels alone.
        flattened = a.reshape(1, -1, *a.shape[2:]), delta.reshape(1, -1, *delta.shape[2:])
        return self._weight_gradient(*flattened, groups=len(a)).view(len(a), -1)

    def _patches(self, a: torch.Tensor) -> torch.Tensor:
        """Return the kernel's input at each place, ``(b, in · k · k, places)``."""
        module = self.module
        (rows, columns), (down, right) = module.kernel_size, module.stride
        padded = functional.pad(a, (module.padding[1],) * 2 + (module.padding[0],) * 2)
        windows = padded.unfold(2, rows, down).unfold(3, columns, right)
        return windows.permute(0, 1, 4, 5, 2, 3).reshape(len(a), module.weight[0].numel(), -1)

    def _weight_gradient(self, a: torch.Tensor, delta: torch.Tensor, groups: int) -> torch.Tensor:
        module = self.module
        shape = (groups * module.out_channels, *module.weight.shape[1:])
        # The weight is not read for its own gradient; an empty one saves copying it.
        gradients = torch.ops.aten.convolution_backward(
            delta,
            a,
            a.new_empty(shape),
            None,
            module.stride,
            module.padding,
            (1, 1),
            False,
            (0, 0),
            groups,
            (False, True, False),
        )
        gradient: torch.Tensor = gradients[1]
        return gradient


def ghost_norms(patches: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """Return ‖Σₜ aₜ ⊗ δₜ‖² of each record, shape ``(b,)``, or more where its terms cancel.

    In float64, since the terms of the sum over pairs (t, s) cancel; in float32 a constant image
    gave a negative square, so NaN for the whole batch, and others passed with twice the bound.

    Args:
        patches: aₜ, shape ``(b, n, places)``.
        flat: δₜ, shape ``(b, m, places)``.
    """
    patches, flat = patches.double(), flat.double()
    # ‖Σₜ aₜ ⊗ δₜ‖² = Σₜₛ (aₜ·aₛ)(δₜ·δₛ); both Gram matrices have shape (b, places, places).
    inputs, deltas = patches.mT @ patches, flat.mT @ flat
    lengths = (inputs.diagonal(dim1=1, dim2=2) * deltas.diagonal(dim1=1, dim2=2)).sqrt()
    # (Σₜ ‖aₜ‖‖δₜ‖)² bounds the squared norm from above. A floor makes norms larger alone: a record
    # is clipped more, never less.
    floor = lengths.sum(1).square() / _MAX_CANCELLATION
    return torch.maximum((inputs * deltas).sum((1, 2)), floor).float()


class GroupNormLayer(Layer):
    """Scale and shift of a group normalisation: gⱼ = (Σ δⱼ·âⱼ, Σ δⱼ)."""

    def kept(self) -> list[torch.Tensor]:
        """Return the gradients per record of scale and shift."""
        return self._gradients

    def squared_norms(self, a: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Return the norms of scale and shift, from a gradient per record."""
        normal = functional.group_norm(a, self.module.num_groups, eps=self.module.eps)
        self._gradients = [(delta * normal).flatten(2).sum(2), delta.flatten(2).sum(2)]
        scale, shift = self._gradients
        return squared_norms(scale) + squared_norms(shift)

    def weighted_sums(
        self, a: torch.Tensor, delta: torch.Tensor, factor: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return a product with the stored gradients."""
        del a, delta
        return [factor @ gradient.to(factor.dtype) for gradient in self._gradients]


def layer_of(module: nn.Module) -> Layer | None:
    """Return the ghost layer of ``module``, or None if unknown."""
    if type(module) is nn.Linear:
        return LinearLayer(module)
    if type(module) is nn.GroupNorm and module.affine:
        return GroupNormLayer(module)
    if (
        type(module) is nn.Conv2d
        and (module.groups, module.dilation, module.padding_mode) == (1, (1, 1), "zeros")
        and not isinstance(module.padding, str)
    ):
        return ConvLayer(module)
    return None


class BookkeepingEngine(Engine):
    """Linear layers, convolutions and group norms, each used once for every record."""

    def __init__(self, model: nn.Module, task: Task, device: torch.device) -> None:
        """Take a model for which :func:`is_bookable` holds."""
        super().__init__(model, task, device)
        self._layers: list[tuple[Layer, slice]] = []
        self._seen: list[tuple[torch.Tensor, int, GradientEdge] | None] = []
        self._count = 0
        start = 0
        for module in self.model.modules():
            layer = layer_of(module)
            if layer is None:
                continue
            size = sum(parameter.numel() for parameter in module.parameters())
            self._layers.append((layer, slice(start, start + size)))
            start += size
            module.register_forward_hook(self._keep(len(self._layers) - 1))
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)

    def _rows(
        self, x: torch.Tensor, y: torch.Tensor, place: slice
    ) -> tuple[torch.Tensor, list[torch.Tensor], Sequence[torch.Tensor], torch.Tensor]:
        """Return each record's outputs, its a and δ in every layer, and its squared norm.

        The norm is that of the gradient in ``place``.
        """
        self._seen, self._count = [None] * len(self._layers), len(x)
        with torch.enable_grad():
            outputs = self.model(x)
            residual = output_gradient(self.task, outputs.detach(), y)
            seen = [item for item in self._seen if item is not None]
            if len(seen) < len(self._layers):
                raise RuntimeError("a layer was not used")
            # The version counts writes in place: the layer did not use a changed input.
            if any(a._version != version for a, version, _ in seen):
                raise RuntimeError("a layer's input was changed in place")
            # Of a sum: its gradient in the outputs is the residual to the last bit. Where one is
            # given, torch imports symbolic algebra for half a second.
            total = (outputs * residual).sum()
            deltas = torch.autograd.grad(total, [output for _, _, output in seen])
        inputs = [a.detach() for a, _, _ in seen]
        self._seen = []
        norms = [
            layer.squared_norms(a, delta)
            for (layer, of), a, delta in zip(self._layers, inputs, deltas, strict=True)
            if _within(of, place)
        ]
        return outputs.detach(), inputs, deltas, torch.stack(norms).sum(0)

    def _parts(self, x: torch.Tensor, y: torch.Tensor) -> Sequence[torch.Tensor]:
        whole = slice(0, len(self.theta))
        outputs, inputs, deltas, squared_norm = self._rows(x, y, whole)
        stored = [tensor for layer, _ in self._layers for tensor in layer.kept()]
        return outputs, *inputs, *deltas, *stored, squared_norm.unsqueeze(1)

    def _add(
        self, total: torch.Tensor, x: torch.Tensor, y: torch.Tensor, count: int, clip_norm: float
    ) -> None:
        _, inputs, deltas, squared_norm = self._rows(x, y, self.place)
        finite, factor = clip_factor(squared_norm, count, clip_norm)
        everything = all_known(finite)
        for (layer, place), a, delta in zip(self._layers, inputs, deltas, strict=True):
            if not _within(place, self.place):
                continue
            if not everything:  # a factor of 0 would not do: 0 · NaN = NaN
                a, delta = _zeroed(a, finite), _zeroed(delta, finite)  # noqa: PLW2901
                for stored in layer.kept():  # of a record that is zero they are, too
                    stored.masked_fill_(~finite.unsqueeze(1), 0)
            terms = (tensor.to(total.dtype) for tensor in (a, delta, factor))
            sums = layer.weighted_sums(*terms)
            total[place] += torch.cat([gradient.reshape(-1) for gradient in sums])

    def _keep(self, index: int) -> Any:
        def hook(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            # A layer used twice has a gradient of two terms, and squared norms do not add up.
            if self._seen[index] is not None:
                raise RuntimeError("a layer is used more than once")
            if not len(inputs[0]) == len(output) == self._count:  # a row that is not a record's own
                raise RuntimeError("a layer does not see one row a record")
            # The parameters need no gradient; the outputs must, or there is no δ.
            if not output.requires_grad:
                output.requires_grad_()
            # The edge, not the tensor: a ReLU in place makes of the tensor the ReLU's own output.
            self._seen[index] = inputs[0], inputs[0]._version, get_gradient_edge(output)

        return hook


def is_bookable(model: nn.Module) -> bool:
    """Return whether all parameters are trained, unshared, of known layers."""
    supported = [m for m in model.modules() if layer_of(m) is not None]
    owned = [id(p) for module in supported for p in module.parameters()]
    everything = list(model.parameters())
    return (
        len(owned) == len(everything)
        and [id(p) for p in everything] == owned
        and all(p.requires_grad for p in everything)
    )


def _within(inner: slice, place: slice) -> bool:
    """Return whether a layer lies in ``place``; raises for a part."""
    if inner.start >= place.start and inner.stop <= place.stop:
        return True
    if inner.stop > place.start and inner.start < place.stop:
        raise ModelError("a part of a model is a range of whole layers")
    return False


def _zeroed(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.where(keep.view(-1, *[1] * (values.dim() - 1)), values, 0.0)
