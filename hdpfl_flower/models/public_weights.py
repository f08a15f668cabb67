"""Tensors of public files of weights (``system/weight_files.py``), checked by name and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hdpfl_flower.errors import ModelError
from hdpfl_flower.system.weight_files import read_file

if TYPE_CHECKING:
    import torch


def read_weights(digest: str) -> Mapping[str, torch.Tensor]:
    """Return the tensors of the file with that digest, by name.

    Raises:
        DataError: the file is not at its place, or its content has another digest.
        ModelError: it is no file of weights.
    """
    return tensors_in(read_file(digest), digest)


def tensors_in(content: bytes, name: str) -> Mapping[str, torch.Tensor]:
    """Return the tensors of safetensors, or of torch's file of tensors alone: no code is run."""
    import io

    import safetensors.torch
    import torch

    is_safe = content[8:9] == b"{"  # after the length of a JSON header
    try:
        tensors = (
            safetensors.torch.load(content)
            if is_safe
            else torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        )
    except Exception:  # damaged files fail in many ways, and a pickle of other than tensors
        tensors = None
    if not isinstance(tensors, Mapping) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in tensors.items()
    ):
        raise ModelError(
            f"weights {name}: neither safetensors nor a torch file of tensors by name; write it "
            "with safetensors.torch.save_file(model.state_dict(), FILE)"
        )
    return tensors


def checked(
    given: Mapping[str, torch.Tensor], wanted: Mapping[str, tuple[int, ...]], name: str
) -> None:
    """Refuse weights that are not those of a model.

    Args:
        given: tensors by name.
        wanted: shape of each tensor that must be there, by name.
        name: of the file, for messages.

    Raises:
        ModelError: a name is missing or too many, a shape differs, or a number is not finite.
    """
    missing, extra = wanted.keys() - given.keys(), given.keys() - wanted.keys()
    for names, what in ((missing, "lacks"), (extra, "has beside the model's")):
        if names:
            shown = ", ".join(sorted(names)[:5])
            raise ModelError(f"weights {name}: the file {what} {len(names)} names: {shown}")
    for key, shape in wanted.items():
        tensor = given[key]
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"weights {name}: '{key}' has the shape {tuple(tensor.shape)}, the model {shape}"
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ModelError(f"weights {name}: '{key}' holds numbers that are not finite")
