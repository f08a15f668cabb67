"""Backbone: a public function of a record; the model reads its outputs.

Its numbers come from a file that every site has (``system/weight_files.py``), and are never
trained, noised or sent. A frozen one is evaluated once a record where records are read, so that
strategy, accounting and engines see a small model of its outputs. One with adapters is a part of
the model, of which the adapters are trained (``models/adapters.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import ModelError
from hdpfl_flower.models.image_networks import import_torchvision
from hdpfl_flower.models.public_weights import checked, read_weights
from hdpfl_flower.models.task import Task
from hdpfl_flower.system.own_code import load_own
from hdpfl_flower.work.backbone import Backbone

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hdpfl_flower.models.row_batches import RowProof

_TRIED = 4
"""Records of the check of a network."""


def over(backbone: Backbone, task: Task) -> Task:
    """Return the task of a model that reads the backbone's outputs of ``task``'s records."""
    if backbone.adapter:
        return replace(task, body=Adapted(backbone, task))
    return replace(task, input_shape=(backbone.size,), embedding=Embedded(backbone, task))


def _built(backbone: Backbone, task: Task) -> nn.Module:
    """Return the network of records like ``task``'s, its numbers drawn."""
    from torch import nn

    if backbone.code:
        function = load_own(backbone.code, backbone.key, ModelError, "function")
        try:
            built = function(task)
        except Exception as error:
            raise ModelError(
                f"'backbone': '{backbone.code}' raised {type(error).__name__}"
            ) from error
        if not isinstance(built, nn.Module):
            raise ModelError(f"'backbone': '{backbone.code}' returned no torch.nn.Module")
        return built
    if len(task.input_shape) != 3 or task.input_shape[0] not in (1, 3):
        raise ModelError(
            f"{backbone.words} needs images of 1 or 3 channels: (channels, height, width)"
        )
    if not backbone.weights:
        raise ModelError(f"{backbone.words} needs its numbers; write 'backbone.weights'")
    network: nn.Module = getattr(import_torchvision("models"), backbone.kind)(weights=None)
    setattr(network, backbone.head, nn.Identity())
    # A hook, no layer around it: the names stay those of torchvision's files.
    network.register_forward_pre_hook(partial(_as_colour, backbone.side))
    return network


def _as_colour(side: int, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any]:
    """Return images in three channels, resized to ``side`` unless 0."""
    from torch.nn.functional import interpolate

    (images,) = inputs
    images = images.expand(-1, 3, -1, -1)
    if side and tuple(images.shape[2:]) != (side, side):
        images = interpolate(images, (side, side), mode="bilinear", antialias=True)
    return (images,)


@dataclass(frozen=True)
class Embedded:
    """Embedding of records by a frozen backbone.

    Attributes:
        backbone: its settings.
        records: the task of the records.
    """

    backbone: Backbone
    records: Task

    def __call__(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the outputs for n records, float32, shape ``(n, outputs)``.

        Guarantees:
            A row depends on its record alone, to the bit: batches are of one size, filled up with
            zeros, at which that is proven on this machine (``row_batches.py``), or of one record,
            and layers are in eval mode. A row that is not finite, or on which the network raises,
            becomes zeros.

        Raises:
            DataError, ModelError: the backbone cannot be built, or mixes records.
        """
        import torch

        from hdpfl_flower.models.row_batches import BLOCKS, in_blocks

        network = _network(self.backbone, self.records)
        proof = _proof_of(network, self.records)
        if not len(features):
            return np.zeros((0, self.backbone.size), np.float32)
        with torch.inference_mode():
            lost = torch.zeros(1, self.backbone.size)
            rows = torch.from_numpy(features)
            outputs = in_blocks(network, rows, proof.block(BLOCKS), lost).numpy()
        outputs[~np.isfinite(outputs).all(axis=1)] = 0
        return outputs


@dataclass(frozen=True)
class Adapted:
    """Backbone with adapters under a model.

    Attributes:
        backbone: its settings.
        records: the task of the records.
    """

    backbone: Backbone
    records: Task

    @property
    def size(self) -> int:
        """Outputs of the backbone."""
        return self.backbone.size

    @property
    def has_code(self) -> bool:
        """Whether a user's function builds it."""
        return bool(self.backbone.code)

    def under(self, head: nn.Module) -> nn.Module:
        """Return the backbone and ``head`` as one network; of both, adapters and head are trained.

        Guarantees:
            Every building has the same frozen numbers, in the same memory. On torch's meta device
            no file is read.

        Raises:
            DataError, ModelError: the backbone cannot be built, or has no layer to adapt.
        """
        import torch

        from hdpfl_flower.models.adapters import adapt

        if torch.empty(0).is_meta:
            network = _built(self.backbone, self.records).requires_grad_(False)
        else:
            network = _network(self.backbone, self.records)
        return adapt(network, head, self.backbone)


@lru_cache(maxsize=1)
def _network(backbone: Backbone, task: Task) -> nn.Module:
    """Return the network with its numbers, in eval mode, after a check of its outputs."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = _built(backbone, task)
    state: dict[str, Any] = network.state_dict()
    if state and not backbone.weights:
        raise ModelError(
            f"'backbone': '{backbone.kind}' has numbers that no file gives: {min(state)}; write "
            "them with safetensors.torch.save_file and name the file in 'weights'"
        )
    if backbone.weights:
        given = {
            key: value
            for key, value in read_weights(backbone.weights).items()
            if not backbone.head or not key.startswith(f"{backbone.head}.")
        }
        # Old files lack the counters of BatchNorm, which eval mode does not read.
        counters = {key: state[key] for key in state if key.endswith("num_batches_tracked")}
        given = {**counters, **given}
        checked(given, {key: tuple(value.shape) for key, value in state.items()}, backbone.weights)
        network.load_state_dict(given)
    network.requires_grad_(False).eval()
    _check_rows(network, backbone, task)
    return network


@lru_cache(maxsize=1)
def _proof_of(network: nn.Module, task: Task) -> RowProof:
    """Return the trial of a network's batch sizes, once its layers are aligned in place."""
    import torch

    from hdpfl_flower.models.row_batches import RowProof, align, pool

    rows, _ = pool(align(network), task)

    def trial(_: int, places: torch.Tensor) -> list[torch.Tensor]:
        with torch.inference_mode():
            return [network(rows[places])]

    return RowProof(trial)


def _check_rows(network: nn.Module, backbone: Backbone, task: Task) -> None:
    """Refuse outputs of another shape or type, not finite, or that depend on other records."""
    import torch

    generator = torch.Generator().manual_seed(0)
    batch = torch.rand((_TRIED, *task.input_shape), generator=generator)
    other = torch.cat([batch[:1], 1 - batch[1:]])
    name = backbone.words
    try:
        with torch.inference_mode():
            first, second = network(batch), network(other)
    except Exception as error:
        raise ModelError(
            f"{name} cannot read records of the shape {task.input_shape}: {type(error).__name__}"
        ) from error
    if not isinstance(first, torch.Tensor) or first.shape != (_TRIED, backbone.size):
        raise ModelError(
            f"{name} must return a tensor of the shape (n, {backbone.size}) for n records"
        )
    if first.dtype != torch.float32 or not bool(first.isfinite().all()):
        raise ModelError(f"{name} must return finite numbers in float32")
    scale = float(first.abs().max()) + 1e-12
    if float((first[0] - second[0]).abs().max()) > 1e-4 * scale:
        raise ModelError(
            f"{name} mixes the records of a batch, so that one record changes another's numbers; "
            "take constants in place of the batch's own mean or range"
        )
