"""Flower Grid in this process: same apps, no network.

The only module that imports the inside of Flower's engines; its room is the only one that imports
both client and server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app
from client_app.site.personal_state import write_states
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_tools.simulation.sites import InProcessContext, close_ledgers
from hdpfl_tools.simulation.stacked_sites import portions, trained_together


class LocalGrid(Grid):
    """Nodes 1…n in this process, answered in sequence by partition index."""

    engine = "in-process"
    stacked = True
    """Setting for stacked training of nodes (``stacked_sites.py``), which changes the last bits of
    their updates."""
    private = False
    """Setting for stacked training with noise at each step (``stack``)."""
    num_sites = 0
    """Sites of the split data set; 0: nodes are no simulated sites."""

    def __init__(
        self,
        num_sites: int,
        present: Iterable[int] | None = None,
        *,
        config: RunConfig | None = None,
        ledgers_in_files: bool = False,
    ) -> None:
        """Make the nodes of a simulation.

        Args:
            num_sites: sites that the data set is split over.
            present: those that take part; None: all of them.
            config: the sites are drawn from it, as Flower's engines give it to their nodes.
            ledgers_in_files: whether the charges and releases of a site outlive the process.
        """
        config = config or RunConfig()
        drawn, self.private = config.drawn(), config.simulation.stack
        self.num_sites = num_sites
        # Flower reads these when a Message is made; its own engines set them in each process.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._contexts: dict[int, InProcessContext] = {
            # Node 1 is the server itself, so partition 0 is node 2.
            index + 2: InProcessContext(
                run_id=1,
                node_id=index + 2,
                node_config=cast(UserConfig, {"partition-id": index, "num-partitions": num_sites}),
                state=RecordDict(),
                run_config=drawn,
            )
            for index in (range(num_sites) if present is None else present)
        }
        for node in self._contexts.values():
            node.ledger_in_file = ledgers_in_files
        self.name_nodes({node: str(node - 2) for node in self._contexts})

    def ask_for(self, facts: frozenset[str]) -> None:
        """Restrict the nodes' disclosed facts to these."""
        for node in self._contexts.values():
            node.asked = facts

    def name_nodes(self, names: Mapping[int, str]) -> None:
        """Name every node: id → name."""
        self._nodes = [NodeInfo(node_id=node, name=name) for node, name in names.items()]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes with their names."""
        return self._nodes

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes' ids."""
        return list(self._contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Let the ClientApp answer each message, in this thread."""
        del timeout  # nothing here can be late
        replies = []
        for portion in portions(list(messages)):
            nodes = ((message, self._contexts[message.metadata.dst_node_id]) for message in portion)
            # Others have profiles of their own: no simulation's, but a test's sites.
            mine = [(m, node) for m, node in nodes if isinstance(node, InProcessContext)]
            with trained_together(mine if self.stacked else [], private=self.private):
                replies += [self._answer(message) for message in portion]
        return replies

    def close(self) -> None:
        """Write the sites' personal parts and close open ledgers."""
        try:
            write_states()
        finally:
            close_ledgers()

    def _answer(self, message: Message) -> Message:
        # Flower's link names messages on their way; a reply refers to its request by that id.
        message.metadata.__dict__["_message_id"] = uuid4().hex
        reply = self.reply(message, self._contexts[message.metadata.dst_node_id])
        reply.metadata.__dict__["_message_id"] = uuid4().hex
        return reply

    def reply(self, message: Message, context: Context) -> Message:
        """Return the node's answer."""
        return app(message, context)

    # The rest of Flower's interface, which the round runner has no use for.

    def set_run(self, run: Run) -> None:
        """There is one run."""

    @property
    def run(self) -> Run:
        """Raises: the local grid has no Flower run."""
        raise RuntimeError("a local grid belongs to no run of Flower's")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message; Flower deprecates this in favour of ``Message``."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Raises: the local grid answers at once, see :meth:`send_and_receive`."""
        del messages
        raise RuntimeError("a local grid answers at once; use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Raises: the local grid answers at once, see :meth:`send_and_receive`."""
        del message_ids
        raise RuntimeError("a local grid answers at once; use send_and_receive")
