"""Networks that can be trained privately.

They use no batch statistics, and only trainable parameters are sent.

The server sends a model's name, and a site builds that model. So the name is read by a strict
grammar, and the network's size is known before it takes memory: it is built first on torch's meta
device, where tensors have shapes and no numbers.

torch is imported where a network is built, so that reading a model's name stays cheap.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import ModelError
from hdpfl_flower.models.task import Task
from hdpfl_flower.system.own_code import load_own

if TYPE_CHECKING:
    from torch import nn

Arrays = dict[str, npt.NDArray[np.float32]]
"""Model parameters by name, in the model's order."""

MAX_MODEL_MB = 2048.0
"""Maximum model size in megabytes (float32), near Flower's message limit."""
MAX_WIDTHS = 32
"""Maximum hidden layers of an ``mlp``."""
_WIDTH = re.compile("[1-9][0-9]{0,6}")
OUR_MODELS = {
    "logreg": "one linear layer",
    "mlp": "mlp:WIDTH[:WIDTH…], hidden layers with ReLU; mlp means mlp:64",
    "cnn": "Robust-HDP's: two 5×5 convolutions and one linear layer",
    "resnet18": "torchvision's, with GroupNorm of 2 groups in place of BatchNorm",
}
"""Built-in networks and their descriptions."""
_SHOWN = 60
"""Maximum characters of a server's model name quoted in errors."""


def is_user_code(spec: str) -> bool:
    """Return whether ``spec`` names a user's ``module:function``.

    >>> is_user_code("mlp:32:16"), is_user_code("clinic.nets:build"), is_user_code("mlp:²")
    (False, True, False)
    """
    module, colon, function = spec.partition(":")
    return bool(colon) and all(word.isidentifier() for word in (*module.split("."), function))


def check_name(spec: str) -> None:
    """Refuse names other than built-in models and ``module:function``.

    Widths are whole numbers from 1 to 9,999,999 in the digits 0 to 9, without leading zeros; there
    are at most 32 of them.

    Raises:
        ModelError: the name is not allowed; the text gives the reason.
    """
    if is_user_code(spec):
        return
    name, *widths = spec.split(":")
    if name not in OUR_MODELS:
        raise ModelError(
            f"model '{_shown(spec)}' is not known; choose logreg, mlp:WIDTH, cnn, resnet18 or "
            "module:function"
        )
    if widths and name != "mlp":
        raise ModelError(f"model '{name}' takes no width")
    if len(widths) > MAX_WIDTHS or not all(map(_WIDTH.fullmatch, widths)):
        raise ModelError(
            f"model '{_shown(spec)}': 'mlp' needs widths of at least 1 and at most 9999999, in "
            f"plain digits, such as mlp:64:32, and at most {MAX_WIDTHS} of them"
        )


def _shown(spec: str) -> str:
    """Return the name as a short line of printable ASCII."""
    short = spec if len(spec) <= _SHOWN else f"{spec[:_SHOWN]}..."
    return short.encode("unicode_escape").decode("ascii")


