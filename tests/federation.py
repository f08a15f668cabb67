"""A grid whose sites answer whatever a test wants: what a rule and a round must survive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from strategies import check_strategy, make_kernel
from strategies.core.base import table_of
from strategies.core.checks import read_checked

NEEDED: dict[str, dict[str, object]] = {
    "ifca": {"ifca.clusters": 2},
    "r-dpcfl": {"r-dpcfl.clusters": 2},
    "oracle-clusters": {"groups": "label-shift:4:4"},
    **{
        name: {"model": "mlp:10"}  # its body has logreg's 650 numbers
        for name in ("fedper", "fedrep", "fedbabu", "dsu", "dsu-published")
    },
    "dp-fedavg-fb": {"model": "mlp:10", "work": {"kind": "joint"}},
}
"""Terms without which a rule does not start."""


def weighing(name: str, weights: str) -> dict[str, str]:
    """Return the settings that give FedAvg these weights, wherever ``name`` has it as a part."""
    return {
        f"{table_of(part)}.weights": weights
        for part in check_strategy(name).owners
        if "weights" in part.settings_type.keys()  # noqa: SIM118 - no dictionary
    }


Answer = RecordDict | Error | None
Site = Callable[[int], Answer]
"""Server round → content, error, or no reply at all."""


def sends(update: npt.NDArray[np.float32]) -> Site:
    """Return a site that always sends ``update``."""
    return lambda _: wire.write_update(wire.encode_update(update), len(update))


def first_updates(grid: LocalGrid, terms: RunConfig) -> dict[str, npt.NDArray[np.float32]]:
    """Return what each site of ``grid`` sends in round 1."""
    kernel = make_kernel(terms)
    model = arrays_of(build_model(terms.terms.model, task_for(terms.terms), terms.simulation.seed))
    record = server_wire.write_model(model)
    messages = list(kernel.configure_train(1, record, ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))
    size = sum(array.size for array in model.values())
    return {s: read_checked(r, size).copy() for s, r in kernel.messages.match(replies)}


class ScriptedGrid(LocalGrid):
    """Nodes with scripted answers and, like real ones, ids and orders that mean nothing."""

    def __init__(
        self, sites: dict[str, Site], facts: Mapping[str, dict[str, float] | Error] | None = None
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.sites, self.facts = sites, facts or {}
        self.names = {2**63 + 7919 * i: name for i, name in enumerate(reversed(sites))}
        self.asked: list[tuple[str, str, int]] = []
        self.duplicated: set[str] = set()

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=name) for node, name in self.names.items()]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.names)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid4().hex
            name, kind = self.names[message.metadata.dst_node_id], message.metadata.message_type
            asked = wire.read_instructions(message.content)
            server_round = asked.server_round
            self.asked.append((name, kind, server_round))
            answer: Answer = RecordDict()
            if kind == wire.TRAIN:
                answer = self.sites[name](server_round)
                if asked.use == wire.CHOOSE and isinstance(answer, RecordDict) and answer:
                    answer["choice"] = ConfigRecord({"choice": server_round % len(asked.models)})
            elif kind == wire.JOIN:
                known = self.facts.get(name, {})
                answer = known if isinstance(known, Error) else wire.write_site(known)
            if answer is not None:
                replies += [Message(answer, reply_to=message)] * (
                    2 if name in self.duplicated else 1
                )
        return reversed(replies)
