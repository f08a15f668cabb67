"""Models, records, an independent clipped sum and mutants, for the tests of the DP-SGD engines."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from torch import nn

from hdpfl_flower.engines import engines, opacus_engine
from hdpfl_flower.engines import ghost_clipping as bookkeeping
from hdpfl_flower.engines.engines import Engine, LinearEngine, VmapEngine
from hdpfl_flower.engines.ghost_clipping import BookkeepingEngine
from hdpfl_flower.engines.opacus_engine import OpacusEngine
from hdpfl_flower.models.losses import record_losses
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.row_batches import RowProof
from hdpfl_flower.models.task import Task

IMAGE = (1, 28, 28)
CPU = torch.device("cpu")
TASKS = {
    "classes": Task.classification(IMAGE, 10),
    "binary": Task.classification(IMAGE, 2),
    "regression": Task.regression(IMAGE),
    "survival": Task.survival(IMAGE, 5),
    "weighted": replace(
        Task.classification(IMAGE, 10), class_weights=(1, 0.25, 7, 3, 1, 0.1, 2, 1, 5, 0.5)
    ),
}
ENGINES: dict[str, type[Engine]] = {
    "linear": LinearEngine,
    "bookkeeping": BookkeepingEngine,
    "vmap": VmapEngine,
    "opacus": OpacusEngine,
}
GROUP_NORM = f"{__name__}:group_norm_net"
ENGINES_OF = {
    "logreg": ("linear", "bookkeeping", "vmap", "opacus"),
    "mlp:32": ("bookkeeping", "vmap", "opacus"),
    "cnn": ("bookkeeping", "vmap", "opacus"),
    GROUP_NORM: ("bookkeeping", "vmap", "opacus"),
}
"""Models, and the engines that can train them."""
EVERY_ENGINE = [(spec, name) for spec, names in ENGINES_OF.items() for name in names]
TOLERANCE = 1e-5
"""What the engines promise: relative to the oracle's sum, and to the clip norm."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Spare threads that wait for one another: sums this small need none."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def group_norm_net(task: Task) -> nn.Module:
    """Return a small network of every layer that bookkeeping knows, in all their forms.

    The last convolution has 4 places and 6,912 weights: its norms are ghost norms.
    """
    return nn.Sequential(
        nn.Conv2d(task.input_shape[0], 8, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 24, (3, 5), stride=(2, 1), padding=(0, 2)),
        nn.GroupNorm(4, 24, eps=1e-3),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(4),
        nn.Conv2d(24, 32, 3),
        nn.Flatten(),
        nn.Linear(128, 16, bias=False),
        nn.ReLU(),
        nn.Linear(16, task.outputs),
    )


class Net(nn.Module):
    """A user's own module: parts, and a forward that is written in Python."""

    def __init__(self, forward: Callable[[Net, torch.Tensor], torch.Tensor], **parts: nn.Module):
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self, x)


def make_engine(name: str, spec: str, task: Task, device: str = "cpu") -> Engine:
    """Return a new engine; what was proven of another one of the same model is not proven again.

    A proof takes most of the time of a test, and depends on the computation alone.
    """
    engine = ENGINES[name](model_of(spec, task), task, torch.device(device))
    if spec in ENGINES_OF:  # others are large, and made once
        engine.proof = _PROOFS.setdefault((name, spec, task, device), engine.proof)
    return engine


_PROOFS: dict[tuple[str, str, Task, str], RowProof] = {}


def broken_engine(name: str, spec: str, task: Task, bug: tuple[str, str]) -> Engine:
    """Return an engine with a bug put back, in its own file or in what it takes from engines.py."""
    if bug[0] in inspect.getsource(bookkeeping):
        module = mutant(bookkeeping, bug)
    else:
        module = mutant(engines, bug)
        if name == "bookkeeping":
            taken, module = module, mutant(bookkeeping)
            for part in ("clip_factor", "squared_norms", "outer_squared_norms"):
                setattr(module, part, getattr(taken, part))
        if name == "opacus":
            given = "from hdpfl_flower.engines.engines import RowEngine"
            module = mutant(
                opacus_engine, (given, given.replace("engines.engines", "engines.engines_mutant"))
            )
    engine_class: type[Engine] = getattr(module, ENGINES[name].__name__)
    return engine_class(model_of(spec, task), task, CPU)


def model_of(spec: str, task: Task) -> nn.Module:
    return build_model(spec, task, seed=3)


def draw(task: Task, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and targets of ``count`` records."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *task.input_shape, generator=generator)
    if task.loss == "squared":
        return x, torch.randn(count, generator=generator)
    return x, torch.randint(0, task.target_values, (count,), generator=generator)


def sum_of(
    engine: Engine, x: torch.Tensor, y: torch.Tensor, clip_norm: float, count: int | None = None
) -> torch.Tensor:
    """Return an engine's clipped sum, float64; of no records it is zero."""
    total = torch.zeros_like(engine.theta)
    if len(y):
        engine.add_clipped_sum(
            total, x.to(total.device), y.to(total.device), count or len(y), clip_norm
        )
    return total.double().cpu()


def gradients_of(model: nn.Module, task: Task, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return every record's gradient by Opacus' own hooks in float64, shape ``(b, d)``."""
    hooked = GradSampleModule(without_in_place(model).double().train(), loss_reduction="sum")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of hooks on the first layer
        outputs = hooked(x.double())
        losses = record_losses(task, outputs, y.double() if y.is_floating_point() else y)
        factors = [task.class_weights[each] if task.class_weights else 1.0 for each in y.tolist()]
        (losses * losses.new_tensor(factors)).sum().backward()
    parameters: list[Any] = list(hooked.parameters())
    return torch.cat([p.grad_sample.flatten(1) for p in parameters], dim=1)


@lru_cache(maxsize=40)
def reference(spec: str, task: Task, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features, targets and :func:`gradients_of` them at :func:`model_of`."""
    x, y = draw(task, count, seed=count)
    return x, y, gradients_of(model_of(spec, task), task, x, y)


def clipped_sum(gradients: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Return Σⱼ gⱼ · min(1, C/‖gⱼ‖), written out."""
    total = torch.zeros(gradients.shape[1], dtype=torch.float64)
    for gradient in gradients:
        norm = float(gradient.square().sum().sqrt())
        total += gradient * min(1.0, clip_norm / norm)
    return total


def without_in_place(model: nn.Module) -> nn.Module:
    """Return a copy without what Opacus' hooks refuse: ReLU in place, torchvision's ``+=``."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]

    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
        if type(module).__name__ == "BasicBlock":
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]
    return model


def mutant(module: ModuleType, *changes: tuple[str, str]) -> Any:
    """Return a copy of ``module`` with a bug put back: each old text, found once, made the new."""
    source = inspect.getsource(module)
    for old, new in changes:
        assert source.count(old) == 1, f"found {source.count(old)} times: {old}"
        source = source.replace(old, new)
    made = ModuleType(f"{module.__name__}_mutant")
    sys.modules[made.__name__] = made  # a dataclass looks its module up
    exec(compile(source, f"<mutant of {module.__name__}>", "exec"), made.__dict__)
    return made


@contextlib.contextmanager
def unproven() -> Iterator[None]:
    """Without the proof that rows are apart, which would give a mutant its rows one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowProof, "holds", lambda *_: True)
        yield
