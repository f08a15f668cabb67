"""Inputs of a network's last layer under a round's model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.models.networks import Arrays, build_model
from hdpfl_flower.models.task import Task

_BATCH = 512


def last_inputs(
    spec: str, task: Task, arrays: Arrays, features: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the inputs of the last layer, float32, shape ``(n, inputs)``.

    Args:
        spec: a built-in network; its last layer is linear.
        task: its shapes and loss.
        arrays: the model, whole.
        features: of the records, shape ``(n, *input_shape)``.

    Raises:
        ModelError: the model cannot be built.

    >>> task = Task.classification((2,), 3)
    >>> records = np.array([[1.0, 2.0]], np.float32)
    >>> last_inputs("logreg", task, {}, records)
    array([[1., 2.]], dtype=float32)
    """
    if spec == "logreg" and not task.body:
        return features.reshape(len(features), -1)
    import torch

    network = build_model(spec, task, seed=0).eval()
    parameters = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    last = network.get_submodule(next(reversed(arrays)).rpartition(".")[0])
    inputs_seen: list[npt.NDArray[np.float32]] = []

    def keep(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        inputs_seen.append(inputs[0].numpy().copy())

    hook = last.register_forward_pre_hook(keep)
    try:
        with torch.inference_mode():
            for start in range(0, len(features), _BATCH):
                batch = torch.from_numpy(features[start : start + _BATCH])
                torch.func.functional_call(network, parameters, (batch,))
    finally:
        hook.remove()
    return np.concatenate(inputs_seen)
