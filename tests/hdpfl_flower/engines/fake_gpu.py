"""A device that is not the CPU, without a GPU: torch's custom backend over the CPU's arithmetic.

Every tensor on it says ``fakegpu:0`` and computes on memory of the CPU, so that real values come
out. As on a GPU, an operation refuses tensors of two devices; what would wait for the device, and
each float64 number made there, is written down with the line of ours that asked for it.

FakeTensorMode would not do: autograd asks CUDA's driver for a stream, and values decide nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "fakegpu"
ROOT = Path(__file__).parents[3]
aten = torch.ops.aten
_WAITS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.unique_dim}
_COPIES = {aten._to_copy, aten.copy_}


class _Backend(_DummyBackendModule):
    def get_rng_state(self, _: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, *_: Any) -> None:
        """The generator is the CPU's."""


class Report:
    """What was asked of the device, by the place of ours that asked.

    Attributes:
        waits: copies and decisions that wait for the device, or of memory that is not locked.
        doubles: arrays of float64.
        largest: numbers of the largest copy to the device.
    """

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.doubles: Counter[str] = Counter()
        self.largest = 0


class FakeTensor(torch.Tensor):
    """A tensor on the device; its storage stands for one of the CPU."""

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> FakeTensor:
        storage = raw.untyped_storage()
        fake: FakeTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, raw.shape, raw.stride(), raw.storage_offset(), dtype=raw.dtype,
            device=torch.device(NAME, 0), storage_size=storage.nbytes(),
        )  # fmt: skip
        own = fake.untyped_storage()
        _STORAGES[own._cdata] = StorageWeakRef(own), storage
        if len(_STORAGES) > 2 * _Kept.count + 1000:
            for key in [key for key, (weak, _) in _STORAGES.items() if weak.expired()]:
                del _STORAGES[key]
            _Kept.count = len(_STORAGES)
        return fake

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return _compute(func, args, kwargs or {}, Report())


class _Kept:
    count = 0


_STORAGES: dict[int, tuple[StorageWeakRef, torch.UntypedStorage]] = {}
_LOCKED: dict[int, StorageWeakRef] = {}


class _Mode(TorchDispatchMode):
    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        with self:  # in inference mode operations come whole
            found = func.decompose(*args, **(kwargs or {}))
        if found is not NotImplemented:
            return found
        return _compute(func, args, kwargs or {}, self._report)


@contextmanager
def fake_gpu() -> Iterator[Report]:
    """Let ``torch.device("fakegpu")`` be a device, and yield what is asked of it."""
    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    report = Report()
    # In this thread: the mode is a thread's, and autograd's other threads were counted before.
    with torch.autograd.set_multithreading_enabled(False), _Mode(report):
        yield report


def _compute(func: Any, args: Any, kwargs: dict[str, Any], report: Report) -> Any:
    leaves = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    ours = [one for one in leaves if isinstance(one, FakeTensor)]
    packet, device = func.overloadpacket, kwargs.get("device")
    to_fake = device is not None and torch.device(device).type == NAME
    if not ours and not to_fake:
        return _on_cpu(func, args, kwargs)
    if packet in _WAITS or (packet is aten.index and _asks(args[1])):
        report.waits[f"{packet.__name__} {_place()}"] += 1
    elif packet in _COPIES:
        _note_copy(packet, args, kwargs, to_fake, report)
    else:
        mixed = [one for one in leaves if not isinstance(one, FakeTensor) and one.dim()]
        if mixed and ours:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device")
    raw = {key: torch.device("cpu") if key == "device" and to_fake else value
           for key, value in tree_map(_raw, kwargs).items()}  # fmt: skip
    found = _lstm(packet, tree_map(_raw, args)) or func(*tree_map(_raw, args), **raw)
    if device is not None and not to_fake:
        return found  # a copy on the CPU
    if packet is aten.copy_ and not isinstance(args[0], FakeTensor):
        return args[0]
    wrapped = tree_map(lambda one: FakeTensor(one) if isinstance(one, torch.Tensor) else one, found)
    for one in tree_leaves(wrapped):
        if isinstance(one, torch.Tensor) and one.dtype is torch.float64 and one.dim():
            report.doubles[_place()] += 1
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _on_cpu(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU; locked memory is the CPU's, marked."""
    if func.overloadpacket is aten.is_pinned:
        return _is_locked(args[0])
    if func.overloadpacket is aten._pin_memory:
        return _locked(args[0].clone())
    if kwargs.get("pin_memory"):
        return _locked(func(*args, **{**kwargs, "pin_memory": False}))
    return func(*args, **kwargs)


def _locked(values: torch.Tensor) -> torch.Tensor:
    storage = values.untyped_storage()
    _LOCKED[storage._cdata] = StorageWeakRef(storage)
    return values


def _is_locked(values: torch.Tensor) -> bool:
    mark = _LOCKED.get(values.untyped_storage()._cdata)
    return mark is not None and not mark.expired()


def _asks(index: Any) -> bool:
    """Return whether an index must be counted on the device first, or copied to it."""
    return any(
        one is not None and (one.dtype is torch.bool or not isinstance(one, FakeTensor))
        for one in index
    )


def _note_copy(packet: Any, args: Any, kwargs: Any, to_fake: bool, report: Report) -> None:
    source = args[1] if packet is aten.copy_ else args[0]
    here = isinstance(args[0], FakeTensor) if packet is aten.copy_ else (
        to_fake or kwargs.get("device") is None
    )  # fmt: skip
    if isinstance(source, FakeTensor) == here:
        return  # on one device
    if here:
        report.largest = max(report.largest, source.numel())
    if source.numel() and not (here and kwargs.get("non_blocking") and _is_locked(source)):
        report.waits[f"copy {_place()}"] += 1


def _raw(one: Any) -> Any:
    if not isinstance(one, FakeTensor):
        return one
    storage = _STORAGES[one.untyped_storage()._cdata][1]
    with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        empty = torch.empty(0, dtype=one.dtype)
        return empty.set_(storage, one.storage_offset(), one.shape, one.stride())


def _place() -> str:
    """Return the file and function of ours that is running."""
    frame = sys._getframe()
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and not {"tests", ".venv"} & {*path.parts}:
            return f"{path.relative_to(ROOT)}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "a test"


def _lstm(packet: Any, args: Any) -> tuple[torch.Tensor | None, ...] | None:
    """Return what a GPU's fused cell of an LSTM computes; the CPU has no such operation."""
    if packet is aten._thnn_fused_lstm_cell:
        from_input, from_state, before = args[:3]
        biases = [bias for bias in args[3:] if bias is not None]
        i, f, g, o = sum(biases, from_input + from_state).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        cell = f * before + i * g
        return o * cell.tanh(), cell, torch.cat([i, f, g, o], 1)
    if packet is aten._thnn_fused_lstm_cell_backward_impl:
        of_output, of_cell, before, cell, workspace, has_bias = args
        i, f, g, o = workspace.chunk(4, 1)
        through = cell.tanh()
        of_output = torch.zeros_like(cell) if of_output is None else of_output
        inner = of_output * o * (1 - through * through)
        inner = inner if of_cell is None else inner + of_cell
        gates = torch.cat([
            inner * g * i * (1 - i), inner * before * f * (1 - f),
            inner * i * (1 - g * g), of_output * through * o * (1 - o),
        ], 1)  # fmt: skip
        return gates, inner * f, gates.sum(0) if has_bias else None
    return None
