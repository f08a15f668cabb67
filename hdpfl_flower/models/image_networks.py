"""Networks of images: a small convolutional one, and torchvision's ResNet-18."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hdpfl_flower.errors import ModelError
from hdpfl_flower.models.task import Task
from hdpfl_flower.system.extras import is_installed, missing

if TYPE_CHECKING:
    from torch import nn


def cnn(task: Task) -> nn.Module:
    """Return Robust-HDP's CNN: two conv5x5-ReLU-pool2, one linear layer."""
    from torch import nn

    if len(task.input_shape) != 3 or min(task.input_shape[1:]) < 4:
        raise ModelError("model 'cnn' needs images of at least 4×4: (channels, height, width)")
    channels, height, width = task.input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        # Padding 2 keeps the size under a 5×5 kernel; each pool halves it, rounded down.
        nn.Linear(32 * (height // 4) * (width // 4), task.outputs),
    )


def resnet18(task: Task) -> nn.Module:
    """Return torchvision's ResNet-18 with GroupNorm(2), as in Robust-HDP's code."""
    from torch import nn

    if len(task.input_shape) != 3:
        raise ModelError("model 'resnet18' needs images: (channels, height, width)")
    build = import_torchvision("models").resnet18
    model: nn.Module = build(
        num_classes=task.outputs, norm_layer=lambda channels: nn.GroupNorm(2, channels)
    )
    if task.input_shape[0] != 3:
        model.conv1 = nn.Conv2d(task.input_shape[0], 64, 7, stride=2, padding=3, bias=False)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return model


def import_torchvision(submodule: str) -> Any:
    """Return ``torchvision.<submodule>``, imported only where it is needed.

    Raises:
        InstallationError: torchvision is not installed.
        ModelError: it cannot be imported: it was built for another torch.
    """
    if not is_installed("torchvision"):
        raise missing("images", "a set of images or 'resnet18'", "torchvision")
    try:
        return importlib.import_module(f"torchvision.{submodule}")
    except (ImportError, RuntimeError, AttributeError) as error:
        import torch

        raise ModelError(
            f"torchvision cannot be imported beside torch {torch.__version__} "
            f"({type(error).__name__}); install the pair together: "
            "pip install --force-reinstall -c constraints.txt torch torchvision"
        ) from None
