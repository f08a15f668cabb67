"""Two rounds of a server without sites: real messages and replies, of noise alone."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.proto.node_pb2 import NodeInfo

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.models.networks import Arrays
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from strategies import make_kernel

SITES = 20
INPUTS, CLASSES = 64, 10
"""Sizes of the digits, which an ``mlp:WIDTH`` of any width learns."""
BARS = {
    "robust-hdp, rpca": 2.5,
    "mmse": 1.6,
    "fedavg+momentum": 1.5,
    "fedavg+adam": 1.7,
    "fedavg+anderson": 2.1,
    "fedpi": 9.8,
    "fedsplit": 9.8,
    "scaffold": 6.3,
}
"""Bars above that of all others.

The reasons: robust PCA's sparse part; the guard's two suspects, a row each; the sums of MMSE
averaging, at most 25,000 coordinates of a block, and its departure, two rows; the state that server
steps keep before and after the round; the state that splittings keep and send per site.
"""
BAR = 1.3
STRATEGIES: dict[str, dict[str, str | int]] = {
    **{key: {} for key in ("fedavg", "weiavg", "minimum", "oracle", "public-only", "pfa")},
    "pfa, five directions": {"pfa.subspace-rank": 5},
    "random-projection": {"random-projection.subspace-rank": 5},
    **{key: {} for key in ("robust-hdp", "robust-hdp, one silent", "mmse", "robust-hdp+pfa")},
    "robust-hdp, rpca": {"robust-hdp.estimator": "rpca"},
    **{key: {} for key in ("fedavg+momentum", "fedavg+adam", "fedavg+anderson", "scaffold")},
    **{key: {"memory-mb": 100000} for key in ("fedpi", "fedsplit")},
}


class ReplyGrid(LocalGrid):
    """Nodes that disclose requested facts and send noise on command."""

    def __init__(self) -> None:
        """Make the nodes."""
        super().__init__(0)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes."""
        return [NodeInfo(node_id=i + 2, name=str(i)) for i in range(SITES)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return each node's facts."""
        del timeout
        replies = []
        for i, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = uuid4().hex
            facts = {"epsilon": 0.5 + 0.5 * (i % 5), "noise-std": 1.0, "declared-records": 100}
            replies.append(Message(wire.write_site(facts), reply_to=message))
        return replies


def two_rounds(config: dict[str, str | int], width: int, name: str) -> int:
    """Run two rounds; return the number of an update's coordinates."""
    kernel = make_kernel(RunConfig.parse({**config, "model": f"mlp:{width}"}))
    shapes = {"0.weight": (width, INPUTS), "0.bias": (width,),
              "2.weight": (CLASSES, width), "2.bias": (CLASSES,)}  # fmt: skip
    model: Arrays = {key: np.zeros(shape, np.float32) for key, shape in shapes.items()}
    record, grid = wire.write_model(model), ReplyGrid()
    size = sum(array.size for array in model.values())
    del model
    generator, update = np.random.default_rng(1), np.ones(size, np.float32)
    for server_round in (1, 2):
        messages = list(kernel.configure_train(server_round, record, ConfigRecord(), grid))
        replies = []
        for i, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = uuid4().hex
            generator.standard_normal(dtype=np.float32, out=update)
            if i == 3 and name.endswith("silent"):
                update[:] = 0
            payload = wire.encode_update(update)
            replies.append(Message(wire.write_update(payload, size), reply_to=message))
            del payload
        new, _ = kernel.aggregate_train(server_round, replies)
        if new is None:
            raise RuntimeError(f"no quorum: {kernel.report.rejected}")
        record = new
    return size
