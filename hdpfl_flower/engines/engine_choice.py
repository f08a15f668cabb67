"""Choice of the engine: the fastest fit, or the site's own."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hdpfl_flower.engines.allocator import keep_freed_memory
from hdpfl_flower.engines.engines import (
    Engine,
    LinearEngine,
    RecordLoss,
    VmapEngine,
    is_linear,
)
from hdpfl_flower.engines.unit_engines import UnitEngine
from hdpfl_flower.errors import InstallationError, ModelError
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Task
from hdpfl_flower.system.devices import is_out_of_memory, present

_BESIDE = 4
"""Records of the batch in which every pair is checked."""


def keeps_records_apart(model: nn.Module, task: Task) -> bool:
    """Return whether a record's outputs are independent of its batch.

    In the mode that trains, with the same masks of dropout each time, for every pair in both
    directions. Layers that mix records need no name to be found: a mean over the batch in a
    ``forward``, a recurrent layer or an attention that takes records for time steps, a buffer that
    keeps something of the batches before. Features are 0 and 1, which an embedding can read too.
    """
    generator = torch.Generator().manual_seed(0)
    # A generator of its own: the check must not move the random numbers of a simulation.
    bits = torch.rand(_BESIDE, *task.input_shape, generator=generator).round()
    model.train()
    outputs = _alike(model, bits)
    for other in range(_BESIDE):
        changed = bits.clone()
        changed[other] = 1 - bits[other]
        # A tolerance for rounding: the exact proof of each batch size is for row_batches.py.
        same = torch.isclose(_alike(model, changed), outputs, rtol=1e-4, atol=1e-6).all(1)
        same[other] = True
        if not same.all():
            return False
    return True


def _alike(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the outputs for ``x``, with the same random numbers each time."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        outputs: torch.Tensor = model(x)
    return outputs.flatten(1)


def _bookkeeping(model: nn.Module, task: Task, device: torch.device) -> Engine:
    from hdpfl_flower.engines.ghost_clipping import BookkeepingEngine

    return BookkeepingEngine(model, task, device)


def _is_bookable(model: nn.Module, task: Task) -> bool:
    # An app of a run of a linear model holds no such engine ('hdpfl new --only').
    if find_spec("hdpfl_flower.engines.ghost_clipping") is None:
        return False
    from hdpfl_flower.engines.ghost_clipping import is_bookable

    return is_bookable(model) and keeps_records_apart(model, task)


def _opacus(model: nn.Module, task: Task, device: torch.device) -> Engine:
    from hdpfl_flower.engines.opacus_engine import OpacusEngine

    return OpacusEngine(model, task, device)


_ENGINES: dict[str, tuple[Callable[..., Engine], Callable[[nn.Module, Task], bool]]] = {
    "linear": (LinearEngine, lambda model, _: is_linear(model)),
    "bookkeeping": (_bookkeeping, _is_bookable),
    # It gives the model one record at a time, of which there may be no deviation to divide by.
    "vmap": (VmapEngine, lambda model, task: math.isfinite(_gradient_size(model, task))),
    "opacus": (_opacus, keeps_records_apart),
}
"""Engines from the fastest to the most general, and their coverage."""


@lru_cache(maxsize=16)
def engine_for(spec: str, task: Task, name: str, device: str, most: int = 1) -> Engine:
    """Return the engine for a named model; see :func:`choose_engine`.

    Args:
        spec: the model, see ``models.build_model``.
        task: shapes and loss.
        name: ``auto``, or the engine to use and no other.
        device: a torch device.
        most: records of a unit; above 1 they are clipped as one, by ``vmap`` alone.

    Raises:
        ModelError, InstallationError: as :func:`choose_engine`.
    """
    return choose_engine(lambda: build_model(spec, task, seed=0), spec, task, name, device, most)


def choose_engine(
    build: Callable[[], nn.Module],
    said: str,
    task: Task,
    name: str,
    device: str,
    most: int = 1,
    loss: RecordLoss | None = None,
) -> Engine:
    """Return the fastest engine that covers a model and zeros.

    Args:
        build: returns the model, a new one in every call.
        said: name of it in errors.
        task: shapes and loss.
        name: ``auto``, or the engine to use and no other.
        device: a torch device.
        most: as for :func:`engine_for`.
        loss: of one record, in place of the task's; by ``vmap`` alone.

    Raises:
        ModelError: the device is missing, the model cannot be built, or no engine, or not the named
            one, can train it.
        InstallationError: only Opacus' engine is left to try, and it is not installed.
    """
    keep_freed_memory()
    present(device)
    operations = _check_model(build, said, task)
    engines = _ENGINES
    if most > 1:
        engines = {"vmap": (partial(UnitEngine, most=most), _ENGINES["vmap"][1])}
    if loss is not None:
        engines = {"vmap": (partial(VmapEngine, loss=loss), _ENGINES["vmap"][1])}
    for candidate, (engine_class, covers) in engines.items():
        if name not in ("auto", candidate):
            continue
        model = build()
        try:
            if not covers(model, task):
                continue
            engine = engine_class(model, task, torch.device(device))
            engine.operations = operations
            with torch.random.fork_rng(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch's own slow paths
                # Two rows: hooks and transforms that a layer breaks raise here, before a record
                # is read.
                engine.attempt()
        except InstallationError:  # Opacus', the last engine: none is left to try
            raise
        except Exception as error:  # whatever hooks and transforms raise on a user's layers
            if is_out_of_memory(error):
                raise
            continue
        return engine
    layers = ", ".join(dict.fromkeys(type(module).__name__ for module in build().modules()))
    remedy = "" if name == "auto" else "set 'training.engine' to 'auto', or "
    raise ModelError(
        f"engine '{name}' cannot train model '{said}' record by record; {remedy}replace the layer "
        "it cannot split (GRU and RNN: take LSTM, or a loop of your own), and a mean or range over "
        f"a batch by constants. Its layers: {layers}"
    )


def _check_model(build: Callable[[], nn.Module], said: str, task: Task) -> int:
    """Refuse a model that would fail or not learn in a round, at a site's cost.

    Returns:
        Operations of a record's products and convolutions in the forward pass, about.
    """
    model = build()
    operations = _check_outputs(model, said, task)
    _check_frozen(model, build(), said)
    _check_still(build(), said, task)
    if _gradient_size(model, task) == 0:
        if not keeps_records_apart(build(), task):
            raise ModelError(
                f"model '{said}' mixes the records of a batch, and for a single record no output "
                "depends on a trained parameter: softmax(dim=0), or a mean over dim 0? Dimension 0 "
                "holds the records; take dim=1"
            )
        raise ModelError(
            f"model '{said}': no output depends on a trained parameter, so sites would pay "
            "only for noise; connect them, without detach() or no_grad()"
        )
    return operations


def _check_frozen(model: nn.Module, again: nn.Module, said: str) -> None:
    """Refuse numbers that are not trained and differ from one building to the next."""
    named = model.named_parameters(remove_duplicate=False)  # of a tied one every name is trained
    trained = {name for name, value in named if value.requires_grad}
    other = again.state_dict()
    for name, value in model.state_dict().items():
        if name not in trained and not torch.equal(value, other[name]):
            raise ModelError(
                f"model '{said}': '{name}' is not trained, and has other numbers each time the "
                "model is built, so that no two sites have the same; draw them from torch's global "
                "generator, or take a 'backbone' with 'weights'"
            )


def _check_still(model: nn.Module, said: str, task: Task) -> None:
    """Refuse a model whose numbers move in a forward pass, by the records of its batch."""
    generator = torch.Generator().manual_seed(0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with contextlib.suppress(Exception), torch.no_grad(), torch.random.fork_rng():
        model.train()(torch.rand((_BESIDE, *task.input_shape), generator=generator).round())
    after = model.state_dict()
    moved = [
        name
        for name, value in before.items()
        if value.shape != after[name].shape or not torch.equal(value, after[name])
    ]
    if moved:
        raise ModelError(
            f"model '{said}': '{moved[0]}' changes in a forward pass of training, so that it holds "
            "something of the records, and a later step fails or depends on them; take constants, "
            "or GroupNorm or LayerNorm in place of running statistics"
        )


def _gradient_size(model: nn.Module, task: Task) -> float:
    """Return the sum of |gradient| for one record alone; NaN if any is, or if it takes more."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((1, *task.input_shape), generator=generator).round()
    trained = [value for value in model.parameters() if value.requires_grad]
    try:
        outputs = model.eval()(x)
        if not outputs.requires_grad:
            return 0.0
        weighed = (outputs * torch.rand(outputs.shape, generator=generator)).sum()
        gradients = torch.autograd.grad(weighed, trained, allow_unused=True)
    except Exception:  # whatever a user's layers raise on a batch of one
        return math.nan
    return sum(float(gradient.abs().sum()) for gradient in gradients if gradient is not None)


