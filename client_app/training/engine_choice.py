"""Choice of the engine that trains a model: the fastest that covers it, or the site's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import nn

from client_app.training.allocator import keep_freed_memory
from client_app.training.engines import (
    Engine,
    LinearEngine,
    OpacusEngine,
    VmapEngine,
    is_linear,
    rehearse,
)
from client_app.training.ghost_clipping import BookkeepingEngine, is_bookable
from hdpfl_flower.errors import InstallationError, ModelError
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Task

_BESIDE = 4
"""Records of the batch in which every pair is checked."""


def keeps_records_apart(model: nn.Module, task: Task) -> bool:
    """Return whether a record's outputs stay the same when another record of its batch changes.

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


_ENGINES: dict[str, tuple[type[Engine], Callable[[nn.Module, Task], bool]]] = {
    "linear": (LinearEngine, lambda model, _: is_linear(model)),
    "bookkeeping": (
        BookkeepingEngine,
        lambda model, task: is_bookable(model) and keeps_records_apart(model, task),
    ),
    "vmap": (VmapEngine, lambda *_: True),  # gives the model one record at a time
    "opacus": (OpacusEngine, keeps_records_apart),
}
"""Engines from the fastest to the most general, and what each covers."""


@lru_cache(maxsize=16)
def engine_for(spec: str, task: Task, name: str, device: str) -> Engine:
    """Return the engine for a model; an engine that fails on a batch of zeros is passed over.

    Args:
        spec: the model, see ``models.build_model``.
        task: shapes and loss.
        name: ``auto``, or the engine to use and no other.
        device: a torch device.

    Raises:
        ModelError: the model cannot be built, or no engine, or not the named one, can train it.
        InstallationError: only Opacus' engine is left to try, and it is not installed.
    """
    keep_freed_memory()
    _check_outputs(spec, task)
    for candidate, (engine_class, covers) in _ENGINES.items():
        if name not in ("auto", candidate):
            continue
        model = build_model(spec, task, seed=0)
        try:
            if not covers(model, task):
                continue
            engine = engine_class(model, task, torch.device(device))
            with torch.random.fork_rng():
                # A batch of two: hooks and transforms that a layer breaks raise here, before a
                # record is read.
                rehearse(engine, 2)
        except InstallationError:  # Opacus', the last engine: none is left to try
            raise
        except Exception:  # noqa: S112  # whatever hooks and transforms raise on a user's layers
            continue
        return engine
    raise ModelError(
        f"engine '{name}' cannot train model '{spec}' record by record; set 'training.engine' to "
        "'auto', or replace the layer it cannot split"
    )


def _check_outputs(spec: str, task: Task) -> None:
    """Refuse a model of the wrong shape now; later, a record's label would make a round fail."""
    model = build_model(spec, task, seed=0).eval()
    try:
        with torch.no_grad():
            shape = tuple(model(torch.zeros(2, *task.input_shape)).shape)
    except Exception as error:
        raise ModelError(
            f"model '{spec}' fails on a batch of zeros ({type(error).__name__}); it is called with "
            f"features of shape (records, {', '.join(map(str, task.input_shape))})"
        ) from error
    if shape != (2, task.outputs):
        raise ModelError(
            f"model '{spec}' returns outputs of the wrong shape; for a batch of b records return "
            f"(b, {task.outputs})"
        )