@lru_cache(maxsize=32)
def layout_of(spec: str, task: Task) -> Arrays:
    """Return names and shapes of trainable parameters without their memory.

    Every array is read-only and repeats one zero. A built-in network is built on the meta device
    alone. A user's network too, if possible; if its function needs numbers, it is built in full,
    since a site's policy has approved it.

    Raises:
        ModelError: as :func:`build_model`, but for the size.
    """
    model = _on_meta(spec, task)
    if model is None:
        model = _initialised(spec, task, seed=0)
    return {
        name: np.broadcast_to(np.float32(0), tuple(parameter.shape))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def size_of(spec: str, task: Task) -> int:
    """Return d, the number of trainable parameters, without allocating them.

    Raises:
        ModelError: as :func:`layout_of`.

    >>> size_of("mlp:1000000:1000000", Task.classification((28,), 2))
    1000031000001
    """
    return sum(math.prod(array.shape) for array in layout_of(spec, task).values())


def megabytes_of(spec: str, task: Task) -> float:
    """Return the megabytes of a model's numbers in one message."""
    return 4 * size_of(spec, task) / 1e6


def _on_meta(spec: str, task: Task) -> nn.Module | None:
    """Return the network on the meta device; None if users' code cannot."""
    import torch

    check_name(spec)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return _named(spec, task)
    except ModelError:
        if is_user_code(spec) or (task.body and task.body.has_code):
            return None
        raise


def build_model(spec: str, task: Task, seed: int) -> nn.Module:
    """Return the network named by ``spec`` for ``task``, initialised from ``seed``.

    Args:
        spec: ``logreg`` (one linear layer), ``mlp:WIDTH[:WIDTH…]`` (ReLU; default width 64),
            ``cnn`` (Robust-HDP's: two 5×5 convolutions and one linear layer; 28,938 parameters on
            MNIST), ``resnet18`` (GroupNorm of 2 groups in place of BatchNorm; torchvision), or
            ``module:function``, called with the task.
        task: shapes and loss.
        seed: seeds the initial parameters; torch's global generator is left as it was.

    Guarantees:
        No memory is allocated for a built-in network larger than :data:`MAX_MODEL_MB`.

    Raises:
        ModelError: unknown name, a shape the model cannot take, layers that mix records, or more
            parameters than :data:`MAX_MODEL_MB` holds.
    """
    check_name(spec)
    # Before any allocation: the name is the server's.
    if megabytes_of(spec, task) > MAX_MODEL_MB:
        raise ModelError(
            f"model '{_shown(spec)}' has {size_of(spec, task):,} parameters, more than the "
            f"{MAX_MODEL_MB:,.0f} MB that a model may have; choose a smaller one"
        )
    model = _initialised(spec, task, seed)
    # A body is looked at where it is read, in the mode in which it stays.
    refuse_mixing_layers(model.get_submodule("head") if task.body else model)
    if not any(p.requires_grad for p in model.parameters()):
        raise ModelError(f"model '{spec}' has no trainable parameter")
    if any(p.is_meta for p in model.parameters()):
        raise ModelError(
            f"model '{spec}' has parameters without numbers (torch's meta device); its function "
            "must make a new network in every call"
        )
    return model


def _initialised(spec: str, task: Task, seed: int) -> nn.Module:
    """Return the network with parameters drawn from ``seed``."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _named(spec, task)


def _named(spec: str, task: Task) -> nn.Module:
    if task.body:
        above = replace(task, input_shape=(task.body.size,), body=None)
        return task.body.under(_named(spec, above))
    if is_user_code(spec):
        return _user_model(spec, task)
    name, *widths = spec.split(":")
    if name in {"logreg", "mlp"}:
        builder = _mlp if name == "mlp" else _logreg
        return builder(task, *(int(width) for width in widths))
    from hdpfl_flower.models import image_networks

    return image_networks.cnn(task) if name == "cnn" else image_networks.resnet18(task)


def _logreg(task: Task) -> nn.Module:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(task.input_shape), task.outputs))


def _mlp(task: Task, *widths: int) -> nn.Module:
    from torch import nn

    sizes = [math.prod(task.input_shape), *(widths or (64,))]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], task.outputs))


def _user_model(spec: str, task: Task) -> nn.Module:
    from torch import nn

    function = load_own(spec, "model", ModelError, "function")
    try:
        built = function(task)
    except Exception as error:
        raise ModelError(f"model '{spec}': its function raised {type(error).__name__}") from error
    if not isinstance(built, nn.Module):
        raise ModelError(f"model '{spec}' returned no torch.nn.Module")
    for name, value in built.named_parameters():
        if isinstance(value, nn.UninitializedParameter):
            raise ModelError(
                f"model '{spec}': '{name}' has no shape yet (a lazy layer); give its layer the "
                "number of inputs, such as Linear in place of LazyLinear"
            )
    return built


def refuse_mixing_layers(model: nn.Module) -> None:
    """Refuse layers that mix the records of a batch.

    Raises:
        ModelError: BatchNorm, or another layer that keeps running statistics.
    """
    for name, module in model.named_modules():
        kind = type(module).__name__
        if "BatchNorm" in kind or getattr(module, "track_running_stats", False):
            raise ModelError(
                f"layer '{name}' ({kind}) mixes the records of a batch, which breaks "
                "per-record clipping; use GroupNorm or LayerNorm"
            )


def arrays_of(model: nn.Module) -> Arrays:
    """Return copies of the trainable parameters by name: all that is sent."""
    return {
        name: parameter.detach().cpu().numpy().astype(np.float32, copy=True)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def flatten(arrays: Arrays) -> npt.NDArray[np.float32]:
    """Return the parameters as one vector, shape ``(d,)``, in order."""
    return np.concatenate([array.ravel() for array in arrays.values()]).astype(
        np.float32, copy=False
    )


def unflatten(vector: npt.NDArray[np.float32], like: Arrays) -> Arrays:
    """Return ``vector`` in the shapes of ``like``; inverse of :func:`flatten`."""
    result, start = {}, 0
    for name, array in like.items():
        # A view of `vector`, no copy.
        result[name] = vector[start : start + array.size].reshape(array.shape)
        start += array.size
    return result