def _check_outputs(model: nn.Module, said: str, task: Task) -> int:
    """Refuse outputs of another shape or type; later, a record's label would make a round fail.

    Returns as :func:`_check_model`.
    """
    watch: Any = _Watch()  # type: ignore[no-untyped-call]
    try:
        with torch.no_grad(), watch:
            outputs = model.eval()(torch.zeros(2, *task.input_shape))
            shape, dtype = tuple(outputs.shape), outputs.dtype
    except Exception as error:
        raise ModelError(
            f"model '{said}' fails on a batch of zeros ({type(error).__name__}); it is called with "
            f"features of shape (records, {', '.join(map(str, task.input_shape))})"
        ) from error
    if shape != (2, task.outputs):
        raise ModelError(
            f"model '{said}' returns outputs of the wrong shape; for a batch of b records return "
            f"(b, {task.outputs})"
        )
    if dtype != torch.float32:
        raise ModelError(
            f"model '{said}' returns {dtype}; return float32: leave out autocast, or end with "
            ".float()"
        )
    if watch.halves:
        raise ModelError(
            f"model '{said}' computes in 16 bits, in which a norm is not accurate enough to clip "
            "by; leave out autocast and half()"
        )
    multiplications: int = watch.operations // 2
    return multiplications


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count of a forward pass's operations, and of its numbers of 16 bits."""

    operations, halves = 0, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import its compiler, a second, for a model not compiled."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute as without it."""
        del types
        result, packet, aten = func(*args, **(kwargs or {})), func.overloadpacket, torch.ops.aten
        if packet in (aten.mm, aten.bmm, aten.addmm):
            self.operations += 2 * result.numel() * args[packet is aten.addmm].shape[-1]
        elif packet is aten.convolution:
            self.operations += 2 * result.numel() * args[1][0].numel()
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.dtype in (torch.float16, torch.bfloat16):
                self.halves = True
        return result
