"""Which engine trains a model: the fastest that covers it, unless the site says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import nn

from client_app.bookkeeping import BookkeepingEngine, is_bookable
from client_app.engines import (
    Engine,
    LinearEngine,
    OpacusEngine,
    VmapEngine,
    is_linear,
    rehearse,
)
from client_app.memory import keep_freed_memory
from hdpfl_flower.errors import ModelError
from hdpfl_flower.models import build_model
from hdpfl_flower.task import Task

_ENGINES: dict[str, tuple[type[Engine], Callable[[nn.Module], bool]]] = {
    "linear": (LinearEngine, is_linear),
    "bookkeeping": (BookkeepingEngine, is_bookable),
    "vmap": (VmapEngine, lambda _: True),
    "opacus": (OpacusEngine, lambda _: True),
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
    """
    keep_freed_memory()
    _check_outputs(spec, task)
    for candidate, (engine_class, covers) in _ENGINES.items():
        if name not in ("auto", candidate):
            continue
        model = build_model(spec, task, seed=0)
        if not covers(model):
            continue
        try:
            engine = engine_class(model, task, torch.device(device))
            rehearse(engine, 2)
        except (RuntimeError, NotImplementedError, ValueError):
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
        ) from None
    if shape != (2, task.outputs):
        raise ModelError(
            f"model '{spec}' gives outputs of the wrong shape; for a batch of b records give "
            f"(b, {task.outputs})"
        )
